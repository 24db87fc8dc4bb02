//! One bound on all that is open, HTTP and WebSocket alike; who comes beyond it is told, and let go of.

use std::time::Duration;

use gateway::config::Layers;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::support::{Answer, PATIENCE, Running, eventually, get, parse, start_with};

async fn serve(lines: &str) -> Running {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{lines}\n[engine]\nkind = \"scripted\"\n"
    );
    let config = Layers::default().text("test.toml", &text);
    start_with(config.resolve().and_then(|resolved| resolved.config()).expect("valid")).await
}

async fn open(server: &Running) -> f64 {
    server.metric("voxlane_connections_open", "").await
}

async fn over_unix(path: &std::path::Path) -> Answer {
    let mut socket = UnixStream::connect(path).await.expect("connects");
    let request = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let _ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("in time");
    parse(&answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_every_kind_share_one_bound_and_the_next_is_told_so() {
    let unix = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("connections-{}.sock", std::process::id()));
    let server = serve(&format!("connections_max = 3\nunix = {:?}", unix.display().to_string())).await;
    assert_eq!(get(server.public, "/v1/models").await.status, 200);
    let idle = TcpStream::connect(server.public).await.expect("connects");
    let first = client::connect(&server.address()).await.expect("connects");
    let second = client::connect(&server.address()).await.expect("connects");
    eventually("three are open", async || open(&server).await == 3.0).await;
    assert_eq!(server.metric("voxlane_sessions_open", "").await, 2.0, "two of them are sessions");

    let told = get(server.public, "/v1/models").await;
    assert_eq!((told.status, told.code().as_str()), (503, "overloaded"));
    assert_eq!((told.header("retry-after"), told.header("connection")), (Some("1"), Some("close")));
    match client::connect(&server.address()).await {
        Err(client::ClientError::Refused { status, .. }) => assert_eq!(status, 503),
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert_eq!(over_unix(&unix).await.status, 503, "the socket file has no places of its own");
    assert_eq!(server.metric("voxlane_connections_refused_total", "").await, 3.0);
    assert_eq!(server.metric("voxlane_errors_total", "overloaded").await, 3.0);
    assert_eq!(open(&server).await, 3.0, "who is told holds no place");
    let ready = get(server.admin, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["reason"], "every connection place is taken");

    // A place comes back when a socket has closed, not before, and whoever had it.
    drop(first);
    eventually("one has gone", async || open(&server).await == 2.0).await;
    assert_eq!(get(server.public, "/v1/models").await.status, 200);
    assert_eq!(over_unix(&unix).await.status, 200);
    assert_eq!(get(server.admin, "/readyz").await.status, 200);
    drop((idle, second));
    eventually("all have gone", async || open(&server).await == 0.0).await;
}

/// A browser whose token is refused is upgraded to hear it: that socket has a place too.
#[tokio::test(flavor = "multi_thread")]
async fn many_come_and_go_through_one_place_and_it_is_always_given_back() {
    let server = serve("connections_max = 1").await;
    for round in 0..20 {
        let session = client::connect(&server.address()).await;
        drop(session.unwrap_or_else(|error| panic!("{round}: {error}")));
        eventually("it is given back", async || open(&server).await == 0.0).await;
        assert_eq!(get(server.public, "/v1/models").await.status, 200, "{round}");
        eventually("it is given back", async || open(&server).await == 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_and_says_nothing_is_let_go_and_keeps_nobody_from_being_told() {
    let server = serve("connections_max = 1\nhandshake_timeout_ms = 1000").await;
    let session = client::connect(&server.address()).await.expect("connects");
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.public).await.expect("connects"));
    }
    // Behind all of them in the queue, and still answered.
    assert_eq!(get(server.public, "/v1/models").await.status, 503);
    for mut socket in silent {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "closed by the server");
    }
    drop(session);
    eventually("there is room", async || get(server.public, "/v1/models").await.status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_to_a_full_server_that_drains_hears_of_the_drain() {
    let mut server = serve("connections_max = 1\ndrain_grace_ms = 2000").await;
    let (mut sender, mut receiver, _ready) = client::connect(&server.address()).await.expect("connects");
    sender.open(crate::support::open(1, "steady")).await.expect("sent");
    sender.append(1, "One two three four five six seven eight nine ten eleven twelve.").await.expect("sent");
    crate::support::next(&mut receiver).await;
    server.begin_stop();
    eventually("it drains", async || get(server.admin, "/readyz").await.json()["reason"] == "draining").await;
    let told = get(server.public, "/v1/models").await;
    assert_eq!((told.status, told.code().as_str()), (503, "draining"));
    drop((sender, receiver));
    tokio::time::sleep(Duration::from_millis(10)).await;
    server.stopped().await;
}
