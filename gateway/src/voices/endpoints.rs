//! `GET` and `POST /v1/audio/voices`, `DELETE /v1/audio/voices/{id}`.

use std::io::ErrorKind;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::catalog::{self, Listing, VoiceEntry};
use proto::quota::Quotas as _;
use serde_json::json;

use super::clip::record;
use super::form::{self, Form};
use super::record::{Mode, Record, Sharing, Viewer};
use super::resolve::{bad, blocking, default_mode};
use super::store::{NewVoice, Store, StoreError};
use crate::app::App;
use crate::auth::{Caller, Principal, Scope};
use crate::error::ApiError;
use crate::http::Segment;

/// The voices of every loaded model, then those kept for the caller.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    Ok(body(&json!(listing(&app, &caller.0?).await?)))
}

/// What [`list`] answers with.
///
/// # Errors
/// An engine that does not serve.
pub(crate) async fn listing(app: &App, caller: &Principal) -> Result<Listing<VoiceEntry>, ApiError> {
    let mut listing = catalog::voices(&app.engine()?.info(), app.started_unix);
    if let Some(store) = app.voices.clone() {
        let viewer = Viewer::of(caller);
        let kept = blocking(move || Ok(store.list(&viewer))).await?;
        listing.data.extend(kept.iter().map(entry));
    }
    Ok(listing)
}

/// Reads, judges and keeps a clip.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = caller.0?;
    if app.drain.draining() {
        return Err(ApiError::draining());
    }
    let _guard = app.drain.enter();
    let store = store(&app)?;
    let bytes_max = app.config.voices.upload_bytes_max;
    let (form, room) = form::read(request, bytes_max, app.bodies.room()).await?;
    if form.sharing == Sharing::Everyone && !caller.scopes.allow(Scope::Admin) {
        let message = "sharing with everyone needs the scope admin";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message).param("sharing"));
    }
    let id = format!("v-{}", crate::app::random_hex::<16>().map_err(|_| ApiError::internal())?);
    // Decoding costs, whether or not the voice is kept.
    app.quotas_of(&caller.tenant).begin(app.clock.now())?;
    let viewer = Viewer::of(&caller);
    let created_at = crate::clock::unix_seconds();
    let decoder = app.bodies.decoder().await;
    let kept = blocking(move || {
        // Held to the end, also when whoever asked has gone: nothing stops a decoder.
        let _held = (room, decoder);
        let recording = record(&form.audio, bytes_max).map_err(|error| bad(&error).param("audio"))?;
        let record = described(form, id, &viewer, created_at);
        store.add(NewVoice { record, recording }).map_err(|error| refused(&error))
    })
    .await?;
    app.metrics.voice_kept();
    tracing::info!(voice = kept.id, tenant = kept.tenant, "voice kept");
    Ok(body(&json!(entry(&kept))))
}

/// Forgets a voice: clip, features, and what is cached of them.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Segment(id): Segment,
) -> Result<Response, ApiError> {
    let viewer = Viewer::of(&caller.0?);
    let (store, named) = (store(&app)?, id.clone());
    let engine = app.engine()?.clone();
    let gone = blocking(move || {
        let rates: Vec<u32> = engine.info().models.iter().map(|model| model.sample_rate).collect();
        let gone = store.remove(&viewer, &named, &rates).map_err(|error| refused(&error))?;
        for hash in gone.iter().flat_map(|gone| &gone.hashes) {
            engine.forget_clip(*hash);
        }
        Ok(gone)
    })
    .await?;
    let Some(gone) = gone else {
        // A voice of somebody else's is no voice: ids tell nothing.
        let message = "there is no voice of yours with this id; GET /v1/audio/voices lists them";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_voice", message).param("id"));
    };
    tracing::info!(voice = id, "voice forgotten");
    if let Some(error) = gone.unfinished {
        tracing::error!(%error, "the folder of voices");
        let message = "the voice is forgotten, but its clip is still on the server's disk, which does not do \
                       as it is asked; it is removed as soon as it can be";
        return Err(unavailable(message));
    }
    Ok(body(&json!({ "id": id, "object": "audio.voice.deleted", "deleted": true })))
}

fn described(form: Form, id: String, viewer: &Viewer, created_at: u64) -> Record {
    let mode = form.mode.unwrap_or_else(|| Mode::from(default_mode(form.transcript.as_deref())));
    Record {
        id,
        name: form.name,
        tenant: viewer.tenant.clone(),
        subject: viewer.subject.clone(),
        sharing: form.sharing,
        language: form.language,
        transcript: form.transcript,
        mode,
        consent: form.consent,
        created_at,
        // The store fills these in from the clip.
        rate_hz: 0,
        samples: 0,
        sha256: String::new(),
    }
}

fn entry(record: &Record) -> VoiceEntry {
    VoiceEntry {
        id: record.id.clone(),
        name: record.name.clone(),
        created_at: record.created_at,
        object: "audio.voice".to_owned(),
        kind: "clip".to_owned(),
        language: record.language.clone(),
    }
}

fn store(app: &App) -> Result<Arc<Store>, ApiError> {
    app.voices.clone().ok_or_else(|| {
        let message = "this server keeps no voices; give the clip with each request as reference, or have \
                       voices.folder set";
        ApiError::bad_request("unsupported", message)
    })
}

fn body(json: &serde_json::Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json.to_string()).into_response()
}

fn unavailable(message: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).retry_after_ms(10_000)
}

/// What the disk says stays in our log.
pub(crate) fn refused(error: &StoreError) -> ApiError {
    match error {
        StoreError::Full | StoreError::Quota { .. } => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", error.to_string())
        }
        StoreError::Exists => {
            ApiError::new(StatusCode::CONFLICT, "voice_exists", error.to_string()).param("name")
        }
        StoreError::Damaged => ApiError::bad_request("bad_reference", error.to_string()).param("voice"),
        StoreError::Unflushed { .. } => {
            tracing::error!(%error, "the folder of voices");
            unavailable("this may be done or not: look whether the voice is listed before you try again")
        }
        StoreError::Io { what, source, .. } => {
            tracing::error!(%error, "the folder of voices");
            unavailable(match (*what, source.kind()) {
                ("read", _) => "the clip of this voice cannot be read now; other voices speak",
                (_, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                    "the disk that voices are kept on is full; voices that are kept speak on"
                }
                _ => "the folder that voices are kept in cannot be changed now; voices that are kept speak",
            })
        }
        StoreError::Manifest { .. } | StoreError::Unlisted { .. } => {
            tracing::error!(%error, "the folder of voices");
            unavailable("the list of voices cannot be changed now; voices that are kept speak")
        }
    }
}
