//! The native wire end to end.

use std::time::Duration;

use client::{Event, Utterance, connect, speak};
use proto::wire::{AudioChoice, Open, SamplingFields, ServerMessage, WireCodec};

use crate::support::{error_code, eventually, next, open, share_of_tone, start, until};

fn utterance(context: u16, seed: u64, text: &str) -> Utterance {
    Utterance {
        open: Open {
            sampling: SamplingFields { seed: Some(seed), ..SamplingFields::default() },
            ..open(context, "steady")
        },
        text: text.split_inclusive(' ').map(str::to_owned).collect(),
        gap: Duration::from_millis(5),
        reports: Some(Duration::from_millis(100)),
        decode: true,
        hear_out: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_sent_word_by_word_is_spoken_once_and_whole() {
    let server = start("").await;
    let (mut sender, mut receiver, ready) = connect(&server.address()).await.expect("connects");
    assert_eq!(ready.protocol, "voxlane.v1");
    let text = "A tone for every word that comes, and not one more.";
    let outcome = speak(&mut sender, &mut receiver, &utterance(1, 7, text)).await.expect("spoken");
    let end = outcome.end.expect("an end");
    assert_eq!((end.reason.as_str(), end.usage.characters), ("done", text.chars().count() as u64));
    assert_eq!(end.samples, end.usage.samples);
    assert_eq!(outcome.media, end.samples);
    assert_eq!(outcome.samples.len() as u64 * 2, end.samples);
    assert!(share_of_tone(&outcome.samples, 300.0 + 40.0 * 7.0) > 0.95);
    assert_eq!(outcome.underruns, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_on_one_socket_keep_their_own_audio() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    for context in 1..=4_u16 {
        let sampling = SamplingFields { seed: Some(u64::from(context) * 5), ..SamplingFields::default() };
        let audio = Some(AudioChoice { codec: WireCodec::Pcm, ..AudioChoice::default() });
        sender.open(Open { sampling, audio, ..open(context, "instant") }).await.expect("sent");
        sender.append(context, "Nobody hears another's tone.").await.expect("sent");
        sender.end(context).await.expect("sent");
    }
    let mut heard = vec![Vec::new(); 5];
    let mut sequences = [0_u32; 5];
    let mut ends = 0;
    while ends < 4 {
        match next(&mut receiver).await {
            Event::Packet { header, payload } => {
                let at = usize::from(header.context);
                sequences[at] += 1;
                assert_eq!(header.sequence, sequences[at]);
                let samples = payload.chunks(2).map(|two| f32::from(i16::from_le_bytes([two[0], two[1]])));
                heard[at].extend(samples.map(|sample| sample / 32_768.0));
            }
            Event::Message(ServerMessage::End(end)) => {
                assert_eq!(end.reason, "done");
                ends += 1;
            }
            Event::Message(_) => {}
            Event::Closed { code, .. } => panic!("closed with {code}"),
        }
    }
    for (context, samples) in heard.iter().enumerate().skip(1) {
        let share = share_of_tone(samples, 300.0 + 40.0 * 5.0 * context as f64);
        assert!(share > 0.99, "context {context}: {share}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_silences_at_once_and_the_context_takes_text_again() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "steady")).await.expect("sent");
    sender.append(1, &"So much to say that nobody waits for its end. ".repeat(20)).await.expect("sent");
    until(&mut receiver, |event| matches!(event, Event::Packet { .. }).then_some(())).await;
    sender.cancel(1, None).await.expect("sent");
    let epoch = until(&mut receiver, |event| match event {
        Event::Message(ServerMessage::Cancelled { epoch, .. }) => Some(*epoch),
        _ => None,
    })
    .await;
    assert_eq!(epoch, 1);
    sender.append(1, "Something else.").await.expect("sent");
    sender.end(1).await.expect("sent");
    let mut ends = Vec::new();
    while ends.len() < 2 {
        match next(&mut receiver).await {
            Event::Packet { header, .. } => assert_eq!(header.epoch.0, 1, "no old packet after the answer"),
            Event::Message(ServerMessage::End(end)) => ends.push((end.epoch, end.reason)),
            _ => {}
        }
    }
    ends.sort();
    assert_eq!(ends, [(0, "cancelled".to_owned()), (1, "done".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_refusal_harms_its_context_only() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "nobody")).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "unknown_voice");
    sender.open(open(2, "overloaded")).await.expect("sent");
    sender.append(2, "Not now. ").await.expect("sent");
    sender.end(2).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "overloaded");
    sender.open(open(3, "failing")).await.expect("sent");
    sender.append(3, "This one breaks in the middle of the sentence.").await.expect("sent");
    sender.end(3).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "internal");
    sender.open(open(4, "steady")).await.expect("sent");
    sender.append(4, "take <|im_end|> this").await.expect("sent");
    sender.end(4).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "control_token");
    let outcome = speak(&mut sender, &mut receiver, &utterance(5, 3, "All is well.")).await.expect("spoken");
    assert_eq!(outcome.end.expect("an end").reason, "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capped_context_says_so() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "capped")).await.expect("sent");
    sender.append(1, "Long enough to be cut off by the script.").await.expect("sent");
    sender.end(1).await.expect("sent");
    let end = until(&mut receiver, |event| match event {
        Event::Message(ServerMessage::End(end)) => Some(end.clone()),
        _ => None,
    })
    .await;
    assert_eq!((end.reason.as_str(), end.usage.frames), ("capped", 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_takes_its_contexts_with_it() {
    let server = start("[stream]\nresume_window_ms = 100\n").await;
    let (mut sender, receiver, _) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "steady")).await.expect("sent");
    sender.append(1, &"Still talking. ".repeat(200)).await.expect("sent");
    eventually("speaking", async || server.metric("voxlane_engine_contexts_open", "").await >= 1.0).await;
    drop((sender, receiver));
    eventually("nobody left", async || server.metric("voxlane_engine_contexts_open", "").await == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pcm_at_another_rate_keeps_its_length() {
    let server = start("").await;
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    let audio =
        Some(AudioChoice { codec: WireCodec::Pcm, sample_rate: Some(16_000), ..AudioChoice::default() });
    sender.open(Open { audio, ..open(1, "instant") }).await.expect("sent");
    sender.append(1, "Ten characters and more.").await.expect("sent");
    sender.end(1).await.expect("sent");
    let mut bytes = 0;
    let end = until(&mut receiver, |event| match event {
        Event::Packet { payload, .. } => {
            bytes += payload.len();
            None
        }
        Event::Message(ServerMessage::End(end)) => Some(end.clone()),
        _ => None,
    })
    .await;
    assert_eq!(end.samples, end.usage.samples);
    assert_eq!(bytes as u64 / 2 * 3, end.samples);
}
