//! A key service in every way of not answering: who is known goes on, who is not hears soon that nobody can say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::keyring::{Keyring, ask, claims, get_with};
use crate::support::{Running, eventually, get, request, start};

/// A fetch is given up after 5 s; the rest is the machine's.
const BOUND: Duration = Duration::from_secs(8);

#[derive(Clone, Debug)]
enum Mood {
    /// A set, after a while.
    Keys(Vec<Value>, Duration),
    /// These bytes, and the end.
    Says(&'static str),
    /// Takes the connection and says nothing.
    Hangs,
    /// A byte now and then, for ever.
    Dribbles,
    HangsUp,
    /// Nobody listens.
    Gone,
}

struct Service {
    url: String,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<AtomicUsize>,
}

impl Service {
    async fn start(mood: Mood) -> Self {
        let mut listener = Some(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        let address = listener.as_ref().and_then(|bound| bound.local_addr().ok()).expect("an address");
        let (mood, asked) = (Arc::new(Mutex::new(mood)), Arc::new(AtomicUsize::new(0)));
        let (held, counted) = (Arc::clone(&mood), Arc::clone(&asked));
        tokio::spawn(async move {
            loop {
                let wanted = !matches!(*held.lock().expect("no panic"), Mood::Gone);
                listener = match (wanted, listener.take()) {
                    (true, None) => TcpListener::bind(address).await.ok(),
                    (true, bound) => bound,
                    (false, _) => None,
                };
                let look_again = tokio::time::sleep(Duration::from_millis(20));
                let Some(listener) = &listener else {
                    look_again.await;
                    continue;
                };
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = look_again => continue,
                };
                counted.fetch_add(1, Ordering::Relaxed);
                let mood = held.lock().expect("no panic").clone();
                tokio::spawn(answer(accepted.expect("a connection").0, mood));
            }
        });
        Self { url: format!("http://{address}/jwks.json"), mood, asked }
    }

