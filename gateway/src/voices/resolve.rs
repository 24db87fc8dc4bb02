//! Which clip a request means: a kept voice by id or name, or one that came with it.

use std::sync::Arc;

use axum::http::StatusCode;
use contract::{CloneMode, EngineInfo, ModelInfo};
use proto::catalog::{Ask, Reference};
use proto::speech::{SpeechReference, SpeechRequest};

use super::clip::{ClipError, prepare, record};
use super::record::Viewer;
use super::store::{Store, StoreError};
use crate::app::App;
use crate::auth::Principal;
use crate::error::ApiError;

/// If `ask` names a kept voice, puts its clip there. A voice of the model's own goes first, and a name that
/// is neither is left for the catalogue to refuse.
///
/// # Errors
/// When the voice cannot be read.
pub(crate) fn named(
    store: &Store,
    viewer: &Viewer,
    info: &EngineInfo,
    ask: &mut Ask,
) -> Result<(), StoreError> {
    let (Some(name), Some(model)) = (ask.voice.as_deref(), model(info, ask)) else { return Ok(()) };
    let own = |voice: &contract::VoiceInfo| voice.id == name || voice.name == name;
    if model.voices.iter().any(own) {
        return Ok(());
    }
    if let Some(kept) = store.find(viewer, name) {
        let clip = store.clip(&kept, model.sample_rate)?;
        ask.reference = Some(Reference { voice: Some(kept.id), clip, mode: kept.mode.into() });
    }
    Ok(())
}

/// Puts the clip that a request means into its `ask`, if it means one.
///
/// # Errors
/// `bad_reference`, or ours when the folder cannot be read.
pub(crate) async fn choose(
    app: &App,
    caller: &Principal,
    info: &Arc<EngineInfo>,
    asked: &mut SpeechRequest,
) -> Result<(), ApiError> {
    if let Some(reference) = asked.reference.take() {
        return given(app, reference, info, &mut asked.ask).await;
    }
    choose_named(app, caller, info, &mut asked.ask).await
}

/// As [`choose`], where a clip can only be a kept voice's.
///
/// # Errors
/// Ours when the folder cannot be read.
pub(crate) async fn choose_named(
    app: &App,
    caller: &Principal,
    info: &Arc<EngineInfo>,
    asked: &mut Ask,
) -> Result<(), ApiError> {
    let (Some(store), true) = (app.voices.clone(), asked.voice.is_some()) else { return Ok(()) };
    let (viewer, info, mut ask) = (Viewer::of(caller), Arc::clone(info), asked.clone());
    *asked = blocking(move || match named(&store, &viewer, &info, &mut ask) {
        Ok(()) => Ok(ask),
        Err(error) => Err(super::endpoints::refused(&error)),
    })
    .await?;
    Ok(())
}

/// Reads a clip that came in a request's body. Decoding takes its time: it runs where blocking is allowed.
///
/// # Errors
/// `bad_reference`, saying what is wrong with the clip.
async fn given(
    app: &App,
    reference: SpeechReference,
    info: &EngineInfo,
    ask: &mut Ask,
) -> Result<(), ApiError> {
    let Some(model) = model(info, ask) else { return Ok(()) };
    let rate = model.sample_rate;
    let mode = reference.mode.unwrap_or(default_mode(reference.transcript.as_deref()));
    let (bytes_max, decoder) = (app.config.voices.upload_bytes_max, app.bodies.decoder().await);
    let clip = blocking(move || {
        let _held = decoder;
        let bytes = reference.file().map_err(|error| refused("reference.audio", &error.to_string()))?;
        let transcript = reference.transcript.as_deref();
        let clip = record(&bytes, bytes_max).and_then(|recording| prepare(&recording, transcript, rate));
        clip.map_err(|error| bad(&error))
    })
    .await?;
    ask.reference = Some(Reference { voice: None, clip: Arc::new(clip), mode });
    Ok(())
}

/// In context where there are words for it.
pub(crate) fn default_mode(transcript: Option<&str>) -> CloneMode {
    match transcript {
        Some(text) if !text.trim().is_empty() => CloneMode::InContext,
        _ => CloneMode::Speaker,
    }
}

/// Runs `work` away from the async workers; a panic in a decoder is that request's refusal.
///
/// # Errors
/// The work's own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(refused("reference", "it cannot be decoded")),
    }
}

pub(crate) fn bad(error: &ClipError) -> ApiError {
    refused("reference", &error.to_string())
}

fn refused(param: &str, what: &str) -> ApiError {
    let message = format!("the reference clip cannot be used: {what}");
    ApiError::new(StatusCode::BAD_REQUEST, "bad_reference", message).param(param)
}

fn model<'a>(info: &'a EngineInfo, ask: &Ask) -> Option<&'a ModelInfo> {
    match &ask.model {
        None => info.models.first(),
        Some(name) => proto::catalog::model(info, name),
    }
}
