//! A server as it is run: TLS, a socket file, proxies, reload, usage log.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::cli::{serve, stderr, voxlane};
use crate::keyring::{API_KEY, Keyring};
use crate::support::{PATIENCE, eventually, get, parse, post, start};

/// Sends a request as it is and gives the whole answer.
async fn exchange(mut socket: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> crate::support::Answer {
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let _ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("in time");
    parse(&answer)
}

/// A TLS client that trusts one certificate.
async fn secure(
    address: std::net::SocketAddr,
    trusted: CertificateDer<'static>,
    name: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    connector.connect(name, TcpStream::connect(address).await?).await
}

/// A certificate for `name` that signs itself, and its key.
fn certificate(ring: &Keyring, stem: &str, name: &str) -> CertificateDer<'static> {
    let pair = rcgen::KeyPair::generate().expect("a key");
    let made = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name").self_signed(&pair);
    let made = made.expect("a certificate");
    ring.write(&format!("{stem}.crt"), &made.pem());
    ring.write(&format!("{stem}.key"), &pair.serialize_pem());
    CertificateDer::from_pem_slice(made.pem().as_bytes()).expect("a certificate")
}

const LIST: &str = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn tls_serves_http_and_sockets_and_plain_bytes_get_nothing() {
    let ring = Keyring::new();
    let trusted = certificate(&ring, "server", "localhost");
    let (cert, key) = (ring.path("server.crt"), ring.path("server.key"));
    let server = serve(&["--tls-cert", &cert, "--tls-key", &key]);
    let address = server.public;
    let socket = secure(address, trusted.clone(), "localhost").await.expect("a handshake");
    assert_eq!(exchange(socket, LIST).await.status, 200);
    // The page of this very server is an https page now.
    let with_origin = |origin: &str| LIST.replace("\r\n\r\n", &format!("\r\norigin: {origin}\r\n\r\n"));
    let socket = secure(address, trusted.clone(), "localhost").await.expect("a handshake");
    assert_eq!(exchange(socket, &with_origin("https://localhost")).await.status, 200);
    let socket = secure(address, trusted.clone(), "localhost").await.expect("a handshake");
    assert_eq!(exchange(socket, &with_origin("http://localhost")).await.status, 403);
    // A WebSocket through it.
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let mut request = "wss://localhost/v1/stream".into_client_request().expect("a request");
    request.headers_mut().insert("sec-websocket-protocol", "voxlane.v1".parse().expect("a header"));
    let socket = secure(address, trusted.clone(), "localhost").await.expect("a handshake");
    let (mut socket, _) = tokio_tungstenite::client_async(request, socket).await.expect("upgraded");
    let ready = futures_util::StreamExt::next(&mut socket).await.expect("a message").expect("readable");
    assert!(ready.into_text().expect("text").contains("\"ready\""));
    assert!(secure(address, trusted, "example.com").await.is_err(), "another name");
    let mut plain = TcpStream::connect(address).await.expect("connects");
    plain.write_all(LIST.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let _ended = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await.expect("in time");
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    drop(socket);
    let (code, _) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_takes_up_a_new_certificate_and_keeps_the_old_one_when_it_cannot() {
    let ring = Keyring::new();
    let old = certificate(&ring, "server", "localhost");
    let (cert, key) = (ring.path("server.crt"), ring.path("server.key"));
    // Time enough for a connection that stands idle through all of this.
    let text = format!("[server]\nhandshake_timeout_ms = 60000\ntls_cert = {cert:?}\ntls_key = {key:?}\n");
    ring.write("tls.toml", &text);
    let server = serve(&["--config", &ring.path("tls.toml")]);
    let (address, pid) = (server.public, server.child.id().to_string());
    let hangup = || {
        let told = std::process::Command::new("kill").args(["-HUP", &pid]).status().expect("kill");
        assert!(told.success());
    };
    let mut standing = secure(address, old.clone(), "localhost").await.expect("a handshake");
    let new = certificate(&ring, "server", "localhost");
    assert!(secure(address, new.clone(), "localhost").await.is_err(), "not before the hangup");
    hangup();
    eventually("the new one is shown", async || secure(address, new.clone(), "localhost").await.is_ok())
        .await;
    assert!(secure(address, old, "localhost").await.is_err());
    // A key of another certificate, half a file, none.
    certificate(&ring, "other", "localhost");
    let other = std::fs::read_to_string(ring.path("other.key")).expect("a key");
    for key in [other.as_str(), &other[..other.len() / 2], ""] {
        ring.write("server.key", key);
        hangup();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(secure(address, new.clone(), "localhost").await.is_ok());
    }
    // Who was there before has seen nothing of it.
    standing.write_all(LIST.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let _ended = tokio::time::timeout(PATIENCE, standing.read_to_end(&mut answer)).await.expect("in time");
    assert!(answer.starts_with(b"HTTP/1.1"), "{answer:?}");
    let (code, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
    assert_eq!(log.matches("cannot be reloaded").count(), 3, "{log}");
}

#[test]
fn a_self_signed_certificate_is_made_and_its_fingerprint_told() {
    let (code, log) = serve(&["--tls-self-signed"]).terminate();
    assert_eq!(code, Some(0));
    assert!(log.contains("SELF-SIGNED") && log.contains("sha256") && log.contains("127.0.0.1"), "{log}");
    let ring = Keyring::new();
    certificate(&ring, "one", "localhost");
    certificate(&ring, "two", "localhost");
    ring.write("none", "nothing");
    for (cert, key, says) in [
        ("one.crt", "two.key", "server.tls_key"),
        ("none", "one.key", "server.tls_cert"),
        ("one.crt", "none", "server.tls_key"),
        ("missing", "one.key", "server.tls_cert"),
    ] {
        let (cert, key) = (ring.path(cert), ring.path(key));
        let refused = voxlane(&[
            "serve",
            "--engine",
            "scripted",
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ]);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_file_serves_a_proxy_on_this_machine_and_only_a_trusted_one_is_believed() {
    let ring = Keyring::new();
    let path = ring.path("voxlane.sock");
    // Left by a process that died.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket file"));
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nunix = {path:?}\ntrusted_proxies = [\"unix\"]\n[engine]\nkind = \"scripted\"\n"
    );
    let config = gateway::config::Layers::default().text("test.toml", &text);
    let config = config.resolve().and_then(|r| r.config()).expect("valid");
    let _server = crate::support::start_with(config.clone()).await;
    let socket = UnixStream::connect(&path).await.expect("connects");
    assert_eq!(exchange(socket, LIST).await.status, 200);
    // The proxy has ended TLS: the page it serves is ours, over https.
    let proxied = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\norigin: https://localhost\r\nforwarded: for=203.0.113.7;proto=https\r\n\r\n";
    let socket = UnixStream::connect(&path).await.expect("connects");
    assert_eq!(exchange(socket, proxied).await.status, 200);
    let socket = TcpStream::connect(_server.public).await.expect("connects");
    assert_eq!(exchange(socket, proxied).await.status, 403, "a stranger's word");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o660);
    // A file in use, and one that is no socket, are left alone.
    assert!(gateway::Server::bind(config.clone(), None).is_err());
    let mut other = config;
    other.server.unix = Some(ring.path("secret").into());
    assert!(gateway::Server::bind(other, None).is_err());
    assert!(std::fs::read_to_string(ring.path("secret")).expect("read").starts_with("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reloads_keys_origins_and_log_level_and_keeps_the_old_ones_when_it_cannot() {
    let ring = Keyring::new();
    let write = |more: &str, log: &str| {
        ring.write("voxlane.toml", &format!("{}[log]\nfilter = {log:?}\n", ring.config(more)));
    };
    write("", "info");
    let server = serve(&["--config", &ring.path("voxlane.toml")]);
    let (address, pid) = (server.public, server.child.id().to_string());
    let hangup = || {
        let told = std::process::Command::new("kill").args(["-HUP", &pid]).status().expect("kill");
        assert!(told.success());
    };
    let asked = async |key: &str, more: &str| {
        let head = format!(
            "GET /v1/models HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Bearer {key}\r\n{more}\r\n"
        );
        crate::support::request(address, &head).await.status
    };
    let new = "a-new-key-of-decent-length";
    assert_eq!((asked(API_KEY, "").await, asked(new, "").await), (200, 401));
    assert_eq!(asked(API_KEY, "origin: https://app.example\r\n").await, 403);
    ring.write("keys.toml", &format!("[[key]]\nname = \"ci\"\nkey = {new:?}\nscopes = [\"speak\"]\n"));
    write("origins = [\"https://app.example\"]", "error");
    hangup();
    eventually("the new key is taken", async || asked(new, "").await == 200).await;
    assert_eq!(asked(API_KEY, "").await, 401);
    assert_eq!(asked(new, "origin: https://app.example\r\n").await, 200);
    // A configuration that cannot be read changes nothing.
    ring.write("keys.toml", "[[key]]\nname = ");
    hangup();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(asked(new, "").await, 200);
    // Nor does one without keys, as a file that is being written is for a moment: it would open the server.
    for text in ["", "[log]\nfilter = \"error\"\n"] {
        ring.write("voxlane.toml", text);
        hangup();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert_eq!((asked(new, "").await, asked("", "").await), (200, 401));
    }
    let (code, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
    assert_eq!(log.matches("cannot be reloaded").count(), 3, "{log}");
    assert!(log.contains("opens no server that had keys"), "{log}");
    let answered = log.matches("answered").count();
    assert!((2..8).contains(&answered), "logged until the level changed: {answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_spoken_stands_in_the_usage_log_once_and_no_text_does() {
    let ring = Keyring::new();
    let path = ring.path("usage.jsonl");
    let server = start(&format!("[log]\nusage = {path:?}\n")).await;
    let text = "The purple canary sings.";
    let body = json!({ "input": text, "response_format": "pcm" }).to_string();
    let answer = post(server.public, "/v1/audio/speech", &body).await;
    assert_eq!(answer.status, 200);
    let (mut sender, mut receiver, ready) = client::connect(&server.address()).await.expect("connects");
    sender.open(crate::support::open(3, "instant")).await.expect("sent");
    sender.append(3, text).await.expect("sent");
    sender.end(3).await.expect("sent");
    crate::support::until(&mut receiver, |event| {
        matches!(event, client::Event::Message(proto::wire::ServerMessage::End(_))).then_some(())
    })
    .await;
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).expect("a log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    eventually("both lines are there", async || lines().len() == 2).await;
    let lines = lines();
    for line in &lines {
        assert_eq!((&line["tenant"], &line["reason"]), (&json!("open"), &json!("done")), "{line}");
        assert!(line["frames"].as_u64().is_some_and(|frames| frames > 0), "{line}");
        assert!(line["audio_ms"].as_u64().is_some_and(|ms| ms > 500), "{line}");
        assert!(line["time"].as_u64().is_some_and(|time| time > 1_700_000_000), "{line}");
    }
    assert_eq!(lines[0]["door"], "speech");
    assert_eq!(lines[0]["request"].as_str(), answer.header("x-request-id"));
    assert_eq!(lines[0]["audio_ms"].as_u64(), Some(answer.body.len() as u64 / 48));
    assert_eq!(
        (&lines[1]["door"], &lines[1]["context"], &lines[1]["epoch"]),
        (&json!("stream"), &json!(3), &json!(0))
    );
    assert_eq!(lines[1]["request"].as_str(), Some(ready.session.as_str()));
    assert!(!std::fs::read_to_string(&path).expect("a log").contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_by_one_id_in_its_answer_its_errors_and_the_log() {
    let server = serve(&[]);
    let asked = crate::support::get(server.public, "/v1/models").await;
    let asked = asked.header("x-request-id").expect("an id").to_owned();
    let refused = crate::support::get(server.public, "/v1/nothing").await;
    // The error object's id is the header's: see `Answer::code`.
    assert_eq!(refused.code(), "not_found");
    let refused = refused.header("x-request-id").expect("an id").to_owned();
    assert_ne!(asked, refused);
    let (mut sender, mut receiver, ready) =
        client::connect(&server.public.to_string()).await.expect("connects");
    sender.raw(tokio_tungstenite::tungstenite::Message::text("{}")).await.expect("sent");
    let wrong = crate::support::until(&mut receiver, |event| match event {
        client::Event::Message(proto::wire::ServerMessage::Error(error)) => {
            Some(error.error.request_id.clone())
        }
        _ => None,
    })
    .await;
    assert!(wrong.starts_with(&format!("{}-", ready.session)), "{wrong} of {}", ready.session);
    drop((sender, receiver));
    let (_, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    for id in [&asked, &refused, &ready.session] {
        assert!(log.lines().any(|line| line.contains(&format!("request=\"{id}\""))), "{id} in {log}");
    }
    assert!(log.contains(&format!("session=\"{}\"", ready.session)), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_takes_up_quotas_of_requests_and_of_voices() {
    let ring = Keyring::new();
    let folder = ring.path("voices");
    let write = |requests: u32, voices: u32| {
        let quotas = format!("[quotas]\nrequests_per_minute = {requests}\n");
        let voices = format!("[voices]\nfolder = {folder:?}\nper_tenant_max = {voices}\n");
        ring.write("voxlane.toml", &(quotas + &voices));
    };
    write(0, 1);
    let server = serve(&["--config", &ring.path("voxlane.toml")]);
    let (address, pid) = (server.public, server.child.id().to_string());
    let bring = async |name: &str| {
        let parts: [(&str, &[u8]); 3] =
            [("name", name.as_bytes()), ("consent", b"yes"), ("audio", crate::voices::CLARA)];
        crate::voices::upload_to(address, None, &parts).await.status
    };
    let speak = async || {
        let body = json!({ "input": "Hi.", "voice": "instant", "response_format": "pcm" }).to_string();
        post(address, "/v1/audio/speech", &body).await.status
    };
    assert_eq!((bring("one").await, bring("two").await), (200, 429));
    for _ in 0..5 {
        assert_eq!(speak().await, 200);
    }
    write(3, 2);
    assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().expect("kill").success());
    eventually("two voices may be kept", async || bring("two").await == 200).await;
    eventually("three requests a minute", async || speak().await == 429).await;
    assert_eq!(tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic").0, Some(0));
}

#[test]
fn a_configuration_that_cannot_work_is_refused_at_start() {
    let ring = Keyring::new();
    for (line, says) in [
        ("tls_cert = \"a.pem\"", "server.tls_key"),
        ("tls_key = \"a.pem\"", "server.tls_cert"),
        ("trusted_proxies = [\"10.0.0.0/40\"]", "server.trusted_proxies"),
        ("unix = \"/nowhere/at/all.sock\"", "server.unix"),
        ("\n[log]\nusage = \"/nowhere/at/all.jsonl\"", "log.usage"),
    ] {
        ring.write("bad.toml", &format!("[server]\n{line}\n"));
        let path = ring.path("bad.toml");
        let refused = voxlane(&[
            "serve",
            "--engine",
            "scripted",
            "--config",
            &path,
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ]);
        assert!(!refused.status.success());
        assert!(stderr(&refused).contains(says), "{line}: {}", stderr(&refused));
    }
}

/// Whoever watches a counter must see it before the first thing it counts.
#[tokio::test(flavor = "multi_thread")]
async fn counters_without_labels_stand_at_zero_before_anything_has_happened() {
    let server = start("").await;
    let text = get(server.admin, "/metrics").await.text();
    for name in
        ["connections_refused", "panics", "sessions", "slow_readers", "tls_failures", "usage_lines_lost"]
    {
        let line = format!("voxlane_{name}_total 0");
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
}
