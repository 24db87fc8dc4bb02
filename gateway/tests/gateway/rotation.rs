//! A key set at a URL: keys come and go, strangers cannot make us flood it, and it may be down for a while.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::keyring::{Keyring, ask, claims};
use crate::support::{eventually, get, start};

/// A token service that serves whatever it holds; `None` is down.
struct Service {
    url: String,
    keys: Arc<Mutex<Option<String>>>,
    asked: Arc<AtomicUsize>,
}

impl Service {
    async fn start(keys: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/jwks.json", listener.local_addr().expect("an address"));
        let keys = Arc::new(Mutex::new(keys));
        let asked = Arc::new(AtomicUsize::new(0));
        let (held, counted) = (Arc::clone(&keys), Arc::clone(&asked));
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.expect("a connection");
                counted.fetch_add(1, Ordering::Relaxed);
                let mut head = [0; 4_096];
                let _read = socket.read(&mut head).await;
                let body = held.lock().expect("no panic").clone();
                let (status, body) = body.map_or(("503 Down", String::new()), |body| ("200 OK", body));
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _sent = socket.write_all(answer.as_bytes()).await;
            }
        });
        Self { url, keys, asked }
    }

    fn hold(&self, keys: Option<String>) {
        *self.keys.lock().expect("no panic") = keys;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Answers every request with these bytes, and counts them.
async fn answering(answer: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            counted.fetch_add(1, Ordering::Relaxed);
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut head = [0; 4_096];
                let _read = socket.read(&mut head).await;
                let _sent = socket.write_all(answer.as_bytes()).await;
                // What has no length goes on until somebody hangs up.
                if !answer.contains("content-length") {
                    let more = "x".repeat(65_536);
                    while socket.write_all(more.as_bytes()).await.is_ok() {}
                }
            });
        }
    });
    (format!("http://{address}/jwks.json"), asked)
}

/// Each is a failed fetch, counted as one, and its keys are never taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_service_that_sends_elsewhere_or_without_end_is_not_believed() {
    let ring = Keyring::new();
    let (elsewhere, followed) = answering(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n{:<2000}",
        set(&[ring.jwk("k")]).expect("keys")
    ))
    .await;
    for (what, answer) in [
        ("a redirect", format!("HTTP/1.1 302 Found\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n")),
        ("a body without end", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{".to_owned()),
        (
            "a length that is absurd",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n".to_owned(),
        ),
        ("an empty answer", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
    ] {
        let (url, asked) = answering(answer).await;
        let server = start(&format!("[auth]\njwks_url = {url:?}\n")).await;
        let failed = async || server.metric("voxlane_key_set_fetches_total", "failed").await;
        eventually(what, async || failed().await == 1.0).await;
        assert_eq!(ask(&server, &ring.rs256_named("k", &claims())).await.0, 503, "{what}");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{what}: asked once in 10 s");
        assert_eq!(get(server.admin, "/readyz").await.status, 503, "{what}");
    }
    assert_eq!(followed.load(Ordering::Relaxed), 0, "nobody goes where a redirect points");
}

fn set(keys: &[serde_json::Value]) -> Option<String> {
    Some(json!({ "keys": keys }).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_leaves_the_set_is_refused_within_a_refresh_and_a_new_one_is_taken_at_once() {
    let (old, new) = (Keyring::new(), Keyring::new());
    let service = Service::start(set(&[old.jwk("old")])).await;
    let config = format!("[auth]\njwks_url = {:?}\njwks_refresh_ms = 1000\n", service.url);
    let server = start(&config).await;
    eventually("the key set is there", async || get(server.admin, "/readyz").await.status == 200).await;
    let token = old.rs256_named("old", &claims());
    assert_eq!(ask(&server, &token).await.0, 200);
    service.hold(set(&[new.jwk("new")]));
    let clock = gateway::clock::Clock::start();
    eventually("the old key is gone", async || ask(&server, &token).await.0 == 401).await;
    let took = clock.origin().elapsed();
    assert!(took < Duration::from_millis(2_000), "refresh and a second: {took:?}");
    assert_eq!(ask(&server, &new.rs256_named("new", &claims())).await.0, 200);
    // Keys a set may not bring: secrets, short ones, ones for encryption.
    let secret = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, [7; 32]);
    service.hold(set(&[new.jwk("new"), json!({ "kty": "oct", "kid": "s", "alg": "HS256", "k": secret })]));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let header = jsonwebtoken::Header { kid: Some("s".to_owned()), ..jsonwebtoken::Header::default() };
    let signed = crate::keyring::hs256_by(&[7; 32], &header, &claims());
    assert_eq!(ask(&server, &signed).await.0, 401, "a secret that anyone can fetch is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_key_id_fetches_once_and_a_flood_of_them_no_more() {
    let (old, new) = (Keyring::new(), Keyring::new());
    let service = Service::start(set(&[old.jwk("old")])).await;
    let server = start(&format!("[auth]\njwks_url = {:?}\n", service.url)).await;
    eventually("the key set is there", async || get(server.admin, "/readyz").await.status == 200).await;
    // One fetch at the start, and one for each 10 s that have passed since: a busy machine may be slow.
    let clock = gateway::clock::Clock::start();
    let most = || 2 + usize::try_from(clock.origin().elapsed().as_secs() / 10).expect("few");
    let flood = new.rs256_named("unknown", &claims());
    for _ in 0..50 {
        assert_eq!(ask(&server, &flood).await.0, 401);
    }
    assert!(service.asked() < most(), "none in the first 10 s: {}", service.asked());
    // After that the new key is usable at once, though its refresh is minutes away.
    service.hold(set(&[old.jwk("old"), new.jwk("new")]));
    tokio::time::sleep(Duration::from_millis(10_100)).await;
    assert_eq!(ask(&server, &new.rs256_named("new", &claims())).await.0, 200);
    for _ in 0..20 {
        assert_eq!(ask(&server, &flood).await.0, 401);
    }
    assert!((2..=most()).contains(&service.asked()), "one in 10 s: {}", service.asked());
    assert_eq!(ask(&server, &old.rs256_named("old", &claims())).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_set_serves_until_its_age_ends_and_readiness_says_what_is_missing() {
    let ring = Keyring::new();
    let service = Service::start(set(&[ring.jwk("k")])).await;
    let config =
        format!("[auth]\njwks_url = {:?}\njwks_refresh_ms = 1000\njwks_max_age_ms = 4000\n", service.url);
    let server = start(&config).await;
    let token = ring.rs256_named("k", &claims());
    eventually("the key set is there", async || ask(&server, &token).await.0 == 200).await;
    service.hold(None);
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    assert_eq!(ask(&server, &token).await.0, 200, "the service is down, the set is young");
    service.hold(Some("not JSON".to_owned()));
    eventually("the set is too old", async || ask(&server, &token).await.0 == 503).await;
    let ready = get(server.admin, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.json()["reason"].as_str().is_some_and(|why| why.contains("key set")), "{}", ready.text());
    assert!(server.metric("voxlane_key_set_fetches_total", "failed").await >= 1.0);
    service.hold(set(&[ring.jwk("k")]));
    eventually("the service is back", async || ask(&server, &token).await.0 == 200).await;
}
