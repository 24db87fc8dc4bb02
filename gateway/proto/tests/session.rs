//! The native session, one sentence of behaviour a test.

mod rig;

use contract::{EngineError, FinishReason, Playback, Span};
use proto::session::{Message, TimeoutReason};
use proto::wire::{CloseCode, ServerMessage};
use rig::{Rig, config};

fn report(
    context: u16,
    epoch: u16,
    t: f64,
    played: u64,
    buffered: u64,
    state: &str,
    sequence: u32,
) -> String {
    format!(
        r#"{{"type":"playback","context":{context},"epoch":{epoch},"t":{t},"played":{played},"buffered":{buffered},"state":"{state}","underruns":0,"sequence":{sequence}}}"#
    )
}

#[test]
fn ready_comes_first_and_tells_bounds_models_and_voices() {
    let rig = Rig::new();
    let ServerMessage::Ready(ready) = &rig.messages[0] else { panic!("{:?}", rig.messages[0]) };
    assert_eq!((ready.protocol.as_str(), ready.session.as_str()), ("voxlane.v1", "s-1"));
    assert_eq!(ready.models[0].voices[1].layouts, ["whole"]);
    assert_eq!(ready.limits.message_bytes, 262_144);
}

#[test]
fn text_streamed_in_pieces_is_spoken_packed_and_ended_once() {
    let mut rig = Rig::new();
    rig.text(r#"{"type":"hello","trace":true}"#);
    rig.simple("open", 1);
    assert!(matches!(rig.last(), ServerMessage::Opened(opened) if opened.audio.pre_skip == 312));
    for (at, delta) in ["Good mor", "ning. ", "How are", " you?"].iter().enumerate() {
        rig.append(1, at as u32 + 1, delta);
        assert!(matches!(rig.last(), ServerMessage::TextAck { sequence, .. } if *sequence == at as u32 + 1));
    }
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].current, "Good morning. How are you");
    rig.simple("text.end", 1);
    assert_eq!(rig.engine[&key].segments, ["Good morning. How are you?"]);
    assert!(rig.engine[&key].finish);
    rig.speak(key, 2);
    let chunk = rig.messages.iter().find(|message| matches!(message, ServerMessage::Chunk(_)));
    assert!(
        matches!(chunk, Some(ServerMessage::Chunk(chunk)) if chunk.sequence == 1 && chunk.samples == 7_680 && chunk.lane == "urgent")
    );
    rig.speak(key, 3);
    rig.finish_segment(key);
    rig.finish(key, FinishReason::Done, None);
    let ServerMessage::End(end) = rig.last() else { panic!("{:?}", rig.last()) };
    assert_eq!((end.reason.as_str(), end.samples, end.usage.characters), ("done", 5 * 3_840, 26));
    let total: u64 = rig.heard[&1].packets.iter().map(|header| u64::from(header.duration)).sum();
    assert_eq!(total, 5 * 3_840 + 312);
}

#[test]
fn a_sequence_seen_twice_is_acknowledged_again_and_one_that_skips_is_refused() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.append(1, 1, "One ");
    rig.append(1, 1, "One ");
    rig.append(1, 3, "three");
    assert_eq!(rig.errors(), ["sequence_gap"]);
    rig.append(1, 2, "two.");
    rig.simple("text.end", 1);
    assert_eq!(rig.engine[&rig.key(1, 0)].segments, ["One two."]);
    assert_eq!(rig.session.counters().duplicates, 1);
}

