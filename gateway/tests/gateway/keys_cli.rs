//! Keys as an operator meets them: the command line, refusals to start, and what logs never hold.

use serde_json::json;

use crate::cli::{serve, serve_at, stderr, voxlane};
use crate::keyring::{API_KEY, Keyring, SECRET, claims, claims_with, hs256};
use crate::support::{get, request};

#[test]
fn an_address_that_others_reach_needs_keys_and_loopback_without_them_is_loud() {
    let open = voxlane(&["serve", "--engine", "scripted", "--listen", "0.0.0.0:0", "--admin", "127.0.0.1:0"]);
    assert_eq!(open.status.code(), Some(2));
    for word in ["auth.secret_file", "auth.jwks_url", "loopback"] {
        assert!(stderr(&open).contains(word), "{}", stderr(&open));
    }
    let ring = Keyring::new();
    ring.write("voxlane.toml", &ring.config(""));
    let config = ring.path("voxlane.toml");
    let admin = [
        "serve",
        "--engine",
        "scripted",
        "--config",
        &config,
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "0.0.0.0:0",
    ];
    let exposed = voxlane(&admin);
    assert_eq!(exposed.status.code(), Some(2));
    assert!(stderr(&exposed).contains("server.admin_remote"), "{}", stderr(&exposed));

    let guarded = serve_at("0.0.0.0:0", &["--config", &config]);
    let (code, log) = guarded.terminate();
    assert_eq!(code, Some(0));
    assert!(!log.contains("OPEN"), "{log}");
    let (_, log) = serve(&[]).terminate();
    assert!(log.contains("WARN") && log.contains("OPEN: no keys are set"), "{log}");
}

