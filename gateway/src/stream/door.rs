//! The door every socket goes through, whatever its protocol: capacity, limits, the session's start.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use contract::{EngineInfo, Span};
use proto::dialect::Dialect;
use proto::session::{Config, Limits};

use super::drive::{self, Start};
use super::refusal::{self, Refusal};
use super::socket;
use crate::app::App;
use crate::auth::{Caller, Principal, TokenEnd};
use crate::error::ApiError;
use crate::http::RequestId;
use crate::inflow::Upgrade;
use crate::usage::Account;
use crate::voices::{Shelf, Viewer};

/// Bytes read from a socket at once: the library's default of 128 KiB is most of an idle session.
const READ_BUFFER_BYTES: usize = 1_024;

/// Opus' look-ahead at 48 kHz in the mode we encode in, whatever the input rate.
const OPUS_PRE_SKIP_48K: u16 = 312;

/// What tells one protocol's sockets from another's.
pub(crate) struct Endpoint {
    /// Its name in metrics and in the usage log.
    pub(crate) door: &'static str,
    /// Subprotocols to select when they are offered.
    pub(crate) protocols: &'static [&'static str],
    pub(crate) dialect: Box<dyn Dialect>,
    pub(crate) limits: Limits,
    /// Messages read and not yet handled.
    pub(crate) events: usize,
}

impl Endpoint {
    /// An endpoint with the limits of `[stream]`. Clients that report no playback get the lead that is
    /// configured for them, and cannot take a lost session up again.
    pub(crate) fn new(
        app: &App,
        door: &'static str,
        protocols: &'static [&'static str],
        dialect: Box<dyn Dialect>,
    ) -> Self {
        let stream = &app.config.stream;
        let native = dialect.manner().resumes;
        let limits = Limits {
            message_bytes: stream.message_bytes_max,
            frame_bytes: stream.frame_bytes_max,
            contexts: stream.contexts_max as usize,
            contexts_open: Limits::default().contexts_open.max(stream.contexts_max as usize),
            lead: span(if native { stream.lead } else { stream.unreported_lead }),
            unwritten_bytes: stream.write_buffer_bytes as u64,
            unwritten_bytes_max: 4 * stream.write_buffer_bytes as u64,
            slow_reader: span(stream.slow_reader),
            idle: span(stream.idle),
            context_idle: span(stream.context_idle),
            resume_window: span(stream.resume_window),
            ..Limits::default()
        };
        Self { door, protocols, dialect, limits, events: socket::EVENTS }
    }
}

/// Upgrades, and runs a session until it ends. `tell` words the refusal of a token that came as a
/// subprotocol: a browser cannot read a status, so it is upgraded, told, and closed.
pub(crate) fn enter(
    app: &Arc<App>,
    id: RequestId,
    caller: Caller,
    upgrade: Upgrade,
    endpoint: Endpoint,
    tell: impl FnOnce(&ApiError, &str) -> Refusal,
) -> Result<Response, ApiError> {
    if app.drain.draining() {
        return Err(ApiError::draining());
    }
    let engine = Arc::clone(app.engine()?);
    let caller = match caller.0 {
        Ok(caller) => caller,
        Err(error) => {
            app.metrics.error(error.code);
            return Ok(refusal::tell(upgrade.socket, endpoint.protocols, tell(&error, &id.0)));
        }
    };
    let Some(place) = app.sessions.enter() else {
        let message = "every session place is taken; try again later";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
        return Err(error.retry_after_ms(1_000));
    };
    let Endpoint { door, protocols, dialect, limits, events } = endpoint;
    let config = config(app, engine.info(), id.0, &caller, limits).map_err(|_| ApiError::internal())?;
    let account = Account::of(&caller, &config.session, door);
    let owner = TokenEnd::of(&caller, app.auth.policy().leeway_s, app.clock);
    let guard = Arc::new(app.drain.enter());
    let inflow = upgrade.inflow;
    let upgrade = upgrade
        .socket
        .protocols(protocols.iter().copied())
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(READ_BUFFER_BYTES)
        // A message is taken once those before it have left, so this bounds nothing but the one that is longer: a realtime
        // item is told back as long as it came. What waits is bounded by the session.
        .max_write_buffer_size(usize::MAX)
        .max_frame_size(limits.frame_bytes)
        .max_message_size(limits.message_bytes);
    let app = Arc::clone(app);
    let start = Start { engine, config, dialect, place, owner, account };
    Ok(upgrade.on_upgrade(async move |websocket| {
        // The socket's tasks hold the guard too: a session has ended when its Close has left.
        let socket = socket::start(websocket, inflow, events, &guard);
        // A task of its own: this one is as large as all it was made of, for as long as it lives.
        tokio::spawn(drive::run(app, start, socket, guard));
    }))
}

/// What the session is told of our configuration.
fn config(
    app: &App,
    engine: Arc<EngineInfo>,
    session: String,
    caller: &Principal,
    limits: Limits,
) -> std::io::Result<Config> {
    Ok(Config {
        session,
        resume: super::resume_token()?,
        engine,
        tenant: caller.group(),
        voices: app.voices.clone().map(|store| -> Arc<dyn proto::catalog::Voices> {
            Arc::new(Shelf { store, viewer: Viewer::of(caller) })
        }),
        quotas: Some(Arc::new(app.quotas_of(&caller.tenant))),
        lexicon: app.lexicons.of(&caller.tenant),
        bench: app.config.engine.bench,
        opus_pre_skip: OPUS_PRE_SKIP_48K,
        paces: app.paces().clone(),
        limits,
    })
}

fn span(duration: std::time::Duration) -> Span {
    Span::from_micros(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_look_ahead_told_to_clients_is_the_encoders_own() {
        use crate::encode::{Form, StreamEncoder};
        let opus = crate::config::OpusConfig { threads: 1, bitrate_bps: 32_000, complexity: 5 };
        for rate in [8_000, 16_000, 24_000, 48_000] {
            let encoder = StreamEncoder::new(Form::Opus, rate, rate, opus).expect("an Opus rate");
            assert_eq!(encoder.pre_skip_48k(), u32::from(OPUS_PRE_SKIP_48K), "{rate}");
        }
    }
}