#[test]
fn a_character_split_over_two_deltas_is_joined() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.text(r#"{"type":"text.append","context":1,"sequence":1,"text":"Hi \ud83d"}"#);
    rig.text(r#"{"type":"text.append","context":1,"sequence":2,"text":""}"#);
    rig.text(r#"{"type":"text.append","context":1,"sequence":3,"text":"\ude00 you"}"#);
    rig.simple("text.end", 1);
    assert_eq!(rig.errors(), [""; 0]);
    assert_eq!(rig.engine[&rig.key(1, 0)].segments, ["Hi 😀 you"]);
}

#[test]
fn half_a_character_alone_is_one_typed_error_and_the_rest_is_spoken() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.text(r#"{"type":"text.append","context":1,"sequence":1,"text":"\ude00Hi"}"#);
    assert_eq!(rig.errors(), ["lone_surrogate"]);
    rig.text(r#"{"type":"text.append","context":1,"sequence":1,"text":"Hi \ud83d"}"#);
    rig.append(1, 2, "you ");
    assert_eq!(rig.errors(), ["lone_surrogate"; 2]);
    rig.text(r#"{"type":"text.append","context":1,"sequence":3,"text":"all\ud83d"}"#);
    rig.simple("text.end", 1);
    assert_eq!(rig.errors(), ["lone_surrogate"; 3]);
    assert_eq!(rig.engine[&rig.key(1, 0)].segments, ["Hi you all"]);
}

#[test]
fn a_flush_speaks_what_there_is_and_keeps_the_epoch() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.append(1, 1, "Wait a");
    rig.simple("text.flush", 1);
    assert!(matches!(rig.last(), ServerMessage::TextFlushed { epoch: 0, sequence: 1, characters: 6, .. }));
    rig.append(1, 2, " moment.");
    rig.simple("text.end", 1);
    assert_eq!(rig.engine[&rig.key(1, 0)].segments, ["Wait a", "moment."]);
}

#[test]
fn a_cancel_says_what_was_heard_drops_the_old_epoch_and_the_context_speaks_again() {
    let mut rig = Rig::new();
    rig.say(1, "One two three four. And so on and on.");
    let old = rig.key(1, 0);
    rig.speak(old, 25);
    rig.wait(Span::from_millis(1_000));
    rig.simple("cancel", 1);
    let ServerMessage::Cancelled { epoch: 1, heard, .. } = rig.last() else { panic!("{:?}", rig.last()) };
    assert_eq!((heard.text.as_str(), heard.estimated), ("One two three four", true));
    assert_eq!(heard.samples, 48_000);
    assert!(rig.engine[&old].cancelled);
    // Whatever the old epoch still gives is dropped at the gates.
    let packets = rig.heard[&1].packets.len();
    rig.speak(old, 5);
    rig.append(1, 1, "Now this.");
    rig.simple("text.end", 1);
    rig.finish(old, FinishReason::Cancelled, None);
    assert_eq!(rig.reasons(), [(1, 0, "cancelled")]);
    assert_eq!(rig.heard[&1].packets.len(), packets);
    let new = rig.key(1, 1);
    rig.speak_all(new, 3);
    assert_eq!(rig.reasons(), [(1, 0, "cancelled"), (1, 1, "done")]);
    assert_eq!(rig.heard[&1].packets[packets].timestamp, 0);
    assert!(rig.session.counters().stale > 0);
}

#[test]
fn a_cancel_after_the_end_still_says_what_was_heard() {
    let mut rig = Rig::new();
    rig.say(1, "One two three four.");
    rig.speak_all(rig.key(1, 0), 20);
    assert_eq!(rig.reasons(), [(1, 0, "done")]);
    rig.wait(Span::from_millis(800));
    rig.text(r#"{"type":"cancel","context":1,"played":38400}"#);
    let ServerMessage::Cancelled { heard, .. } = rig.last() else { panic!("{:?}", rig.last()) };
    assert_eq!((heard.text.as_str(), heard.samples), ("One two", 38_400));
    assert_eq!(rig.reasons(), [(1, 0, "done")]);
}

#[test]
fn a_cancel_repeated_for_an_older_epoch_is_answered_again_without_a_new_one() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.text(r#"{"type":"cancel","context":1,"epoch":0}"#);
    assert!(matches!(rig.last(), ServerMessage::End(end) if end.reason == "cancelled" && end.epoch == 0));
    rig.session.handle_message(rig.now, Message::Text(r#"{"type":"cancel","context":1,"epoch":0}"#));
    let proto::session::Output::SendText(again) = rig.session.poll_output().unwrap() else { panic!() };
    assert!(again.contains(r#""type":"cancelled","context":1,"epoch":1"#), "{again}");
    rig.drain();
    rig.text(r#"{"type":"text.append","context":1,"epoch":0,"sequence":1,"text":"late"}"#);
    rig.text(r#"{"type":"text.append","context":1,"epoch":2,"sequence":1,"text":"early"}"#);
    assert_eq!(rig.errors(), ["epoch_ahead"]);
    assert!(rig.engine.is_empty());
}

#[test]
fn an_engine_that_refuses_harms_only_that_context() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.simple("open", 2);
    rig.refuse_text.push_back(EngineError::ControlToken { token: "<|x|>".to_owned() });
    rig.append(1, 1, "Bad <|x|> text");
    assert_eq!(rig.errors(), ["control_token"]);
    assert!(rig.engine[&rig.key(1, 0)].cancelled);
    rig.finish(rig.key(1, 0), FinishReason::Cancelled, None);
    rig.append(1, 2, "more");
    assert_eq!(rig.errors(), ["control_token", "context_ended"]);
    rig.append(2, 1, "Good text.");
    rig.simple("text.end", 2);
    rig.speak_all(rig.key(2, 0), 2);
    assert_eq!(rig.reasons(), [(1, 0, "failed"), (2, 0, "done")]);
}

#[test]
fn a_refused_open_and_a_failure_halfway_are_told_once_and_end_the_epoch() {
    let mut rig = Rig::new();
    rig.refuse_open = Some(EngineError::Overloaded { retry_after: Span::from_millis(250) });
    rig.say(1, "Hello there.");
    assert_eq!(rig.reasons(), [(1, 0, "failed")]);
    let error = rig.messages.iter().find_map(|message| match message {
        ServerMessage::Error(error) => Some(&error.error),
        _ => None,
    });
    assert_eq!(error.and_then(|error| error.retry_after_ms), Some(250));
    rig.say(2, "Hello there.");
    rig.speak(rig.key(2, 0), 2);
    rig.finish(rig.key(2, 0), FinishReason::Failed, Some(EngineError::NotFinite));
    assert_eq!(rig.errors(), ["overloaded", "not_finite"]);
    assert_eq!(rig.reasons()[1], (2, 0, "failed"));
    assert!(rig.heard[&2].last_packet_end, "what was made before is still ended well");
}

#[test]
fn a_full_mailbox_is_tried_again_after_its_hint() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.refuse_text.push_back(EngineError::Overloaded { retry_after: Span::from_millis(40) });
    rig.append(1, 1, "Hello there.");
    assert_eq!(rig.engine[&rig.key(1, 0)].current, "");
    assert_eq!(rig.session.poll_timeout().1, TimeoutReason::EngineRetry);
    rig.append(1, 2, " And more.");
    rig.wait(Span::from_millis(50));
    assert_eq!(rig.engine[&rig.key(1, 0)].current, "Hello there. And more");
    assert_eq!(rig.errors(), [""; 0]);
}

#[test]
fn text_that_runs_dry_is_released_after_300_ms_and_that_is_reported() {
    let mut rig = Rig::new();
    rig.held_bytes = 3;
    rig.simple("open", 1);
    rig.append(1, 1, "Hello wor");
    rig.wait(Span::from_millis(299));
    assert_eq!(rig.engine[&rig.key(1, 0)].released, 0);
    rig.wait(Span::from_millis(2));
    assert_eq!(rig.engine[&rig.key(1, 0)].current, "Hello wor");
    assert_eq!(rig.engine[&rig.key(1, 0)].released, 1);
    assert!(matches!(rig.last(), ServerMessage::TextReleased { held_bytes: 4, .. }));
    rig.wait(Span::from_millis(1_000));
    assert_eq!(rig.engine[&rig.key(1, 0)].released, 1);
}

#[test]
fn blank_text_is_a_typed_error_and_the_engine_never_hears_of_it() {
    let mut rig = Rig::new();
    rig.say(1, "  \n ... ");
    assert_eq!(rig.errors(), ["empty_text"]);
    assert_eq!(rig.reasons(), [(1, 0, "failed")]);
    assert!(rig.engine.is_empty());
}

#[test]
fn the_engine_gets_at_most_four_segments_ahead_and_the_rest_as_they_are_spoken() {
    let mut rig = Rig::new();
    rig.say(1, &"This sentence has some forty characters. ".repeat(40));
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].segments.len(), 4);
    for _ in 0..30 {
        rig.speak_all(key, 5);
        rig.wait(Span::from_millis(2_000));
    }
    assert_eq!(rig.reasons(), [(1, 0, "done")]);
    let text: String = rig.engine[&key].segments.join(" ");
    assert_eq!(text.trim(), "This sentence has some forty characters. ".repeat(40).trim());
}

#[test]
fn text_over_the_backlog_is_refused_whole_and_taken_later_under_the_same_number() {
    let mut config = config();
    config.limits.text_characters = 500;
    let mut rig = Rig::with(config);
    rig.simple("open", 1);
    let sentence = "This sentence has some forty characters. ".repeat(10);
    for sequence in 1..=3 {
        rig.append(1, sequence, &sentence);
    }
    assert_eq!(rig.errors(), ["text_too_long"]);
    rig.speak_all(rig.key(1, 0), 2);
    rig.append(1, 3, &sentence);
    assert_eq!(rig.errors(), ["text_too_long"]);
}

#[test]
fn packets_leave_at_most_three_seconds_ahead_and_a_pause_stops_them() {
    let mut rig = Rig::new();
    rig.say(1, "A long speech.");
    let key = rig.key(1, 0);
    rig.speak(key, 75);
    let sent = |rig: &Rig| rig.heard[&1].next_timestamp - 312;
    assert!((144_000..=144_960).contains(&sent(&rig)));
    // What has been heard is replaced a group at a time.
    rig.wait(Span::from_millis(500));
    assert!((168_000 - 10_560..=168_960).contains(&sent(&rig)), "{}", sent(&rig));
    let sequence = rig.heard[&1].sequence;
    rig.text(&report(1, 0, 10.0, 20_000, 148_000, "paused", sequence));
    assert_eq!(
        rig.engine[&key].playback,
        Some(Playback::Paused { played: Span::of_samples(20_000, 48_000) })
    );
    let before = sent(&rig);
    rig.wait(Span::from_millis(5_000));
    assert!(sent(&rig) - before <= 960);
    rig.text(&report(1, 0, 5_010.0, 20_000, 148_000, "playing", sequence));
    assert!(matches!(rig.engine[&key].playback, Some(Playback::Playing { .. })));
    rig.wait(Span::from_millis(1_000));
    assert!(sent(&rig) >= 20_000 + 48_000 + 144_000 - 10_560);
}

#[test]
fn a_socket_that_takes_nothing_stops_packets_and_is_closed_after_ten_seconds() {
    let mut rig = Rig::new();
    rig.write_now = false;
    rig.answer_pings = false;
    rig.text(r#"{"type":"open","context":1,"audio":{"codec":"pcm"}}"#);
    rig.append(1, 1, "A long speech.");
    rig.simple("text.end", 1);
    for _ in 0..90 {
        rig.speak(rig.key(1, 0), 1);
        rig.wait(Span::from_millis(80));
    }
    assert!(rig.session.unwritten_bytes() <= 65_536 + 2_000);
    assert_eq!(rig.closed, None);
    rig.wait(Span::from_millis(4_000));
    assert_eq!(rig.closed, Some(CloseCode::SlowReader));
    assert!(rig.engine[&rig.key(1, 0)].cancelled);
}

#[test]
fn a_peer_whose_kernel_takes_all_but_that_answers_no_ping_is_a_slow_reader_too() {
    let mut rig = Rig::new();
    rig.wait(Span::from_millis(1_500));
    rig.answer_pings = false;
    rig.say(1, "Hello there.");
    for _ in 0..150 {
        rig.speak(rig.key(1, 0), 1);
        rig.wait(Span::from_millis(80));
        if rig.closed.is_some() {
            break;
        }
    }
    assert_eq!(rig.closed, Some(CloseCode::SlowReader));
}

#[test]
fn floods_and_giants_are_closed_with_their_own_codes() {
    let mut rig = Rig::new();
    for t in 0..11 {
        rig.text(&format!(r#"{{"type":"ping","t":{t}}}"#));
    }
    assert_eq!(rig.closed, Some(CloseCode::Policy));
    let mut rig = Rig::new();
    for _ in 0..33 {
        assert_eq!(rig.closed, None);
        rig.text("{");
    }
    assert_eq!(rig.closed, Some(CloseCode::Policy));
    let mut rig = Rig::new();
    rig.text(&" ".repeat(262_145));
    assert_eq!(rig.closed, Some(CloseCode::TooBig));
}

#[test]
fn idle_sessions_and_contexts_end_by_themselves() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.append(1, 1, "Begun and never");
    rig.speak(rig.key(1, 0), 1);
    rig.wait(Span::from_millis(59_000));
    assert_eq!(rig.reasons(), []);
    rig.wait(Span::from_millis(2_000));
    rig.finish(rig.key(1, 0), FinishReason::Cancelled, None);
    assert_eq!(rig.reasons(), [(1, 0, "idle")]);
    rig.wait(Span::from_millis(58_000));
    assert_eq!(rig.closed, None);
    rig.wait(Span::from_millis(2_000));
    assert_eq!(rig.closed, Some(CloseCode::Idle));
}

#[test]
fn a_ninth_speaking_context_is_refused_and_ids_only_grow() {
    let mut rig = Rig::new();
    for context in 1..=9 {
        rig.say(context, "Hello there.");
    }
    assert_eq!(rig.errors()[0], "too_many_contexts");
    rig.simple("open", 8);
    assert_eq!(*rig.errors().last().unwrap(), "context_exists");
    rig.speak_all(rig.key(3, 0), 1);
    rig.say(10, "Hello there.");
    assert!(rig.engine.contains_key(&rig.key(10, 0)));
}

#[test]
fn a_drain_lets_running_contexts_end_and_takes_no_new_ones() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.session.handle_drain(rig.now, "restart", Span::from_millis(20_000));
    rig.drain();
    assert!(matches!(rig.last(), ServerMessage::Goaway { in_ms: 20_000, .. }));
    rig.simple("open", 2);
    assert_eq!(rig.errors(), ["draining"]);
    rig.speak_all(rig.key(1, 0), 2);
    assert_eq!(rig.reasons(), [(1, 0, "done")]);
    assert_eq!(rig.closed, Some(CloseCode::GoingAway));

    let mut rig = Rig::new();
    rig.session.handle_drain(rig.now, "restart", Span::from_millis(20_000));
    rig.drain();
    assert_eq!(rig.closed, Some(CloseCode::Restart));
}

#[test]
fn audio_from_the_client_is_refused_by_name() {
    let mut rig = Rig::new();
    rig.session.handle_message(rig.now, Message::Binary(&[0x10; 20]));
    rig.session.handle_message(rig.now, Message::Binary(&[0x55; 3]));
    rig.drain();
    assert_eq!(rig.errors().len(), 2);
    assert_eq!(rig.errors()[1], "bad_header");
}

#[test]
fn an_engine_that_never_lets_go_delays_an_end_by_ten_seconds_at_most() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.simple("cancel", 1);
    rig.wait(Span::from_millis(9_900));
    assert_eq!(rig.reasons(), []);
    rig.wait(Span::from_millis(200));
    assert_eq!(rig.reasons(), [(1, 0, "cancelled")]);
}

#[test]
fn more_sound_than_may_wait_fails_the_context_and_not_the_session() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.say(2, "Hello there.");
    for _ in 0..30 {
        rig.speak(rig.key(1, 0), 10);
    }
    assert_eq!(rig.errors(), ["output_full"]);
    assert!(rig.engine[&rig.key(1, 0)].cancelled);
    rig.finish(rig.key(1, 0), FinishReason::Cancelled, None);
    rig.speak_all(rig.key(2, 0), 2);
    assert_eq!(rig.reasons(), [(1, 0, "failed"), (2, 0, "done")]);
}
