//! Going away politely.

use client::{Event, connect};
use proto::wire::ServerMessage;

use crate::support::{get, next, open, post, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_may_end_and_nothing_new_begins() {
    let mut server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    let (idle_sender, mut idle_receiver, _) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "steady")).await.expect("sent");
    sender.append(1, "This sentence is allowed to end.").await.expect("sent");
    sender.end(1).await.expect("sent");
    until(&mut receiver, |event| matches!(event, Event::Packet { .. }).then_some(())).await;
    server.begin_stop();
    until(&mut receiver, |event| matches!(event, Event::Message(ServerMessage::Goaway { .. })).then_some(()))
        .await;
    // An idle session is told and closed at once.
    assert_eq!(crate::support::close_code(&mut idle_receiver).await, 1_012);
    drop(idle_sender);
    let ready = get(server.admin, "/readyz").await;
    assert_eq!((ready.status, ready.json()["reason"].as_str()), (503, Some("draining")));
    let refused = post(server.public, "/v1/audio/speech", "{}").await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "draining"));
    assert!(refused.header("retry-after").is_some());

    let mut ended = false;
    loop {
        match next(&mut receiver).await {
            Event::Message(ServerMessage::End(end)) => {
                assert_eq!(end.reason, "done");
                ended = true;
            }
            Event::Closed { code, .. } => {
                assert!(ended, "closed with {code} before its end");
                break;
            }
            _ => {}
        }
    }
    server.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_grace_period_is_closed() {
    let config = "[stream]\nresume_window_ms = 0\n";
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndrain_grace_ms = 300\n\
         [engine]\nkind = \"scripted\"\n{config}"
    );
    let config = gateway::config::Layers::default().text("test.toml", &text);
    let mut server =
        crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "steady")).await.expect("sent");
    sender.append(1, &"No end in sight. ".repeat(200)).await.expect("sent");
    until(&mut receiver, |event| matches!(event, Event::Packet { .. }).then_some(())).await;
    server.begin_stop();
    assert_eq!(crate::support::close_code(&mut receiver).await, 1_001);
    server.stopped().await;
}