#[test]
fn keys_that_cannot_be_used_stop_the_start_and_say_which_and_why() {
    let ring = Keyring::new();
    ring.write("short", "too short\n");
    ring.write("empty.json", "{\"keys\":[]}");
    ring.write("none.toml", "");
    ring.write("p384.pem", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
    for (line, key, says) in [
        (format!("secret_file = {:?}", ring.path("short")), "auth.secret", "at least 32"),
        (format!("secret_file = {:?}", ring.path("missing")), "auth.secret_file", "missing"),
        (format!("public_keys = [{:?}]", ring.path("rsa-private.pem")), "auth.public_keys", "private key"),
        (format!("public_keys = [{:?}]", ring.path("p384.pem")), "auth.public_keys", "P-256"),
        (format!("public_keys = [{:?}]", ring.path("secret")), "auth.public_keys", "PEM"),
        (format!("jwks_file = {:?}", ring.path("empty.json")), "auth.jwks_file", "no key"),
        (format!("jwks_file = {:?}", ring.path("keys.toml")), "auth.jwks_file", "no key set"),
        (format!("api_keys_file = {:?}", ring.path("none.toml")), "auth.api_keys_file", "nobody"),
        ("jwks_url = \"http://keys.example/jwks.json\"".to_owned(), "auth.jwks_url", "https"),
        ("jwks_url = \"keys\"".to_owned(), "auth.jwks_url", "no URL"),
        (
            "jwks_url = \"https://keys.example\"\njwks_max_age_ms = 300000".to_owned(),
            "auth.jwks_url",
            "longer than auth.jwks_refresh_ms",
        ),
        (format!("secret = {SECRET:?}"), "auth.secret", "from the environment"),
        ("origins = [\"https://app.example/\"]".to_owned(), "auth.origins", "origin"),
    ] {
        ring.write("bad.toml", &format!("[auth]\n{line}\n"));
        let refused = voxlane(&[
            "serve",
            "--engine",
            "scripted",
            "--config",
            &ring.path("bad.toml"),
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ]);
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(key) && text.contains(says), "{line}: {text}");
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_signs_with_a_secret_or_a_private_key_and_the_server_takes_what_it_signs() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    for key in ["secret", "rsa-private.pem", "ec-private.pem"] {
        let signed = voxlane(&[
            "token",
            "--subject",
            "ann",
            "--tenant",
            "acme",
            "--key",
            &ring.path(key),
            "--ttl",
            "1m",
        ]);
        assert_eq!(signed.status.code(), Some(0), "{}", stderr(&signed));
        let token = String::from_utf8_lossy(&signed.stdout).trim().to_owned();
        assert_eq!(crate::keyring::ask(&server, &token).await.0, 200, "{key}");
    }
    // The environment's secret, a scope that does not speak, another audience.
    let with_secret = |arguments: &[&str]| {
        let signed = crate::cli::binary().args(arguments).env("VOXLANE_AUTH_SECRET", SECRET).output();
        String::from_utf8_lossy(&signed.expect("the binary runs").stdout).trim().to_owned()
    };
    let token = with_secret(&["token", "--subject", "ann"]);
    assert_eq!(crate::keyring::ask(&server, &token).await.0, 200);
    let token = with_secret(&["token", "--subject", "ann", "--scope", "voices", "--scope", "observe"]);
    assert_eq!(crate::keyring::ask(&server, &token).await.0, 403);
    let token = with_secret(&["token", "--subject", "ann", "--aud", "elsewhere"]);
    assert_eq!(crate::keyring::ask(&server, &token).await.0, 401);
    for wrong in [
        ["token", "--subject", "a", "--ttl", "1w", "--key", &ring.path("secret")],
        ["token", "--subject", "a", "--scope", "sing", "--key", &ring.path("secret")],
    ] {
        assert_eq!(voxlane(&wrong).status.code(), Some(2));
    }
    assert_eq!(voxlane(&["token", "--subject", "a"]).status.code(), Some(2), "nothing to sign with");
    assert_eq!(voxlane(&["token", "--subject", "a", "--key", &ring.path("rsa.pem")]).status.code(), Some(1));
}

#[test]
fn check_shows_where_a_secret_came_from_and_never_what_it_is() {
    let ring = Keyring::new();
    ring.write("plain.toml", "");
    let checked = crate::cli::binary()
        .args(["check", &ring.path("plain.toml")])
        .env("VOXLANE_AUTH_SECRET", SECRET)
        .env("VOXLANE_AUTH_ORIGINS", "https://a.example, https://b.example")
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(text.contains("# environment VOXLANE_AUTH_SECRET") && !text.contains("canary"), "{text}");
    assert!(text.contains("origins = [\"https://a.example\", \"https://b.example\"]"), "{text}");
}

/// Tokens go in by every way there is; logs at the default level, metrics and answers hold none of them.
#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_found_in_logs_metrics_or_answers() {
    let ring = Keyring::new();
    ring.write("voxlane.toml", &ring.config(""));
    let server = serve(&["--config", &ring.path("voxlane.toml")]);
    let address = server.public;
    let (good, expired) = (hs256(&claims()), hs256(&claims_with("exp", json!(1))));
    let mut answers = String::new();
    for token in [good.as_str(), expired.as_str(), API_KEY, "canary-wrong"] {
        let bearer = vec![("authorization", format!("Bearer {token}"))];
        let offered = vec![("sec-websocket-protocol", format!("voxlane.v1, bearer.{token}"))];
        for headers in [bearer, offered] {
            match client::connect_with_headers(&address.to_string(), &headers).await {
                Ok(_) => {}
                Err(error) => answers.push_str(&error.to_string()),
            }
        }
        let head = format!(
            "GET /v1/models?token={token} HTTP/1.1\r\nhost: {address}\r\nreferer: http://x.example/?t={token}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        answers.push_str(&request(address, &head).await.text());
        let head = format!(
            "POST /v1/realtime/client_secrets HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-api-key: {token}x\r\ncontent-length: 0\r\n\r\n"
        );
        answers.push_str(&request(address, &head).await.text());
    }
    answers.push_str(&get(address, "/v1/models").await.text());
    let (code, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
    assert!(log.contains("answered") && answers.contains("invalid_token"), "{log}");
    let tails = [good.rsplit('.').next(), expired.rsplit('.').next()];
    for secret in ["canary"].into_iter().chain(tails.into_iter().flatten()) {
        assert!(!log.contains(secret), "{log}");
        assert!(!answers.contains(secret), "{answers}");
    }
}
