//! The sockets of ElevenLabs' and Cartesia's clients.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use contract::{Layout, Span};
use proto::catalog::{Ask, Target};
use proto::elevenlabs::{self, Contexts, Options};
use proto::{cartesia, dialect::Dialect};

use super::{Endpoint, Refusal, enter, refused_upgrade};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::http::{RequestId, Segment};
use crate::inflow;

type Upgrade = Result<inflow::Upgrade, WebSocketUpgradeRejection>;
type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Silence after which the services close a socket, and that their clients count on.
const ELEVENLABS_IDLE: Duration = Duration::from_secs(180);
const CARTESIA_IDLE: Duration = Duration::from_secs(300);
/// Messages read and not yet handled: each can be as long as a clip.
const EVENTS: usize = 2;

/// `GET /v1/text-to-speech/{voice}/multi-stream-input`.
pub(crate) async fn elevenlabs_many(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    Segment(voice): Segment,
    query: Pairs,
    upgrade: Upgrade,
) -> Result<Response, Response> {
    elevenlabs(app, (id, caller), (Contexts::Many, voice), query, upgrade).await
}

/// `GET /v1/text-to-speech/{voice}/stream-input`.
pub(crate) async fn elevenlabs_one(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    Segment(voice): Segment,
    query: Pairs,
    upgrade: Upgrade,
) -> Result<Response, Response> {
    elevenlabs(app, (id, caller), (Contexts::One, voice), query, upgrade).await
}

/// `GET /tts/websocket`. The version that a client names changes nothing here.
pub(crate) async fn cartesia(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    upgrade: Upgrade,
) -> Result<Response, Response> {
    let upgrade = upgrade.map_err(|rejection| refused_upgrade(&rejection))?;
    let endpoint = endpoint(&app, "cartesia", Box::new(cartesia::Socket::new()), CARTESIA_IDLE);
    enter(&app, id, caller, upgrade, endpoint, |error, id| {
        Refusal::new(error, cartesia::error(error.status.as_u16(), &error.object(id)).1)
    })
    .map_err(IntoResponse::into_response)
}

async fn elevenlabs(
    app: Arc<App>,
    (id, caller): (RequestId, Caller),
    (contexts, voice): (Contexts, String),
    query: Pairs,
    upgrade: Upgrade,
) -> Result<Response, Response> {
    let upgrade = upgrade.map_err(|rejection| refused_upgrade(&rejection))?;
    let options =
        options(&app, &caller, (contexts, voice), query).await.map_err(IntoResponse::into_response)?;
    let inactivity = options.inactivity;
    let dialect = Box::new(elevenlabs::Socket::new(options));
    let mut endpoint = endpoint(&app, "elevenlabs", dialect, ELEVENLABS_IDLE);
    endpoint.limits.context_idle = inactivity;
    enter(&app, id, caller, upgrade, endpoint, |error, id| {
        Refusal::new(error, elevenlabs::error(error.status.as_u16(), &error.object(id)).1)
    })
    .map_err(IntoResponse::into_response)
}

fn endpoint(app: &App, door: &'static str, dialect: Box<dyn Dialect>, idle: Duration) -> Endpoint {
    let mut endpoint = Endpoint::new(app, door, &[], dialect);
    // A message may hold a clip, as a request's body may.
    let bytes_max = app.config.server.body_bytes_max.max(endpoint.limits.message_bytes);
    endpoint.limits.message_bytes = bytes_max;
    endpoint.limits.frame_bytes = bytes_max;
    endpoint.events = EVENTS;
    let idle = Span::from_micros(i64::try_from(idle.as_micros()).unwrap_or(i64::MAX));
    endpoint.limits.idle = endpoint.limits.idle.max(idle);
    endpoint
}

/// What the URL asks. A voice that does not exist is told before the upgrade, because one of the clients
/// that there are reads no error afterwards.
async fn options(
    app: &App,
    caller: &Caller,
    (contexts, voice): (Contexts, String),
    query: Pairs,
) -> Result<Options, ApiError> {
    let Query(pairs) =
        query.map_err(|_| ApiError::bad_request("field_out_of_range", "the query cannot be read"))?;
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut options = Options::read(contexts, &voice, pairs)?;
    let info = app.engine()?.info();
    options.ask.forget_unknown_language(&info);
    if let Ok(caller) = &caller.0 {
        let mut ask: Ask = options.ask.clone();
        crate::voices::choose_named(app, caller, &info, &mut ask).await?;
        let preferred = [Layout::Streamed, Layout::Whole];
        Target::resolve(&info, &ask, preferred, app.config.engine.bench)?;
    }
    Ok(options)
}
