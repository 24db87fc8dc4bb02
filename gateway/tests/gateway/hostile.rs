//! Bytes no well-meaning client sends. Each ends in a refusal; none harms a neighbour.

use client::connect;
use proto::wire::ServerMessage;
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::support::{close_code, error_code, open, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_no_protocol_are_refused_by_name() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
    for (text, code) in [
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        (deep.as_str(), "json_too_deep"),
        ("{\"type\":\"ping\",\"type\":\"ping\"}", "duplicate_field"),
        ("{\"type\":\"pong\"}", "unknown_type"),
        ("{\"type\":\"open\",\"context\":1,\"voise\":\"x\"}", "unknown_field"),
        ("{\"type\":\"open\",\"context\":\"1\"}", "wrong_type"),
        ("{\"type\":\"open\",\"context\":1,\"temperature\":1e999}", "invalid_json"),
        ("{\"type\":\"open\",\"context\":1,\"temperature\":-1}", "field_out_of_range"),
        ("{\"type\":\"text.append\",\"context\":9,\"sequence\":1,\"text\":\"a\"}", "unknown_context"),
        ("{\"type\":\"open\",\"context\":1,\"voice\":\"\\ud83d\"}", "lone_surrogate"),
    ] {
        sender.raw(Message::text(text)).await.expect("sent");
        assert_eq!(error_code(&mut receiver).await, code, "{text}");
    }
    sender.raw(Message::binary(vec![0xFF; 20])).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "bad_header");
    // The session goes on.
    sender.open(open(1, "instant")).await.expect("sent");
    sender.append(1, "Still here.").await.expect("sent");
    sender.end(1).await.expect("sent");
    until(&mut receiver, |event| {
        matches!(event, client::Event::Message(ServerMessage::End(_))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_closes_with_1009() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    sender.raw(Message::text("x".repeat(65_537))).await.expect("sent");
    assert_eq!(close_code(&mut receiver).await, 1_009);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_pings_closes_with_1008() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    for _ in 0..40 {
        // The server may already have closed.
        if sender.raw(Message::Ping(bytes::Bytes::from_static(b"flood"))).await.is_err() {
            break;
        }
    }
    assert_eq!(close_code(&mut receiver).await, 1_008);
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_on_an_open_socket_end_only_that_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = start("").await;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..20 {
        let mut socket = tokio::net::TcpStream::connect(server.public).await.expect("connects");
        let address = server.public;
        let head = format!(
            "GET /v1/stream HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             sec-websocket-protocol: voxlane.v1\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.expect("sent");
        let mut rubbish = Vec::new();
        for _ in 0..64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            rubbish.extend_from_slice(&state.to_be_bytes());
        }
        // The server may close before it has taken everything.
        drop(socket.write_all(&rubbish).await);
        drop(socket.shutdown().await);
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(crate::support::PATIENCE, socket.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the server must let go");
    }
    assert!(connect(&server.address()).await.is_ok());
    assert_eq!(server.metric("voxlane_panics_total", "").await, 0.0);
}
