//! A lost connection is taken up again: docs/protocol.md section 7.

mod rig;

use contract::{Epoch, FinishReason, Span};
use proto::session::{EngineCommand, Output};
use proto::wire::{CloseCode, Flags, Header, Received, ServerMessage};
use rig::Rig;

fn received(context: u16, epoch: u16, sequence: u32) -> Received {
    Received { context, epoch: Epoch(epoch), sequence }
}

/// Attaches and gives what is sent at once, unobserved: replayed packets repeat what the rig has seen.
fn attach(rig: &mut Rig, received: &[Received]) -> (Vec<ServerMessage>, Vec<Header>) {
    rig.session.handle_attach(rig.now, "r-2".to_owned(), received);
    let (mut messages, mut packets, mut bytes) = (Vec::new(), Vec::new(), 0);
    while let Some(output) = rig.session.poll_output() {
        match output {
            Output::SendText(text) => {
                bytes += text.len();
                messages.push(ServerMessage::from_json(&text).expect("a known message"));
            }
            Output::SendBinary(message) => {
                bytes += message.len();
                packets.push(Header::decode(&message).expect("a good header").0);
            }
            Output::SendPing(payload) => rig.pings.push(payload),
            Output::Said(_) | Output::Engine(EngineCommand::Playback { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    rig.session.handle_written(rig.now, bytes);
    (messages, packets)
}

fn resumed(messages: &[ServerMessage]) -> &proto::wire::ResumedContext {
    let ServerMessage::Resumed { resume, contexts, .. } = &messages[0] else { panic!("{:?}", messages[0]) };
    assert_eq!(resume, "r-2");
    &contexts[0]
}

#[test]
fn packets_the_client_lacks_are_sent_again_and_then_the_rest() {
    let mut rig = Rig::new();
    rig.say(1, "A long speech.");
    rig.speak(rig.key(1, 0), 20);
    let sent = rig.heard[&1].sequence;
    rig.session.handle_detach(rig.now);
    rig.drain();
    rig.speak(rig.key(1, 0), 5);
    assert_eq!(rig.heard[&1].sequence, sent, "nothing is sent without a socket");
    rig.wait(Span::from_millis(2_000));
    let (messages, packets) = attach(&mut rig, &[received(1, 0, sent - 10)]);
    let state = *resumed(&messages);
    assert_eq!((state.sequence, state.lost, state.text_sequence, state.ended), (sent - 9, 0, 1, false));
    let sequences: Vec<u32> = packets.iter().map(|header| header.sequence).collect();
    assert_eq!(sequences, (sent - 9..=sent + 20).collect::<Vec<_>>());
    assert!(!packets[0].flags.contains(Flags::START));
    assert_eq!(rig.session.counters().replayed, 10);
}

#[test]
fn what_left_the_window_is_counted_and_the_decoder_told_to_begin_anew() {
    let mut rig = Rig::new();
    rig.say(1, "A long speech.");
    for _ in 0..150 {
        rig.speak(rig.key(1, 0), 1);
        rig.wait(Span::from_millis(80));
    }
    let sent = rig.heard[&1].sequence;
    rig.session.handle_detach(rig.now);
    let (messages, packets) = attach(&mut rig, &[received(1, 0, sent - 400)]);
    let state = *resumed(&messages);
    assert_eq!((state.sequence, state.lost), (sent - 255, 144));
    assert_eq!(packets.len(), 256);
    assert!(packets[0].flags.contains(Flags::START));
}

#[test]
fn an_end_and_a_cancelled_that_were_not_seen_are_sent_again() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.say(2, "Hello there.");
    rig.session.handle_detach(rig.now);
    rig.drain();
    rig.speak_all(rig.key(1, 0), 2);
    let (messages, packets) = attach(&mut rig, &[received(1, 0, 0)]);
    assert!(!resumed(&messages).ended, "its packets are yet to be sent");
    assert!(matches!(messages.last(), Some(ServerMessage::End(end)) if end.reason == "done"));
    assert!(packets.last().unwrap().flags.contains(Flags::END));

    rig.speak(rig.key(2, 0), 2);
    rig.simple("cancel", 2);
    rig.finish(rig.key(2, 0), FinishReason::Cancelled, None);
    rig.session.handle_detach(rig.now);
    let (messages, packets) = attach(&mut rig, &[received(1, 0, 9), received(2, 0, 3)]);
    assert!(resumed(&messages).ended);
    assert!(matches!(&messages[1], ServerMessage::End(end) if end.context == 1));
    assert!(matches!(&messages[2], ServerMessage::Cancelled { context: 2, epoch: 1, .. }));
    assert!(packets.iter().all(|header| header.context == 1), "nothing of the old epoch");
}

#[test]
fn a_session_nobody_takes_up_ends_and_lets_its_engine_go() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.session.handle_detach(rig.now);
    rig.wait(Span::from_millis(9_900));
    assert_eq!(rig.closed, None);
    rig.wait(Span::from_millis(200));
    assert_eq!(rig.closed, Some(CloseCode::Idle));
    assert!(rig.engine[&rig.key(1, 0)].cancelled);
}

#[test]
fn resume_is_taken_only_as_the_first_message() {
    let mut rig = Rig::new();
    rig.text(r#"{"type":"resume","token":"r-0","received":[{"context":1,"epoch":0,"sequence":118}]}"#);
    assert_eq!(rig.resume, Some(("r-0".to_owned(), 1)));
    rig.session.handle_resume_refused(rig.now);
    rig.drain();
    assert_eq!(rig.errors(), ["resume_unknown"]);
    rig.text(r#"{"type":"resume","token":"r-0"}"#);
    assert_eq!(rig.errors(), ["resume_unknown", "resume_too_late"]);
    rig.say(1, "Hello there.");
    assert!(rig.engine.contains_key(&rig.key(1, 0)));
}

#[test]
fn a_peer_that_leaves_frees_the_engine_at_once() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.session.handle_peer_close(rig.now);
    rig.drain();
    assert!(rig.engine[&rig.key(1, 0)].cancelled);
    assert!(rig.session.is_closed());
    assert_eq!(rig.closed, None);
}
