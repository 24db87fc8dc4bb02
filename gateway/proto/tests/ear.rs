//! Text for the ear in a native session: what the engine is given, what the trace says, what was heard, and
//! pauses as silence in the sample stream.

mod rig;

use std::sync::Arc;

use contract::{Playback, Span};
use proto::alignment::Alignment;
use proto::reader::Run;
use proto::session::Config;
use proto::wire::{ServerMessage, TextSpoken};
use rig::{Rig, config, english_info};

/// A rig whose voices speak English.
fn english() -> Rig {
    let entries = [("Nguyen".to_owned(), "Win".to_owned())];
    let lexicon = Arc::new(ear::Lexicon::new(entries).expect("a lexicon"));
    let mut rig = Rig::with(Config { engine: english_info(), lexicon, ..config() });
    rig.text(r#"{"type":"hello","trace":true}"#);
    rig
}

fn samples_ended(rig: &Rig) -> Vec<u64> {
    let ends = rig.messages.iter().filter_map(|message| match message {
        ServerMessage::End(end) => Some(end.samples),
        _ => None,
    });
    ends.collect()
}

#[test]
fn the_engine_is_given_words_and_the_trace_tells_what_they_stand_for() {
    let mut rig = english();
    rig.simple("open", 1);
    for (at, delta) in ["Dr. Nguy", "en pays $", "3.5", "0 today."].iter().enumerate() {
        rig.append(1, at as u32 + 1, delta);
    }
    rig.simple("text.end", 1);
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].segments, ["Doctor Win pays three dollars and fifty cents today."]);
    let spoken: Vec<(u64, &str, &str)> = rig
        .messages
        .iter()
        .filter_map(|message| match message {
            ServerMessage::TextSpoken(TextSpoken { at, original, spoken, .. }) => {
                Some((*at, original.as_str(), spoken.as_str()))
            }
            _ => None,
        })
        .collect();
    let money = "three dollars and fifty cents";
    assert_eq!(spoken, [(0, "Dr.", "Doctor"), (4, "Nguyen", "Win"), (16, "$3.50", money)]);
    rig.speak_all(key, 20);
    rig.wait(Span::from_millis(3_000));
    rig.simple("cancel", 1);
    let heard = rig.messages.iter().find_map(|message| match message {
        ServerMessage::Cancelled { heard, .. } => Some(heard),
        _ => None,
    });
    let heard = heard.expect("an answer");
    assert_eq!((heard.text.as_str(), heard.characters), ("Dr. Nguyen pays $3.50 today.", 28));
}

