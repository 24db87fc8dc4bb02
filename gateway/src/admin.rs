//! The admin listener: is the process alive, is it ready (and if not, why), what are its figures.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use contract::Health;
use serde_json::json;

use crate::app::App;
use crate::drain::Phase;
use crate::error::ApiError;
use crate::http;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(http::method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), local_host))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), http::answer))
        .with_state(app)
}

/// Refuses a Host that is not this machine, unless others may reach this side: a page elsewhere could have its own
/// name point here (DNS rebinding) and then read what we answer.
async fn local_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(header::HOST).and_then(|value| value.to_str().ok()),
    };
    if app.config.server.admin_remote || host.is_some_and(http::is_loopback) {
        return next.run(request).await;
    }
    let message = "the Host header must name a loopback address (localhost, 127.0.0.1 or [::1])";
    ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message).param("Host").into_response()
}

async fn not_found() -> ApiError {
    let message = "nothing lives at this path; there are /livez, /readyz and /metrics";
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    let (ready, reason) = readiness(&app);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let drain_grace_ms = u64::try_from(app.config.server.drain_grace.as_millis()).unwrap_or(u64::MAX);
    let body = json!({
        "ready": ready,
        "reason": reason,
        "sessions": app.sessions.live(),
        "devices": devices(&app),
        "drain_grace_ms": drain_grace_ms,
    });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    if let Some(engine) = app.handle() {
        app.metrics.engine(&engine.stats());
        app.metrics.devices(&engine.devices());
    }
    app.metrics.bodies(app.bodies.bytes());
    if let Some(voices) = &app.voices {
        app.metrics.voices_faults(voices.faults());
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render()).into_response()
}

/// Each device by itself: the process is ready while one of them is.
fn devices(app: &App) -> Vec<serde_json::Value> {
    let reports = app.handle().map(|engine| engine.devices()).unwrap_or_default();
    let reports = reports.into_iter().map(|report| {
        let reason = match report.health {
            Health::Ready => None,
            Health::Starting(reason) | Health::Failed(reason) => Some(reason),
        };
        json!({
            "device": report.device.0,
            "about": report.about,
            "ready": reason.is_none(),
            "reason": reason.unwrap_or_else(|| "serving".to_owned()),
        })
    });
    reports.collect()
}

fn readiness(app: &App) -> (bool, String) {
    if let Phase::Draining { .. } = app.drain.phase() {
        return (false, "draining".to_owned());
    }
    match app.health() {
        Health::Ready if let Some(reason) = app.auth.policy().waits_for(app.clock) => {
            (false, format!("starting: {reason}"))
        }
        Health::Ready if !app.connections.has_room() => (false, "every connection place is taken".to_owned()),
        Health::Ready if !app.sessions.has_room() => (false, "every session place is taken".to_owned()),
        Health::Ready => (true, "serving".to_owned()),
        Health::Starting(reason) => (false, format!("starting: {reason}")),
        Health::Failed(reason) => (false, format!("failed: {reason}")),
    }
}
