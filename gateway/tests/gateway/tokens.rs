//! Tokens, one line of the checklist a test: status, code and metric of each that is not taken.

use jsonwebtoken::{Algorithm, Header};
use serde_json::{Value, json};

use crate::keyring::{
    API_KEY, Keyring, ask, claims, claims_with, forged, get_with, hs256, hs256_by, now, send, signed,
};
use crate::support::{Running, get};

const INVALID: (u16, &str) = (401, "invalid_token");

async fn refused(server: &Running, token: &str, what: &str) {
    let refusals = async || server.metric("voxlane_tokens_refused_total", "").await;
    let before = refusals().await;
    let (status, code) = ask(server, token).await;
    assert_eq!((status, code.as_str()), INVALID, "{what}");
    assert_eq!(refusals().await, before + 1.0, "{what} is counted once");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_every_algorithm_and_a_static_key_are_taken() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    for token in [hs256(&claims()), ring.rs256(&claims()), ring.es256(&claims()), API_KEY.to_owned()] {
        assert_eq!(ask(&server, &token).await.0, 200);
    }
    for header in ["x-api-key", "xi-api-key"] {
        assert_eq!(get_with(&server, "/v1/models", &[(header, API_KEY)]).await.status, 200);
    }
    // An audience among several, and a subject that stands for its own tenant.
    for good in [claims_with("aud", json!(["other", "voxlane"])), claims_with("tenant", Value::Null)] {
        assert_eq!(ask(&server, &hs256(&good)).await.0, 200);
    }
    // The page needs none, and the answer to who has none says how.
    assert_eq!(get(server.public, "/").await.status, 200);
    let missing = get(server.public, "/v1/models").await;
    assert_eq!((missing.status, missing.header("www-authenticate")), (401, Some("Bearer")));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_and_broken_tokens_are_refused() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let good = hs256(&claims());
    let parts: Vec<&str> = good.split('.').collect();
    let other = hs256(&claims_with("sub", json!("eve")));
    let (_, other_signature) = other.rsplit_once('.').expect("three parts");
    let mut count = 0.0;
    for alg in ["none", "None", "NONE", "nOnE"] {
        let token = forged(&json!({ "alg": alg, "typ": "JWT" }).to_string(), &claims());
        refused(&server, &token, alg).await;
        let unsigned = token.rsplit_once('.').expect("three parts").0.to_owned() + ".";
        refused(&server, &unsigned, alg).await;
        count += 2.0;
    }
    for (what, token) in [
        ("empty signature", format!("{}.{}.", parts[0], parts[1])),
        ("no signature", format!("{}.{}", parts[0], parts[1])),
        ("signature of another token", format!("{}.{}.{other_signature}", parts[0], parts[1])),
        ("a dot too many", format!("{good}.")),
        ("doubled dots", good.replace('.', "..")),
        ("a leading dot", format!(".{good}")),
        ("two tokens", format!("{good}.{good}")),
        ("only dots", "..".to_owned()),
        ("padding", format!("{good}==")),
        ("a truncated token", good[..good.len() - 5].to_owned()),
        ("nothing", String::new()),
    ] {
        refused(&server, &token, what).await;
        count += 1.0;
    }
    assert_eq!(server.metric("voxlane_tokens_refused_total", "").await, count, "each is counted once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_key_is_never_a_secret() {
    let ring = Keyring::new();
    // Only the RSA key, so that no secret is in play.
    let config = format!("[auth]\npublic_keys = [{:?}]\n", ring.path("rsa.pem"));
    let server = crate::support::start(&config).await;
    assert_eq!(ask(&server, &ring.rs256(&claims())).await.0, 200);
    let header = Header::new(Algorithm::HS256);
    for secret in [ring.rsa_public.as_bytes(), ring.rsa_public.trim().as_bytes(), &ring.rsa_der] {
        refused(&server, &hs256_by(secret, &header, &claims()), "HS256 with the public key").await;
    }
    assert_eq!(server.metric("voxlane_tokens_refused_total", "unknown_key").await, 3.0);
    for other in [Algorithm::HS384, Algorithm::HS512] {
        let token = hs256_by(ring.rsa_public.as_bytes(), &Header::new(other), &claims());
        refused(&server, &token, "another algorithm").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_ids_are_only_compared_and_keys_in_a_token_are_never_used() {
    let ring = Keyring::new();
    let jwks = json!({ "keys": [ring.jwk("first")] });
    ring.write("jwks.json", &jwks.to_string());
    let server = crate::support::start(&format!("[auth]\njwks_file = {:?}\n", ring.path("jwks.json"))).await;
    assert_eq!(ask(&server, &ring.rs256_named("first", &claims())).await.0, 200);
    for id in ["../../etc/passwd", "first' OR '1'='1", "first\u{0}", "FIRST", "", "second"] {
        refused(&server, &ring.rs256_named(id, &claims()), id).await;
    }
    let duplicated = forged("{\"alg\":\"HS256\",\"kid\":\"first\",\"kid\":\"first\"}", &claims());
    refused(&server, &duplicated, "kid twice").await;
    // A stranger's key in the token itself.
    let stranger = Keyring::new();
    let header = json!({
        "alg": "RS256", "kid": "first", "jwk": stranger.jwk("first"),
        "jku": "http://127.0.0.1:1/jwks.json", "x5u": "http://127.0.0.1:1/x.pem",
    });
    let signed = stranger.rs256_named("first", &claims());
    let (_, body_and_signature) = signed.split_once('.').expect("three parts");
    let head = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, header.to_string());
    refused(&server, &format!("{head}.{body_and_signature}"), "an embedded key").await;
    refused(&server, &signed, "a stranger's signature").await;
    // A mebibyte of key id does not even reach the door: the request's head is bounded.
    let long = forged(&json!({ "alg": "HS256", "kid": "k".repeat(1 << 20) }).to_string(), &claims());
    let head =
        format!("GET /v1/models HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {long}\r\n\r\n", server.public);
    let answer = crate::support::request(server.public, &head).await;
    assert_eq!(answer.status, 431);
    let long = forged(&json!({ "alg": "HS256", "kid": "k".repeat(10_000) }).to_string(), &claims());
    refused(&server, &long, "a token longer than any of ours").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_whole_seconds_and_hold_on_both_sides_of_their_bounds() {
    let ring = Keyring::new();
    let server = ring.serve("leeway_s = 30").await;
    let set = |name: &str, value: Value| hs256(&claims_with(name, value));
    for (name, value) in [
        ("exp", json!("9999999999")),
        ("exp", json!(9_999_999_999.5)),
        ("exp", json!(-1)),
        ("exp", json!(9_223_372_036_854_775_808_u64)),
        ("exp", json!([9_999_999_999_u64])),
        ("exp", json!(true)),
        ("nbf", json!("1")),
        ("nbf", json!(1.5)),
        ("nbf", json!(9_223_372_036_854_775_808_u64)),
    ] {
        refused(&server, &set(name, value.clone()), &format!("{name} {value}")).await;
    }
    // Some seconds off each bound, for the time a request takes; the seconds themselves are a unit test's.
    for (name, value, good) in [
        ("exp", now() - 20, true),
        ("exp", now() - 31, false),
        ("nbf", now() + 28, true),
        ("nbf", now() + 60, false),
        // When a token was made says nothing.
        ("iat", now() + 1_000_000, true),
    ] {
        let (status, code) = ask(&server, &set(name, json!(value))).await;
        match (good, name) {
            (true, _) => assert_eq!(status, 200, "{name}"),
            (false, "exp") => assert_eq!((status, code.as_str()), (401, "token_expired")),
            (false, _) => assert_eq!((status, code.as_str()), INVALID),
        }
    }
    assert_eq!(server.metric("voxlane_tokens_refused_total", "expired").await, 1.0);
    assert_eq!(server.metric("voxlane_errors_total", "token_expired").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_required_claim_is_required_and_right() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    for name in ["exp", "nbf", "iss", "aud", "sub"] {
        refused(&server, &hs256(&claims_with(name, Value::Null)), name).await;
    }
    for (name, value) in [
        ("iss", json!("somebody")),
        ("iss", json!(7)),
        ("iss", json!(["voxlane"])),
        ("aud", json!("other")),
        ("aud", json!(["other"])),
        ("aud", json!([])),
        ("sub", json!("")),
        ("sub", json!(7)),
        ("sub", json!("a\nb")),
        ("sub", json!("ann\u{202e}nimda")),
        ("sub", json!("x".repeat(129))),
        ("tenant", json!("")),
        ("tenant", json!(["acme"])),
        ("scope", json!(7)),
        ("scope", json!(["speak", 7])),
    ] {
        refused(&server, &hs256(&claims_with(name, value.clone())), &format!("{name} {value}")).await;
    }
    // A claim twice: who reads the first and who reads the last would see different tokens.
    for twice in [
        json!({ "exp": 1 }),
        json!({ "sub": "eve" }),
        json!({ "tenant": "evil" }),
        json!({ "scope": "admin" }),
    ] {
        let (good, more) = (claims().to_string(), twice.to_string());
        let (good, more) = (good.trim_end_matches('}'), more.trim_start_matches('{'));
        let raw = format!("{good},{more}");
        refused(&server, &signed("{\"alg\":\"HS256\"}", &raw), &raw).await;
    }
    // A good token that may not: another status, so that nobody looks for another token.
    for scope in [Value::Null, json!(""), json!("observe"), json!("SPEAK"), json!("speaker")] {
        let (status, code) = ask(&server, &hs256(&claims_with("scope", scope))).await;
        assert_eq!((status, code.as_str()), (403, "insufficient_scope"));
    }
    for scope in [json!("profile speak"), json!(["speak"]), json!("admin")] {
        assert_eq!(ask(&server, &hs256(&claims_with("scope", scope))).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_url_is_not_read() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let token = hs256(&claims());
    for name in ["token", "access_token", "authorization", "api_key"] {
        let answer = get(server.public, &format!("/v1/models?{name}={token}")).await;
        assert_eq!((answer.status, answer.code().as_str()), INVALID);
        assert!(!answer.text().contains(&token));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_wrong_look_the_same() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let same = |answer: &crate::support::Answer| {
        let mut json = answer.json();
        json["error"]["request_id"] = Value::Null;
        (answer.status, json)
    };
    let missing = get(server.public, "/v1/models").await;
    for wrong in ["x", &API_KEY[1..], &hs256(&claims_with("iss", json!("x"))), &"k".repeat(40)] {
        let answer = get_with(&server, "/v1/models", &[("authorization", &format!("Bearer {wrong}"))]).await;
        assert_eq!(same(&answer), same(&missing));
    }
    let basic = get_with(&server, "/v1/models", &[("authorization", "Basic dTpw")]).await;
    assert_eq!(same(&basic), same(&missing));
    let two = [("authorization", format!("Bearer {API_KEY}")), ("x-api-key", "another".to_owned())];
    let two: Vec<(&str, &str)> = two.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(same(&get_with(&server, "/v1/models", &two).await), same(&missing));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_secret_lets_a_browser_speak_and_nothing_else() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let bearer = format!("Bearer {}", hs256(&claims_with("scope", json!("speak voices"))));
    let body = r#"{"expires_after":{"anchor":"created_at","seconds":60},"session":{"type":"realtime"}}"#;
    let path = "/v1/realtime/client_secrets";
    let answer = send(&server, "POST", path, &[("authorization", &bearer)], body).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
    let answer = answer.json();
    let value = answer["value"].as_str().expect("a value").to_owned();
    let expires = answer["expires_at"].as_u64().expect("a time");
    assert!(value.starts_with("ek_") && (now() + 58..=now() + 60).contains(&expires), "{answer}");
    assert_eq!(answer["session"]["type"], "realtime");
    assert_eq!(ask(&server, &value).await.0, 200);
    // It makes no other, is no token without its prefix, and a token is none with it.
    let again = format!("Bearer {value}");
    let again = send(&server, "POST", path, &[("authorization", &again)], "{}").await;
    assert_eq!((again.status, again.code().as_str()), (403, "insufficient_scope"));
    refused(&server, value.trim_start_matches("ek_"), "without its prefix").await;
    refused(&server, &format!("ek_{}", hs256(&claims())), "a token with the prefix").await;
    // It ends no later than who made it.
    let short = format!("Bearer {}", hs256(&claims_with("exp", json!(now() + 20))));
    let capped = send(&server, "POST", path, &[("authorization", &short)], body).await.json();
    assert!(capped["expires_at"].as_u64().is_some_and(|at| at <= now() + 20), "{capped}");
    let none = send(&server, "POST", path, &[], body).await;
    assert_eq!((none.status, none.code().as_str()), INVALID);
}
