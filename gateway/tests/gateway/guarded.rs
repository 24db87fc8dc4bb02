//! A server with keys, at its sockets: where a WebSocket's token comes from, what it may not see, when it
//! ends, and which pages and names are let in.

use client::{ClientError, Event, connect_with_headers};
use proto::wire::{ClientMessage, Received, Resume, ServerMessage};
use serde_json::json;

use crate::keyring::{API_KEY, Keyring, claims, claims_with, get_with, hs256, now, send};
use crate::support::{close_code, error_code, eventually, open, request, until};

fn bearer(token: &str) -> Vec<(&'static str, String)> {
    vec![("authorization", format!("Bearer {token}"))]
}

fn offered(token: &str) -> Vec<(&'static str, String)> {
    vec![("sec-websocket-protocol", format!("voxlane.v1, bearer.{token}"))]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_let_in_by_header_or_by_subprotocol_and_refused_by_status_or_by_4401() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let address = server.address();
    for headers in [bearer(API_KEY), bearer(&hs256(&claims())), offered(&hs256(&claims()))] {
        assert!(connect_with_headers(&address, &headers).await.is_ok());
    }
    for headers in [vec![], bearer("wrong"), bearer("")] {
        match connect_with_headers(&address, &headers).await {
            Err(ClientError::Refused { status, body }) => {
                assert_eq!(status, 401);
                assert!(body.contains("invalid_token"), "{body}");
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
    for (token, code) in [
        ("wrong".to_owned(), "invalid_token"),
        (hs256(&claims_with("exp", json!(now() - 1_000))), "token_expired"),
        (hs256(&claims_with("scope", json!("observe"))), "insufficient_scope"),
    ] {
        // The client takes an error in place of `ready` for unreadable, and says what came.
        match connect_with_headers(&address, &offered(&token)).await {
            Err(ClientError::Unreadable(what)) => assert!(what.contains(code), "{what}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
        let (error, close) = raw_refusal(&address, &token).await;
        assert_eq!((error.as_str(), close), (code, 4_401));
    }
    assert_eq!(server.metric("voxlane_errors_total", "invalid_token").await, 5.0);
    assert_eq!(server.metric("voxlane_errors_total", "token_expired").await, 2.0);
    assert_eq!(server.metric("voxlane_tokens_refused_total", "scope").await, 2.0);
    // They have taken no session's place.
    assert!(server.sessions().await <= 3);
}

/// The error and the close code of an upgrade whose subprotocol token is not taken, and that only our
/// protocol is ever named in the answer.
async fn raw_refusal(address: &str, token: &str) -> (String, u16) {
    use futures_util::StreamExt;
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    use tokio_tungstenite::tungstenite::protocol::Message;
    let mut request = format!("ws://{address}/v1/stream").into_client_request().expect("a request");
    let value = format!("voxlane.v1, bearer.{token}").parse().expect("a header");
    request.headers_mut().insert("sec-websocket-protocol", value);
    let socket = tokio::net::TcpStream::connect(address).await.expect("connects");
    let (mut socket, answer) = tokio_tungstenite::client_async(request, socket).await.expect("upgraded");
    assert_eq!(answer.headers()["sec-websocket-protocol"], "voxlane.v1");
    let mut code = String::new();
    loop {
        match socket.next().await.expect("a message").expect("readable") {
            Message::Text(text) => {
                let error: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                code = error["error"]["code"].as_str().expect("a code").to_owned();
                assert!(error["error"]["request_id"].as_str().is_some_and(|id| id.starts_with("r-")));
            }
            Message::Close(frame) => return (code, frame.expect("a frame").code.into()),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_mid_session_lets_the_turn_finish_and_closes_with_4401() {
    let ring = Keyring::new();
    let server = ring.serve("leeway_s = 0").await;
    let token = hs256(&claims_with("exp", json!(now() + 3)));
    let (mut sender, mut receiver, _) =
        connect_with_headers(&server.address(), &bearer(&token)).await.expect("connects");
    // Nine seconds of speech, of which the last leave three seconds before they sound: the token ends before.
    sender.open(open(1, "steady")).await.expect("sent");
    let text = "A sentence that is still being spoken when the token of its session ends, which is soon, and that goes on, and on";
    sender.append(1, text).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "token_expired");
    let ended = now();
    sender.open(open(2, "steady")).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "token_expired");
    let end = until(&mut receiver, |event| match event {
        Event::Message(ServerMessage::End(end)) => Some(end.clone()),
        _ => None,
    })
    .await;
    assert_eq!((end.context, end.reason.as_str()), (1, "done"));
    assert!(end.samples > 48_000, "the whole of it: {}", end.samples);
    assert_eq!(close_code(&mut receiver).await, 4_401);
    assert!(now() - ended < 30);
    assert!(server.metric("voxlane_sessions_closed_total", "close=\"token\"").await >= 1.0);
    // A quiet session closes when its token ends.
    let token = hs256(&claims_with("exp", json!(now() + 2)));
    let (_sender, mut receiver, _) =
        connect_with_headers(&server.address(), &bearer(&token)).await.expect("connects");
    assert_eq!(error_code(&mut receiver).await, "token_expired");
    assert_eq!(close_code(&mut receiver).await, 4_401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_taken_up_by_its_own_subject_only() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let address = server.address();
    let ann = bearer(&hs256(&claims()));
    let (sender, receiver, ready) = connect_with_headers(&address, &ann).await.expect("connects");
    drop((sender, receiver));
    let resume = || {
        let received: Vec<Received> = Vec::new();
        ClientMessage::Resume(Resume { token: ready.resume.clone(), received })
    };
    for stranger in [bearer(API_KEY), bearer(&hs256(&claims_with("sub", json!("eve"))))] {
        let (mut sender, mut receiver, _) =
            connect_with_headers(&address, &stranger).await.expect("connects");
        sender.send(&resume()).await.expect("sent");
        assert_eq!(error_code(&mut receiver).await, "resume_unknown");
    }
    let (mut sender, mut receiver, _) = connect_with_headers(&address, &ann).await.expect("connects");
    sender.send(&resume()).await.expect("sent");
    let session = until(&mut receiver, |event| match event {
        Event::Message(ServerMessage::Resumed { session, .. }) => Some(session.clone()),
        _ => None,
    })
    .await;
    assert_eq!(session, ready.session);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_pages_may_connect_and_only_they_may_read_answers() {
    let ring = Keyring::new();
    let good = "https://app.example";
    let server = ring.serve(&format!("origins = [{good:?}]")).await;
    let address = server.address();
    let token = hs256(&claims());
    let page = |origin: &str| {
        let mut headers = offered(&token);
        headers.push(("origin", origin.to_owned()));
        headers
    };
    assert!(connect_with_headers(&address, &page(good)).await.is_ok());
    assert!(connect_with_headers(&address, &page(&format!("http://{address}"))).await.is_ok());
    for origin in [
        "null",
        "https://app.example.evil",
        "https://app.example:444",
        "https://APP.example",
        "https://evil.example",
    ] {
        // Before the upgrade, whatever the token.
        match connect_with_headers(&address, &page(origin)).await {
            Err(ClientError::Refused { status, body }) => {
                assert_eq!(status, 403, "{origin}");
                assert!(body.contains("origin_not_allowed"), "{body}");
            }
            other => panic!("{origin}: {:?}", other.map(|_| ())),
        }
    }
    assert_eq!(server.metric("voxlane_errors_total", "origin_not_allowed").await, 5.0);

    let asked = [("origin", good), ("access-control-request-method", "POST")];
    let preflight = send(&server, "OPTIONS", "/v1/audio/speech", &asked, "").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some(good));
    assert!(preflight.header("access-control-allow-headers").is_some_and(|h| h.contains("authorization")));
    let token = format!("Bearer {token}");
    let models = get_with(&server, "/v1/models", &[("origin", good), ("authorization", &token)]).await;
    assert_eq!((models.status, models.header("access-control-allow-origin")), (200, Some(good)));
    assert_eq!(models.header("access-control-allow-credentials"), None);
    // A refusal can be read by the page, too.
    let refused = get_with(&server, "/v1/models", &[("origin", good)]).await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some(good)));
    for evil in ["https://evil.example", "null"] {
        let asked = [("origin", evil), ("access-control-request-method", "POST")];
        let preflight = send(&server, "OPTIONS", "/v1/audio/speech", &asked, "").await;
        assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (403, None));
        let models = get_with(&server, "/v1/models", &[("origin", evil), ("authorization", &token)]).await;
        assert_eq!((models.status, models.header("access-control-allow-origin")), (403, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_heads_are_refused_and_never_read_as_two_requests() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let (host, token) = (server.public, format!("authorization: Bearer {API_KEY}\r\n"));
    let many: String = (0..200).map(|at| format!("x-{at}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(65_536));
    for (head, status) in [
        (format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\n{token}{many}\r\n"), 431),
        (format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\n{token}{long}\r\n"), 431),
        (format!("GET /v1/models HTTP/1.1\r\n{token}\r\n"), 403),
        (
            format!(
                "GET http://{host}/v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{token}\r\n"
            ),
            200,
        ),
        // Length and chunks in one head, two lengths, a length that is none: pairs that smuggle.
        (
            format!(
                "POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\n{token}content-length: 4\r\ncontent-length: 9\r\n\r\n{{}}  GET /"
            ),
            400,
        ),
        (
            format!(
                "POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\n{token}content-length: +4\r\n\r\n{{}}  "
            ),
            400,
        ),
        (format!("GET /v1/models HTTP/1.1\r\nhost : {host}\r\n{token}\r\n"), 400),
        (format!("GET /v1/models HTTP/9.9\r\nhost: {host}\r\n{token}\r\n"), 400),
    ] {
        let answer = request(host, &head).await;
        assert_eq!(answer.status, status, "{}", &head[..head.len().min(120)]);
        let answers = answer.text().matches("HTTP/1.1 ").count();
        assert_eq!(answers, 0, "one answer to one request");
    }
    let unread = async |why: &str| server.metric("voxlane_heads_refused_total", why).await;
    eventually("each is counted", async || {
        unread("too_large").await == 2.0 && unread("malformed").await == 4.0
    })
    .await;
    let both = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\n{token}content-type: application/json\r\n\
         transfer-encoding: chunked\r\ncontent-length: 4\r\nconnection: close\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n"
    );
    let answer = request(host, &both).await;
    assert_eq!(answer.status, 400, "chunks are what counts, and the body is empty: {}", answer.text());
    assert!(!answer.text().contains("tts-scripted"), "what follows is not answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_not_listed_is_refused() {
    let ring = Keyring::new();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nhosts = [\"voice.example\"]\n[engine]\nkind = \"scripted\"\n{}",
        ring.config("")
    );
    let config = gateway::config::Layers::default().text("test.toml", &config);
    let server = crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    for (host, status) in [
        ("voice.example", 200),
        ("VOICE.example:8080", 200),
        ("voice.example.evil", 403),
        ("evil.example", 403),
    ] {
        let head = format!(
            "GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nauthorization: Bearer {API_KEY}\r\n\r\n"
        );
        let answer = request(server.public, &head).await;
        assert_eq!(answer.status, status, "{host}");
    }
    assert!(server.metric("voxlane_errors_total", "host_not_allowed").await >= 2.0);
}