    fn be(&self, mood: Mood) {
        *self.mood.lock().expect("no panic") = mood;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

async fn answer(mut socket: TcpStream, mood: Mood) {
    let mut head = [0; 4_096];
    let _read = socket.read(&mut head).await;
    match mood {
        Mood::Keys(keys, after) => {
            tokio::time::sleep(after).await;
            let body = json!({ "keys": keys }).to_string();
            let length = body.len();
            let whole =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _sent = socket.write_all(whole.as_bytes()).await;
        }
        Mood::Says(bytes) => {
            let _sent = socket.write_all(bytes.as_bytes()).await;
        }
        Mood::Hangs => drop(socket.read(&mut head).await),
        Mood::Dribbles => {
            let _sent = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n").await;
            while socket.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Mood::HangsUp | Mood::Gone => {}
    }
}

async fn failed(server: &Running) -> f64 {
    server.metric("voxlane_key_set_fetches_total", "failed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_key_service_does_known_keys_are_taken_at_once_and_unknown_ones_refused_soon() {
    let (known, stranger) = (Keyring::new(), Keyring::new());
    let keys = Mood::Keys(vec![known.jwk("k")], Duration::ZERO);
    let service = Service::start(keys.clone()).await;
    let server = start(&format!("[auth]\njwks_url = {:?}\njwks_refresh_ms = 1000\n", service.url)).await;
    let (known, stranger) = (known.rs256_named("k", &claims()), stranger.rs256_named("s", &claims()));
    eventually("the key set is there", async || ask(&server, &known).await.0 == 200).await;
    assert_eq!(ask(&server, &stranger).await, (401, "invalid_token".to_owned()), "it has said all it knows");
    for mood in [
        Mood::Gone,
        Mood::HangsUp,
        Mood::Says("HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n"),
        Mood::Says("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}\n"),
        Mood::Says("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{\"keys\":["),
        Mood::Says("\0\u{1}\u{2} no HTTP \r\n\r\n"),
        Mood::Dribbles,
        Mood::Hangs,
    ] {
        let (before, asked) = (failed(&server).await, service.asked());
        service.be(mood.clone());
        // A refresh is under way, or has failed.
        eventually("a fetch", async || service.asked() > asked || failed(&server).await > before).await;
        for _ in 0..5 {
            let begun = Instant::now();
            assert_eq!(ask(&server, &known).await.0, 200, "{mood:?}");
            assert!(begun.elapsed() < Duration::from_secs(2), "{mood:?}: waits for nothing");
        }
        let begun = Instant::now();
        let bearer = format!("Bearer {stranger}");
        // Of a fetch that was under way before the mood changed the first may still profit.
        eventually("a failed fetch", async || failed(&server).await > before).await;
        let answer = get_with(&server, "/v1/models", &[("authorization", &bearer)]).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{mood:?}");
        assert_eq!(answer.header("retry-after"), Some("10"), "{mood:?}");
        assert!(begun.elapsed() < BOUND, "{mood:?}: {:?}", begun.elapsed());
        assert!(server.metric("voxlane_tokens_refused_total", "keys_unreachable").await >= 1.0);
        assert_eq!(get(server.admin, "/readyz").await.status, 200, "{mood:?}: a set is loaded");
    }
    service.be(keys);
    eventually("it is itself again", async || ask(&server, &stranger).await.0 == 401).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_unknown_keys_asks_a_hung_service_once_and_is_refused_within_the_bound() {
    let stranger = Keyring::new();
    let service = Service::start(Mood::Hangs).await;
    let server = start(&format!("[auth]\njwks_url = {:?}\n", service.url)).await;
    let begun = Instant::now();
    let ready = get(server.admin, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(
        ready.json()["reason"].as_str().is_some_and(|why| why.contains("auth.jwks_url")),
        "{}",
        ready.text()
    );
    let token = stranger.rs256_named("s", &claims());
    let flood: Vec<_> = (0..100)
        .map(async |_| {
            let answer = ask(&server, &token).await;
            (answer, begun.elapsed())
        })
        .collect();
    for (answer, took) in futures_util::future::join_all(flood).await {
        assert_eq!(answer, (503, "unavailable".to_owned()));
        assert!(took < BOUND, "{took:?}");
    }
    let most = 1 + usize::try_from(begun.elapsed().as_secs() / 10).expect("few");
    assert!(service.asked() <= most, "{} fetches", service.asked());
}

/// The fetch belongs to all who wait for it, not to the one whose token began it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_while_its_key_is_fetched_takes_the_fetch_from_nobody() {
    let (old, new) = (Keyring::new(), Keyring::new());
    let service = Service::start(Mood::Keys(vec![old.jwk("old")], Duration::ZERO)).await;
    let server = start(&format!("[auth]\njwks_url = {:?}\n", service.url)).await;
    eventually("the key set is there", async || get(server.admin, "/readyz").await.status == 200).await;
    service.be(Mood::Keys(vec![old.jwk("old"), new.jwk("new")], Duration::from_millis(1_500)));
    tokio::time::sleep(Duration::from_millis(10_100)).await;
    let asked = service.asked();
    let mut rude = TcpStream::connect(server.public).await.expect("connects");
    let head = format!(
        "GET /v1/models HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
        server.public,
        new.rs256_named("nobody's", &claims())
    );
    rude.write_all(head.as_bytes()).await.expect("sent");
    eventually("its key is asked for", async || service.asked() > asked).await;
    drop(rude);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(ask(&server, &new.rs256_named("new", &claims())).await.0, 200);
    assert_eq!(service.asked(), asked + 1);
}

/// A browser hears it on its socket: not 4401, upon which it would throw its token away.
#[tokio::test(flavor = "multi_thread")]
async fn a_browsers_token_that_nobody_can_judge_now_closes_its_socket_with_try_again() {
    let stranger = Keyring::new();
    let service = Service::start(Mood::HangsUp).await;
    let server = start(&format!("[auth]\njwks_url = {:?}\n", service.url)).await;
    let token = stranger.rs256_named("s", &claims());
    for (path, offered) in [
        ("/v1/stream", format!("voxlane.v1, bearer.{token}")),
        ("/v1/realtime?model=tts-scripted", format!("realtime, openai-insecure-api-key.{token}")),
        ("/tts/websocket", format!("bearer.{token}")),
        ("/v1/text-to-speech/steady/stream-input?output_format=pcm_24000", format!("bearer.{token}")),
    ] {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             sec-websocket-protocol: {offered}\r\n\r\n",
            server.public
        );
        // As bytes: a client library would refuse where no protocol is selected.
        let answer = request(server.public, &head).await;
        assert_eq!(answer.status, 101, "{path}");
        assert!(answer.text().contains("cannot be fetched"), "{path}: {}", answer.text());
        let close = [&[0x88, 10][..], &1013_u16.to_be_bytes(), b"overload"].concat();
        assert!(answer.body.windows(close.len()).any(|bytes| bytes == close), "{path}: {}", answer.text());
    }
}
