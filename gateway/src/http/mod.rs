//! The public endpoints that are plain HTTP, and what every answer has in common.

mod assets;
mod cartesia;
mod catalogue;
mod elevenlabs;
mod openapi;
mod segment;
mod speech;
mod whole;
mod words;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;

use crate::app::App;
use crate::error::{ApiError, Refused};
use crate::listen::{Connected, Secure};
pub(crate) use segment::Segment;
pub(crate) use whole::gather_body;

/// The id a request goes by in its answer and in the log.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

pub(crate) fn router(app: Arc<App>) -> Router {
    // Bodies are bounded where they are read, each by its own configured bound.
    let body_bound = axum::extract::DefaultBodyLimit::disable();
    Router::new()
        .route("/asyncapi.json", get(openapi::sockets::answer))
        .route("/openapi.json", get(openapi::answer))
        .route("/v1/models", get(catalogue::models))
        .route("/v1/audio/voices", get(crate::voices::list).post(crate::voices::create))
        .route("/v1/audio/voices/{id}", axum::routing::delete(crate::voices::delete))
        .route("/v1/audio/speech", post(speech::speak))
        .route("/v1/text-to-speech/{voice}", post(elevenlabs::speak))
        .route("/v1/text-to-speech/{voice}/stream", post(elevenlabs::speak))
        .route("/v1/text-to-speech/{voice}/with-timestamps", post(elevenlabs::document))
        .route("/v1/text-to-speech/{voice}/stream/with-timestamps", post(elevenlabs::lines))
        .route("/v1/text-to-speech/{voice}/stream-input", get(crate::stream::elevenlabs_one))
        .route("/v1/text-to-speech/{voice}/multi-stream-input", get(crate::stream::elevenlabs_many))
        .route("/v1/voices", get(elevenlabs::voices))
        .route("/tts/bytes", post(cartesia::bytes))
        .route("/tts/sse", post(cartesia::events))
        .route("/tts/websocket", get(crate::stream::cartesia))
        .route("/v1/realtime/client_secrets", post(crate::auth::create_client_secret))
        .route("/v1/realtime", get(crate::realtime::upgrade))
        .route("/v1/stream", get(crate::stream::upgrade))
        .layer(body_bound)
        .fallback(assets::serve)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), crate::auth::door))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), answer))
        .with_state(app)
}

/// Answers everything on a connection that found every place taken.
pub(crate) fn full(app: Arc<App>) -> Router {
    let told = async |State(app): State<Arc<App>>| match app.drain.draining() {
        true => ApiError::draining(),
        false => {
            let message = "every connection place is taken; try again later";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message).retry_after_ms(1_000)
        }
    };
    Router::new()
        .fallback(told)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), answer))
        .with_state(app)
}

/// Longest request target and head that are answered in our own words. The HTTP library refuses heads over
/// its own bound, which is greater, with a bare status.
const TARGET_BYTES_MAX: usize = 8 * 1_024;
const HEAD_BYTES_MAX: usize = 32 * 1_024;

/// Wraps every request of either listener: its id, its fence against panics, its line in the log.
pub(crate) async fn answer(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = app.request_id('r');
    let begun = app.clock.now();
    let method = request.method().clone();
    // The path only: a query may hold what a client wants to keep to itself.
    let path = request.uri().path().to_owned();
    request.extensions_mut().insert(RequestId(id.clone()));
    let origin = request.headers().get(header::ORIGIN).cloned();
    let client = client(&app, &mut request);
    let answered = match head_in_bounds(&request) {
        Err(error) => error.into_response(),
        Ok(()) => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => ApiError::internal().into_response(),
        },
    };
    let mut response = match answered.extensions().get::<Refused>() {
        Some(Refused(error)) => {
            app.metrics.error(error.code);
            let mut refused = words::Words::of(&path).refusal(error, &id);
            // What the refusal says in headers: Allow, Upgrade...
            for (name, value) in answered.headers() {
                if !refused.headers().contains_key(name) && name != header::CONTENT_LENGTH {
                    refused.headers_mut().insert(name.clone(), value.clone());
                }
            }
            refused
        }
        None => answered,
    };
    crate::auth::cross_origin(&app, origin.as_ref(), &mut response);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", value);
    }
    let took_us = app.clock.now().since(begun).as_micros();
    let status = response.status().as_u16();
    tracing::info!(request = id, client, %method, path, status, took_us, "answered");
    response
}

/// The address of who asks, for the log; marks a request whose client's own connection is encrypted.
fn client(app: &App, request: &mut Request) -> String {
    let Some(from) = request.extensions().get::<Connected>().copied() else { return String::new() };
    let client = app.auth.policy().proxies.client(from.peer, from.tls, request.headers());
    if client.secure {
        request.extensions_mut().insert(Secure);
    }
    client.address.map_or_else(|| "unix".to_owned(), |address| address.to_string())
}

pub(crate) async fn method_not_allowed() -> ApiError {
    let message = "this path exists, but not for this method; see the Allow header";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

fn head_in_bounds(request: &Request) -> Result<(), ApiError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > TARGET_BYTES_MAX {
        let message =
            format!("the path and query are {target} bytes long; at most {TARGET_BYTES_MAX} may be");
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, "uri_too_long", message));
    }
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let head = target + headers.sum::<usize>();
    if head > HEAD_BYTES_MAX {
        let message = format!("the headers are {head} bytes long; at most {HEAD_BYTES_MAX} may be");
        return Err(ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", message));
    }
    // RFC 9112 section 3.2: a proxy may have looked at the other one.
    if request.headers().get_all(header::HOST).iter().nth(1).is_some() {
        let message = "the header Host stands twice";
        return Err(ApiError::bad_request("duplicate_field", message).param("Host"));
    }
    // RFC 6455 section 4.2.1; the WebSocket library answers any key.
    let decoded = |key: &HeaderValue| STANDARD.decode(key.as_bytes()).is_ok_and(|key| key.len() == 16);
    if request.headers().get_all(header::SEC_WEBSOCKET_KEY).iter().any(|key| !decoded(key)) {
        let message = "Sec-WebSocket-Key must be 16 bytes in base64";
        return Err(ApiError::bad_request("websocket_key", message));
    }
    Ok(())
}

/// Whether `host`, with or without port, names this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    if let Ok(address) = host.parse::<std::net::SocketAddr>() {
        return address.ip().is_loopback();
    }
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = name.map_or(host, |(name, _)| name);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;

    async fn faulty() -> &'static str {
        panic!("a fault of ours")
    }

    #[tokio::test]
    async fn a_panic_is_answered_with_an_error_object() {
        let app = App::new(Config::defaults().expect("valid"), Clock::start()).expect("threads");
        let router = Router::new()
            .route("/faulty", get(faulty))
            .layer(axum::middleware::from_fn_with_state(app, answer));
        let request = Request::builder().uri("/faulty").header(header::HOST, "localhost:1");
        let request = request.body(Body::empty()).expect("a request");
        let response = router.oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(response.into_body(), 4_096).await.expect("a body");
        let object: proto::wire::ErrorBody = serde_json::from_slice(&body).expect("an error object");
        assert_eq!(object.error.code, "internal");
    }

    #[test]
    fn only_this_machine_is_a_local_host() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]:1", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "evil:127.0.0.1"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
