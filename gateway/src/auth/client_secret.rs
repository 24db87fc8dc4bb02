//! `POST /v1/realtime/client_secrets`: a short-lived token that a server of the tenant's hands to a browser.
//!
//! The value is `ek_` and a JWT, because client libraries in browsers refuse other keys. It is signed with
//! a key of its own, so that it is never taken for a token of the tenant's and never the other way round.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use contract::EngineInfo;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use proto::realtime::Realtime;
use serde_json::{Map, Value, json};

use super::claims::{Refusal, Rules, principal, verify};
use super::door::Caller;
use super::keys::KeySet;
use super::principal::{Kind, Principal};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{RequestId, gather_body};
use crate::realtime;

pub(crate) const PREFIX: &str = "ek_";
const ISSUER: &str = "voxlane-client-secret";
/// The claim that holds the session's settings.
const SESSION: &str = "session";
/// Bytes of the settings as JSON: the whole value must fit a request's header.
const SESSION_BYTES_MAX: usize = 4_096;
const SECONDS_DEFAULT: u64 = 600;
const SECONDS: std::ops::RangeInclusive<u64> = 10..=7_200;

/// The key of this server's client secrets.
pub(crate) struct Minter {
    signing: EncodingKey,
    keys: KeySet,
    rules: Rules,
}

impl Minter {
    /// From the configured secret, so that every process with the same one takes the same client secrets;
    /// without one, from chance: then they are good for this process alone.
    ///
    /// # Errors
    /// When the operating system has no random bytes.
    pub(crate) fn new(secret: Option<&[u8]>, leeway_s: u64) -> std::io::Result<Self> {
        let key = match secret {
            Some(secret) => {
                let master = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
                aws_lc_rs::hmac::sign(&master, ISSUER.as_bytes()).as_ref().to_vec()
            }
            None => super::keys::random_secret()?.to_vec(),
        };
        let unusable = |_| std::io::Error::other("the client secrets' key cannot be used");
        Ok(Self {
            signing: EncodingKey::from_secret(&key).map_err(unusable)?,
            keys: KeySet::secret(&key).map_err(std::io::Error::other)?,
            rules: Rules {
                issuer: ISSUER.to_owned(),
                audience: ISSUER.to_owned(),
                tenant_claim: "tenant".to_owned(),
                leeway_s,
            },
        })
    }

    /// # Errors
    /// Why the value is not one of ours, or no longer.
    pub(crate) fn verify(&self, value: &str, now: u64) -> Result<Principal, Refusal> {
        let token = value.strip_prefix(PREFIX).ok_or(Refusal::Malformed)?;
        let claims = verify(token, &self.keys, &self.rules, now)?;
        let session = claims.get(SESSION).filter(|session| !session.is_null()).cloned().map(Arc::new);
        let found = principal(&claims, &self.rules.tenant_claim)?;
        Ok(Principal { kind: Kind::ClientSecret { session }, ..found })
    }

    fn mint(&self, caller: &Principal, session: &Value, now: u64, expires: u64) -> Option<String> {
        let claims = json!({
            "iss": ISSUER,
            "aud": ISSUER,
            "sub": &*caller.subject,
            "tenant": &*caller.tenant,
            "scope": "speak",
            "nbf": now,
            "exp": expires,
            SESSION: session,
        });
        let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.signing).ok()?;
        Some(format!("{PREFIX}{token}"))
    }
}

/// Makes one for the caller. It ends no later than the caller's own token, and allows speaking only.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    // Who asks comes first: nothing is read of a stranger's body.
    let caller = caller.0?;
    if matches!(caller.kind, Kind::ClientSecret { .. }) {
        let message = "a client secret cannot make another; use the server's own token";
        return Err(ApiError::new(axum::http::StatusCode::FORBIDDEN, "insufficient_scope", message));
    }
    let (parts, body) = request.into_parts();
    let (body, _room) = gather_body(&app, &parts.headers, body).await?;
    let Asked { seconds, session } = read(&body)?;
    let shown = settings(&app.engine()?.info(), &id.0, session.as_object())?;
    let now = crate::clock::unix_seconds();
    let expires = caller.expires.map_or(now + seconds, |end| end.min(now + seconds));
    let minter = &app.auth.policy().minter;
    let value = minter.mint(&caller, &session, now, expires).ok_or_else(ApiError::internal)?;
    let answer = json!({ "value": value, "expires_at": expires, "session": shown });
    let mut response = answer.to_string().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The settings of the session that will be, whole, which are held to what `session.update` holds them to: who makes
/// the token can mend them, and who is given it cannot.
fn settings(info: &EngineInfo, id: &str, given: Option<&Map<String, Value>>) -> Result<Value, ApiError> {
    let model = match given.and_then(|given| given.get("model")).unwrap_or(&Value::Null) {
        Value::Null => info.models.first().ok_or_else(ApiError::internal)?,
        Value::String(name) => realtime::named(info, name).map_err(|error| error.param("session.model"))?,
        _ => {
            let message = "session.model must be a string";
            return Err(ApiError::bad_request("wrong_type", message).param("session.model"));
        }
    };
    Realtime::settings(model, &format!("sess_{id}"), given).map_err(|mistake| {
        let refused = ApiError::bad_request(mistake.code, mistake.message);
        mistake.param.map_or(refused.clone(), |param| refused.param(param))
    })
}

