//! Peers that do not read.

use std::time::Duration;

use client::{connect, connect_with_buffer};

use crate::support::{close_code, eventually, open, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_is_cut_and_others_are_not() {
    let config = "[stream]\nslow_reader_ms = 500\nlead_ms = 60000\nsend_buffer_bytes = 4096\nwrite_buffer_bytes = 16384\n";
    let server = start(config).await;
    let (mut slow, mut slow_receiver, _) =
        connect_with_buffer(&server.address(), Some(4_096)).await.expect("connects");
    let (mut other, mut other_receiver, _) = connect(&server.address()).await.expect("connects");
    // PCM of several contexts, so that the buffers fill within moments.
    for context in 1..=4 {
        let audio = proto::wire::AudioChoice {
            codec: proto::wire::WireCodec::Pcm,
            sample_rate: Some(48_000),
            ..Default::default()
        };
        slow.open(proto::wire::Open { audio: Some(audio), ..open(context, "instant") }).await.expect("sent");
        slow.append(context, &"Nobody listens to this. ".repeat(40)).await.expect("sent");
        slow.end(context).await.expect("sent");
    }
    eventually("the slow one is cut", async || server.metric("voxlane_slow_readers_total", "").await == 1.0)
        .await;
    // It reads at last, and finds out why.
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(10), close_code(&mut slow_receiver)).await,
        Ok(4_499)
    );
    eventually("its contexts are gone", async || {
        server.metric("voxlane_engine_contexts_open", "").await == 0.0
    })
    .await;
    other.open(open(1, "steady")).await.expect("sent");
    other.append(1, "Here is somebody.").await.expect("sent");
    other.end(1).await.expect("sent");
    crate::support::until(&mut other_receiver, |event| {
        matches!(event, client::Event::Message(proto::wire::ServerMessage::End(_))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_of_opus_who_does_not_read_finds_4499_whenever_it_looks() {
    // Little sound: everything fits the kernel's buffers, and only the unanswered ping shows the reader.
    let server = start("[stream]\nslow_reader_ms = 500\n").await;
    // Much sound: the Close must wait behind what the reader has not taken.
    let buffers = "[stream]\nslow_reader_ms = 500\nlead_ms = 60000\nsend_buffer_bytes = 4096\n";
    let stuck = start(buffers).await;
    let mut listeners = Vec::new();
    for (server, receive_buffer, words) in [(&server, None, 40), (&stuck, Some(4_096), 2_000)] {
        let (mut sender, receiver, _) =
            connect_with_buffer(&server.address(), receive_buffer).await.expect("connects");
        sender.open(open(1, "steady")).await.expect("sent");
        sender.append(1, &"Nobody listens. ".repeat(words)).await.expect("sent");
        listeners.push((sender, receiver));
    }
    // Longer than the linger of any other close.
    tokio::time::sleep(Duration::from_millis(5_000)).await;
    for (sender, mut receiver) in listeners {
        assert_eq!(close_code(&mut receiver).await, 4_499);
        drop(sender);
    }
}
