//! A target that sends more than anybody can hear.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::adapters::{measure_with, server};
use crate::hostile::{impatient, one_clear_error, packet, until_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_sends_for_ever_and_faster_than_it_is_heard_does_not_hold_the_generator() {
    let endless = server(|socket| async move {
        let mut socket = until_text(socket, 24_000).await;
        // WebSocket frames of 20 ms each, a thousand to a write.
        let Message::Binary(one) = packet(1, 20) else { return };
        let length = u16::try_from(one.len()).expect("a short packet").to_be_bytes();
        let frames = [&[0x82, 126][..], &length, &one].concat().repeat(1_000);
        while socket.get_mut().write_all(&frames).await.is_ok() {}
    })
    .await;
    let target = format!("a=native+pcm,ws://{endless}");
    let run = tokio::spawn(async move { measure_with(&target, impatient()).await });
    let run =
        tokio::time::timeout(Duration::from_secs(20), run).await.expect("the run ends").expect("it runs");
    one_clear_error(&run, "sends for ever");
}