struct Asked {
    seconds: u64,
    session: Value,
}

/// A whole number, however JSON writes it: `600.0` is one.
fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e9).contains(number));
    value.as_u64().or_else(|| float().map(|number| number as u64))
}

fn read(body: &[u8]) -> Result<Asked, ApiError> {
    let invalid = |code, param: &str, message: String| ApiError::bad_request(code, message).param(param);
    let body: Map<String, Value> = if body.trim_ascii().is_empty() {
        Map::new()
    } else {
        let wrong = |_| ApiError::bad_request("invalid_json", "the body must be one JSON object");
        serde_json::from_slice(body).map_err(wrong)?
    };
    let known = |object: &Map<String, Value>, path: &str, known: [&str; 2]| {
        let Some(unknown) = object.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
        let shown: String = unknown.chars().filter(|c| !c.is_control()).take(64).collect();
        let message = format!("unknown field {path}{shown:?}; known: {}", known.join(", "));
        Err(invalid("unknown_field", &format!("{path}{shown}"), message))
    };
    known(&body, "", ["expires_after", SESSION])?;
    let seconds = match body.get("expires_after") {
        None | Some(Value::Null) => SECONDS_DEFAULT,
        Some(Value::Object(after)) => {
            known(after, "expires_after.", ["anchor", "seconds"])?;
            if after.get("anchor").is_some_and(|anchor| anchor != "created_at") {
                let message = "expires_after.anchor must be \"created_at\"".to_owned();
                return Err(invalid("field_out_of_range", "expires_after.anchor", message));
            }
            let seconds = after.get("seconds").map_or(Some(SECONDS_DEFAULT), whole);
            let within = seconds.filter(|seconds| SECONDS.contains(seconds));
            within.ok_or_else(|| {
                let message = "expires_after.seconds must be a whole number, 10 to 7200".to_owned();
                invalid("field_out_of_range", "expires_after.seconds", message)
            })?
        }
        Some(_) => {
            let message = "expires_after must be an object".to_owned();
            return Err(invalid("wrong_type", "expires_after", message));
        }
    };
    let session = body.get(SESSION).cloned().unwrap_or(Value::Null);
    if !session.is_null() && !session.is_object() {
        return Err(invalid("wrong_type", SESSION, "session must be an object".to_owned()));
    }
    if session.to_string().len() > SESSION_BYTES_MAX {
        let message = format!("session must be at most {SESSION_BYTES_MAX} bytes of JSON");
        return Err(invalid("field_out_of_range", SESSION, message));
    }
    Ok(Asked { seconds, session })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::principal::{Scope, Scopes};

    fn caller() -> Principal {
        Principal {
            subject: "s".into(),
            tenant: "acme".into(),
            scopes: Scopes::ALL,
            expires: None,
            kind: Kind::Token,
        }
    }

    #[test]
    fn a_client_secret_speaks_for_its_tenant_until_it_ends_and_in_every_process_with_the_secret() {
        let secret = [7_u8; 32];
        let minter = Minter::new(Some(&secret), 0).expect("a key");
        let session = json!({ "type": "realtime" });
        let value = minter.mint(&caller(), &session, 1_000, 1_600).expect("signed");
        assert!(value.starts_with("ek_ey"));
        let other = Minter::new(Some(&secret), 0).expect("a key");
        let found = other.verify(&value, 1_599).expect("taken");
        assert_eq!((&*found.tenant, found.expires), ("acme", Some(1_600)));
        assert!(found.scopes.allow(Scope::Speak) && !found.scopes.allow(Scope::Voices));
        assert_eq!(found.kind, Kind::ClientSecret { session: Some(Arc::new(session)) });
        assert_eq!(other.verify(&value, 1_600), Err(Refusal::Expired));
        assert_eq!(Minter::new(None, 0).expect("a key").verify(&value, 1_000), Err(Refusal::Signature));
    }

    #[test]
    fn the_body_is_bounded_and_every_mistake_is_named() {
        assert!(read(b"").is_ok_and(|asked| asked.seconds == 600));
        assert!(
            read(b"{\"expires_after\":{\"anchor\":\"created_at\",\"seconds\":10}}")
                .is_ok_and(|a| a.seconds == 10)
        );
        for (body, param) in [
            ("{\"expires_after\":{\"seconds\":9}}", "expires_after.seconds"),
            ("{\"expires_after\":{\"seconds\":7201}}", "expires_after.seconds"),
            ("{\"expires_after\":{\"seconds\":60.5}}", "expires_after.seconds"),
            ("{\"expires_after\":{\"anchor\":\"now\"}}", "expires_after.anchor"),
            ("{\"expires_after\":7}", "expires_after"),
            ("{\"expires_after\":{\"second\":60}}", "expires_after.second"),
            ("{\"session\":[]}", "session"),
            ("{\"sesion\":{}}", "sesion"),
        ] {
            let error = read(body.as_bytes()).err().expect("refused");
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
        let long = format!("{{\"session\":{{\"instructions\":\"{}\"}}}}", "x".repeat(5_000));
        assert_eq!(read(long.as_bytes()).err().map(|error| error.code), Some("field_out_of_range"));
        assert_eq!(read(b"[1]").err().map(|error| error.code), Some("invalid_json"));
    }
}