#[test]
fn a_request_that_asks_for_it_is_spoken_as_it_stands() {
    let mut rig = english();
    rig.text(r#"{"type":"open","context":1,"normalize":false}"#);
    rig.append(1, 1, "Nguyen has $3.50<break/> etc.");
    rig.simple("text.end", 1);
    assert_eq!(rig.engine[&rig.key(1, 0)].segments, ["Nguyen has $3.50<break/> etc."]);
    // A language without a normaliser: the lexicon and pauses count, figures stay.
    rig.text(r#"{"type":"open","context":2,"language":"german"}"#);
    rig.append(2, 1, "Nguyen hat 3,50<break/> usw.");
    rig.simple("text.end", 2);
    let key = rig.key(2, 0);
    rig.speak_all(key, 1);
    assert_eq!(rig.engine[&key].segments, ["Win hat 3,50", "usw."]);
    // The session is told whose rules read each.
    assert_eq!(readings(&rig), [None, None]);
}

fn readings(rig: &Rig) -> Vec<Option<&str>> {
    let opened = rig.messages.iter().filter_map(|message| match message {
        ServerMessage::Opened(opened) => Some(opened.reading.as_deref()),
        _ => None,
    });
    opened.collect()
}

#[test]
fn a_region_chooses_whose_english_it_is_and_the_session_is_told() {
    let mut rig = english();
    for (context, language, said) in [
        (1, "en-GB", "It was the third of May and cost five pounds and fifty pence."),
        (2, "en", "It was March fifth and cost five pounds and fifty pence."),
    ] {
        rig.text(&format!(r#"{{"type":"open","context":{context},"language":"{language}"}}"#));
        let date = if context == 1 { "3 May" } else { "March 5" };
        rig.append(context, 1, &format!("It was {date} and cost \u{A3}5.50."));
        rig.simple("text.end", context);
        assert_eq!(rig.engine[&rig.key(context, 0)].segments, [said]);
    }
    assert_eq!(readings(&rig), [Some("en-GB"), Some("en-US")]);
}

#[test]
fn a_pause_is_silence_between_two_segments_and_moves_what_follows() {
    let mut rig = english();
    rig.simple("open", 1);
    rig.append(1, 1, "One.<break time=\"500ms\"/> Two.\n\nThree.");
    rig.simple("text.end", 1);
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].segments, ["One."], "what follows a pause waits for the sound before it");
    rig.speak(key, 5);
    let before = match rig.engine[&key].playback {
        Some(Playback::Playing { zero }) => zero,
        other => panic!("{other:?}"),
    };
    rig.finish_segment(key);
    assert!(rig.heard[&1].next_timestamp >= 5 * 3_840 + 24_000, "the pause leaves with the segment's end");
    let after = match rig.engine[&key].playback {
        Some(Playback::Playing { zero }) => zero,
        other => panic!("{other:?}"),
    };
    assert_eq!(after.since(before), Span::from_millis(500), "the next chunk is due later by the pause");
    rig.speak_all(key, 5);
    assert_eq!(rig.engine[&key].segments, ["One.", "Two.", "Three."]);
    rig.wait(Span::from_millis(4_000));
    assert_eq!(samples_ended(&rig), [3 * 5 * 3_840 + 24_000 + 12_000]);
}

#[test]
fn how_text_is_split_never_changes_where_pauses_stand() {
    let text = "<break time=\"100ms\"/>One 5<break time=\"200ms\"/> km.\n\n\nTwo.<break/>";
    let spoken = |pieces: &[&str]| {
        let mut rig = english();
        rig.simple("open", 1);
        for (at, piece) in pieces.iter().enumerate() {
            rig.append(1, at as u32 + 1, piece);
            let key = rig.key(1, 0);
            rig.speak_all(key, 2);
        }
        rig.simple("text.end", 1);
        let key = rig.key(1, 0);
        rig.speak_all(key, 2);
        rig.wait(Span::from_millis(4_000));
        (rig.engine[&key].segments.clone(), samples_ended(&rig))
    };
    let whole = spoken(&[text]);
    assert_eq!(whole.0, ["One five", "km.", "Two."]);
    assert_eq!(whole.1, [3 * 2 * 3_840 + (100 + 200 + 250 + 500) * 48]);
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for cut in &cuts {
        let (head, tail) = text.split_at(*cut);
        assert_eq!(spoken(&[head, tail]), whole, "{head:?}");
    }
}

#[test]
fn a_text_of_pauses_never_fills_the_pacer() {
    let mut rig = english();
    rig.simple("open", 1);
    let text = "a<break time=\"3s\"/>".repeat(40);
    rig.append(1, 1, &text);
    rig.simple("text.end", 1);
    let key = rig.key(1, 0);
    for _ in 0..200 {
        rig.speak_all(key, 12);
        rig.wait(Span::from_millis(1_000));
    }
    assert_eq!(rig.errors(), [""; 0]);
    assert_eq!(samples_ended(&rig), [40 * 12 * 3_840 + 40 * 144_000]);
}

#[test]
fn silence_at_the_ends_is_trimmed_on_request() {
    let mut rig = english();
    rig.text(r#"{"type":"open","context":1,"audio":{"trim":true}}"#);
    rig.append(1, 1, "One.");
    rig.simple("text.end", 1);
    let key = rig.key(1, 0);
    rig.chunk(key, vec![0.0; 24_000]);
    rig.chunk(key, vec![0.1; 24_000]);
    rig.chunk(key, vec![0.0; 4_800]);
    rig.finish_segment(key);
    rig.finish(key, contract::FinishReason::Done, None);
    rig.wait(Span::from_millis(3_000));
    assert_eq!(samples_ended(&rig), [(20 + 1_000 + 60) * 48]);
}

#[test]
fn a_word_that_waits_is_let_go_after_a_dry_spell_and_counted_as_held() {
    let mut rig = english();
    rig.simple("open", 1);
    rig.append(1, 1, "It is 5");
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].current, "It is");
    rig.wait(Span::from_millis(400));
    assert_eq!(rig.engine[&key].current, "It is five");
    // The 5, and the space before it that belongs to no word yet.
    assert!(rig.messages.iter().any(|m| matches!(m, ServerMessage::TextReleased { held_bytes: 2, .. })));
}

#[test]
fn what_is_said_otherwise_than_written_takes_its_time_and_is_told_as_it_was_written() {
    let mut alignment = Alignment::with_times();
    let run = |original: &str, said: u64, as_is: bool| Run { original: original.to_owned(), said, as_is };
    // Ten characters said as they stand, thirty for the price, ten more; one said in a segment before its end.
    for part in [run("Ten chars ", 10, true), run("$3.50", 30, false), run(" and these", 10, true)] {
        alignment.handle_run(0, &part);
    }
    alignment.handle_chunk(0, 0, &vec![0.1; 5 * 24_000], 24_000);
    alignment.handle_segment_end(0, 5 * 48_000);
    let timed = alignment.timed(u64::MAX);
    let text: String = timed.iter().map(|timed| timed.character).collect();
    assert_eq!(text, "Ten chars $3.50 and these");
    let second = |at: usize| timed[at].start as f64 / 48_000.0;
    assert!((second(10) - 1.0).abs() < 0.05, "the price begins after a second: {}", second(10));
    assert!((second(15) - 4.0).abs() < 0.05, "and takes three: {}", second(15));
    for pair in timed.windows(2) {
        assert!(pair[0].start <= pair[1].start && pair[0].end <= pair[1].end, "{pair:?}");
    }
}
