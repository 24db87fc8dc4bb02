//! Everything that is decided before a session: paths, methods, headers, origins.

use crate::support::{get, post, request, start};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_an_error_object() {
    let server = start("").await;
    let missing = get(server.public, "/v1/nothing").await;
    assert_eq!((missing.status, missing.code().as_str()), (404, "not_found"));
    let wrong = get(server.public, "/v1/audio/speech").await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "method_not_allowed"));
    assert_eq!(wrong.header("allow"), Some("POST"));
    let wrong = post(server.public, "/v1/models", "{}").await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "method_not_allowed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_refused_with_the_status_that_says_why() {
    let server = start("").await;
    let host = server.public;
    let good = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("sec-websocket-protocol", "voxlane.v1"),
    ];
    for (change, value, status, code) in [
        ("upgrade", None, 426, "upgrade_required"),
        ("sec-websocket-version", Some("8"), 426, "websocket_version"),
        ("sec-websocket-key", None, 400, "websocket_key"),
        ("sec-websocket-protocol", None, 400, "subprotocol_required"),
        ("sec-websocket-protocol", Some("voxlane.v2"), 400, "subprotocol_required"),
        ("origin", Some("http://evil.example"), 403, "origin_not_allowed"),
        ("origin", Some("null"), 403, "origin_not_allowed"),
    ] {
        let mut head = format!("GET /v1/stream HTTP/1.1\r\nhost: {host}\r\n");
        for (name, kept) in good.iter().filter(|(name, _)| *name != change) {
            head.push_str(&format!("{name}: {kept}\r\n"));
        }
        if let Some(value) = value {
            head.push_str(&format!("{change}: {value}\r\n"));
        }
        if change != "upgrade" {
            // hyper keeps an upgraded connection; a refused one closes when told to.
            head = head.replace("connection: upgrade", "connection: upgrade, close");
        } else {
            head = head.replace("connection: upgrade", "connection: close");
        }
        let answer = request(host, &(head + "\r\n")).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{change}: {value:?}");
        if status == 426 {
            assert_eq!(answer.header("upgrade"), Some("websocket"), "{change}: {value:?}");
            assert_eq!(answer.header("sec-websocket-version"), Some("13"), "{change}: {value:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_header_is_refused_at_both_listeners() {
    let server = start("").await;
    for (address, path) in
        [(server.public, "/v1/models"), (server.admin, "/metrics"), (server.admin, "/livez")]
    {
        for host in ["host: evil.example\r\n", "host: 192.0.2.1\r\n", ""] {
            let head = format!("GET {path} HTTP/1.1\r\n{host}connection: close\r\n\r\n");
            let answer = request(address, &head).await;
            assert_eq!((answer.status, answer.code().as_str()), (403, "host_not_allowed"), "{path} {host}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_host_headers_are_refused_whatever_they_say() {
    let server = start("").await;
    for (address, path) in [(server.public, "/v1/models"), (server.admin, "/livez")] {
        for second in ["evil.example", "localhost"] {
            let hosts = format!("host: localhost\r\nhost: {second}\r\n");
            let head = format!("GET {path} HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
            let answer = request(address, &head).await;
            assert_eq!((answer.status, answer.code().as_str()), (400, "duplicate_field"), "{path} {second}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_long_is_refused_with_an_error_object_at_both_listeners() {
    let server = start("").await;
    for address in [server.public, server.admin] {
        let long = "x".repeat(9_000);
        let answer = get(address, &format!("/{long}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (414, "uri_too_long"));
        let answer = get(address, &format!("/livez?{long}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (414, "uri_too_long"));
        let headers: String = (0..5).map(|n| format!("x-{n}: {long}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
        let answer = request(address, &head).await;
        assert_eq!((answer.status, answer.code().as_str()), (431, "head_too_large"));
        // Beyond the bound of the HTTP library there is a status and no body.
        for head in [format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(70_000)), headers.repeat(2)] {
            let head = if head.starts_with("GET") {
                head
            } else {
                format!("GET / HTTP/1.1\r\nhost: {address}\r\n{head}\r\n")
            };
            let answer = request(address, &head).await;
            assert!(matches!(answer.status, 414 | 431), "{}", answer.status);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_side_refuses_with_error_objects_too() {
    let server = start("").await;
    let missing = get(server.admin, "/secrets").await;
    assert_eq!((missing.status, missing.code().as_str()), (404, "not_found"));
    let wrong = post(server.admin, "/metrics", "{}").await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "method_not_allowed"));
    assert!(wrong.header("allow").is_some_and(|allowed| allowed.contains("GET")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_lists_models_and_voices() {
    let server = start("").await;
    let models = get(server.public, "/v1/models").await.json();
    assert_eq!(
        (models["object"].as_str(), models["data"][0]["id"].as_str()),
        (Some("list"), Some("tts-scripted"))
    );
    let voices = get(server.public, "/v1/audio/voices").await.json();
    let names: Vec<_> =
        voices["data"].as_array().expect("a list").iter().map(|v| v["name"].clone()).collect();
    assert!(names.contains(&"steady".into()), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_side_tells_life_readiness_and_figures() {
    let server = start("").await;
    assert_eq!(get(server.admin, "/livez").await.status, 200);
    let ready = get(server.admin, "/readyz").await;
    assert_eq!((ready.status, ready.json()["ready"].as_bool()), (200, Some(true)));
    assert!(get(server.admin, "/metrics").await.text().contains("voxlane_lane_launches_total"));
    // Figures are not for the public side.
    assert_eq!(get(server.public, "/metrics").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_over_the_bound_are_refused_before_the_upgrade() {
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nsessions_max = 1\n[engine]\nkind = \"scripted\"\n";
    let config = gateway::config::Layers::default().text("test.toml", text);
    let server = crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    let first = client::connect(&server.address()).await.expect("connects");
    match client::connect(&server.address()).await {
        Err(client::ClientError::Refused { status, .. }) => assert_eq!(status, 503),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let ready = get(server.admin, "/readyz").await;
    assert_eq!(ready.status, 503);
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_dribbles_its_request_is_let_go() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nhandshake_timeout_ms = 300\n[engine]\nkind = \"scripted\"\n";
    let config = gateway::config::Layers::default().text("test.toml", text);
    let server = crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    let mut socket = tokio::net::TcpStream::connect(server.public).await.expect("connects");
    socket.write_all(b"GET / HT").await.expect("sent");
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(crate::support::PATIENCE, socket.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "closed by the server");
    crate::support::eventually("it is counted", async || {
        server.metric("voxlane_heads_refused_total", "timeout").await == 1.0
    })
    .await;
}

/// Two servers in one process, of which one is knocked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_counts_what_comes_to_it_and_nothing_of_another() {
    let (busy, idle) = (start("").await, start("").await);
    assert_eq!(get(busy.public, "/v1/nothing").await.status, 404);
    assert_eq!(busy.metric("voxlane_errors_total", "not_found").await, 1.0);
    assert_eq!(idle.metric("voxlane_errors_total", "").await, 0.0);
    // Connections are counted in and out, those of whoever reads the figures not at all; a session is one.
    let open = async |server: &crate::support::Running| server.metric("voxlane_connections_open", "").await;
    assert_eq!(open(&idle).await, 0.0);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(tokio::net::TcpStream::connect(busy.public).await.expect("connects"));
    }
    let session = client::connect(&busy.address()).await.expect("connects");
    crate::support::eventually("four are open", async || open(&busy).await == 4.0).await;
    assert_eq!((busy.metric("voxlane_sessions_open", "").await, open(&idle).await), (1.0, 0.0));
    drop((held, session));
    crate::support::eventually("all have gone", async || open(&busy).await == 0.0).await;
}
