//! The layer before every endpoint: names, pages, tokens and scopes, in this order.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::claims::Refusal;
use super::client_secret::PREFIX;
use super::credentials::{Carried, find};
use super::origins::Page;
use super::policy::Policy;
use super::principal::{Principal, Scope};
use super::remote::ATTEMPT_EVERY;
use crate::app::App;
use crate::error::ApiError;

/// Who asks. The error is there only on a WebSocket whose token came as a subprotocol: a browser cannot
/// read a status, so the endpoint upgrades, tells it, and closes.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Result<Principal, ApiError>);

pub(crate) async fn door(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let policy = app.auth.policy();
    let page = match enter(&policy, &request) {
        Ok(page) => page,
        Err(error) => return error.into_response(),
    };
    if is_preflight(&request) {
        return preflight(&page);
    }
    let caller = match needed(request.method(), request.uri().path()) {
        None => return next.run(request).await,
        Some(_) if policy.open => Ok(unlocked(&app, &policy, request.headers()).await),
        Some(scope) => admit(&app, &policy, request.headers(), scope).await,
    };
    let caller = match caller {
        Err(error) if !matches!(find(request.headers()), Carried::Subprotocol(_)) => {
            return error.into_response();
        }
        caller => caller,
    };
    if let Ok(principal) = &caller {
        tracing::debug!(subject = &*principal.subject, tenant = &*principal.tenant, "let in");
    }
    request.extensions_mut().insert(Caller(caller));
    next.run(request).await
}

/// Lets a page of a listed origin read an answer, also one that refuses.
pub(crate) fn cross_origin(app: &App, origin: Option<&HeaderValue>, response: &mut Response) {
    let Some(origin) = origin else { return };
    let mut headers = HeaderMap::new();
    headers.insert(header::ORIGIN, origin.clone());
    if let Ok(Page::Listed(_)) = app.auth.policy().origins.check(&headers, false) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, retry-after, x-voxlane-usage"),
        );
    }
    // Caches must keep the answers for different pages apart.
    response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
}

fn enter(policy: &Policy, request: &Request) -> Result<Page, ApiError> {
    policy.origins.check_host(request.headers(), request.uri())?;
    let secure = request.extensions().get::<crate::listen::Secure>().is_some();
    policy.origins.check(request.headers(), secure)
}

/// The scope a request needs; `None` for the page and what it loads. Whatever is not named here and looks
/// like an endpoint needs a token, so that a new one is never open by mistake.
fn needed(method: &Method, path: &str) -> Option<Scope> {
    let api = path.starts_with("/v1/") || path.starts_with("/tts/");
    if !api {
        return None;
    }
    let writes = method != Method::GET && method != Method::HEAD;
    Some(match path {
        "/v1/events" => Scope::Observe,
        _ if path.starts_with("/v1/audio/voices") && writes => Scope::Voices,
        _ => Scope::Speak,
    })
}

/// Without keys everybody is let in. A client secret made here still brings its session's settings along.
async fn unlocked(app: &App, policy: &Policy, headers: &HeaderMap) -> Principal {
    match find(headers) {
        Carried::Header(token) | Carried::Subprotocol(token) if token.starts_with(PREFIX) => {
            policy.admit(&token, app.clock, &app.metrics).await.unwrap_or_else(|_| Principal::open())
        }
        _ => Principal::open(),
    }
}

async fn admit(app: &App, policy: &Policy, headers: &HeaderMap, scope: Scope) -> Result<Principal, ApiError> {
    let admitted = match find(headers) {
        Carried::Header(token) | Carried::Subprotocol(token) => {
            policy.admit(&token, app.clock, &app.metrics).await
        }
        Carried::Nothing => Err(Refusal::Missing),
        Carried::Unclear => Err(Refusal::Malformed),
    };
    let principal = admitted.map_err(|refusal| {
        app.metrics.token_refused(refusal.name());
        unauthorized(refusal)
    })?;
    if !principal.scopes.allow(scope) {
        app.metrics.token_refused("scope");
        let message = format!("this token does not have the scope {}", scope.name());
        return Err(ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message));
    }
    Ok(principal)
}

/// Says no more than whether a token that was good has ended, or cannot be judged now: missing and wrong look
/// the same.
fn unauthorized(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Expired => {
            ApiError::new(StatusCode::UNAUTHORIZED, "token_expired", "this token has ended; get a new one")
        }
        // Not 401, upon which clients throw their token away: it may be good.
        Refusal::KeysUnreachable => {
            let message =
                "the keys that this token could be checked with cannot be fetched now; try again later";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
            error.retry_after_ms(ATTEMPT_EVERY.as_micros().unsigned_abs() / 1_000)
        }
        _ => {
            let message = "a valid token is needed: the header Authorization: Bearer TOKEN, or in browsers the subprotocol \
                           bearer.TOKEN; never in the URL";
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_token", message)
        }
    }
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// What a page of another host may send. A page that is not listed has already been refused.
fn preflight(page: &Page) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if matches!(page, Page::Listed(_)) {
        let headers = response.headers_mut();
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-api-key, xi-api-key"),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_needs_a_scope_and_the_page_none() {
        for (method, path, scope) in [
            (Method::GET, "/", None),
            (Method::GET, "/page.js", None),
            (Method::GET, "/v1/models", Some(Scope::Speak)),
            (Method::GET, "/v1/stream", Some(Scope::Speak)),
            (Method::GET, "/v1/audio/voices", Some(Scope::Speak)),
            (Method::POST, "/v1/audio/voices", Some(Scope::Voices)),
            (Method::DELETE, "/v1/audio/voices/v-1", Some(Scope::Voices)),
            (Method::GET, "/v1/events", Some(Scope::Observe)),
            (Method::GET, "/v1/anything/else", Some(Scope::Speak)),
            (Method::POST, "/tts/bytes", Some(Scope::Speak)),
        ] {
            assert_eq!(needed(&method, path), scope, "{method} {path}");
        }
    }
}
