//! Another speed than the model's: positions, times and deadlines are those of what the listener hears.

mod rig;

use contract::{FinishReason, Playback, Span};
use proto::wire::{Header, ServerMessage};
use rig::{FRAME, PRE_SKIP, RATE, Rig};
use serde_json::json;

/// As long as the voices of the embedded model need four seconds for.
const TEXT: &str = "The morning train was late again, so all of us walked home along the quiet river.";

/// When the words of four seconds of sound begin, and when the last one ends, as a client is told.
fn words(speed: f64) -> (Vec<f64>, f64) {
    let mut rig = Rig::speaking(Box::new(proto::cartesia::Socket::new()));
    let message = json!({
        "context_id": "c", "transcript": TEXT, "continue": false,
        "model_id": "tts-tiny", "voice": "clara", "add_timestamps": true,
        "output_format": { "container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE },
        "generation_config": { "speed": speed },
    });
    rig.text(&message.to_string());
    let key = rig.key(1, 0);
    rig.speak_all(key, 50);
    rig.wait(Span::from_millis(20_000));
    let said = rig.said.expect("a foreign dialect");
    let times = said.iter().filter(|event| event["type"] == "timestamps");
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        value.as_array().into_iter().flatten().filter_map(serde_json::Value::as_f64).collect()
    };
    let (mut starts, mut end) = (Vec::new(), 0.0);
    for event in times {
        starts.extend(numbers(&event["word_timestamps"]["start"]));
        end = numbers(&event["word_timestamps"]["end"]).last().copied().unwrap_or(end);
    }
    assert_eq!(said.last().map(|event| event["type"].clone()), Some("done".into()), "{speed}");
    (starts, end)
}

#[test]
fn words_sound_sooner_at_a_greater_speed_and_later_at_a_smaller_one() {
    let (own, own_end) = words(1.0);
    assert_eq!(own.len(), TEXT.split(' ').count());
    assert!((own_end - 4.0).abs() < 0.1, "{own_end}");
    for speed in [0.5, 1.25, 2.0] {
        let (starts, end) = words(speed);
        assert!((end * speed - own_end).abs() < 0.1, "{speed}: {end}");
        for (heard, own) in starts.iter().zip(&own) {
            assert!((heard * speed - own).abs() < 0.1, "{speed}: {starts:?}");
        }
    }
}

fn native(speed: f64) -> Rig {
    let mut rig = Rig::new();
    rig.text(&format!(r#"{{"type":"open","context":1,"audio":{{"speed":{speed}}}}}"#));
    rig.append(1, 1, TEXT);
    rig.simple("text.end", 1);
    rig
}

#[test]
fn the_end_counts_the_samples_that_are_heard() {
    for (speed, seconds) in [(0.5, 8.0), (1.0, 4.0), (2.0, 2.0)] {
        let mut rig = native(speed);
        let key = rig.key(1, 0);
        rig.speak_all(key, 50);
        rig.wait(Span::from_millis(20_000));
        let ServerMessage::End(end) = rig.last() else { panic!("{:?}", rig.last()) };
        let duration: u64 =
            rig.heard[&1].packets.iter().map(|Header { duration, .. }| u64::from(*duration)).sum();
        assert_eq!(end.samples as f64, seconds * 48_000.0, "{speed}");
        assert_eq!(duration, end.samples + u64::from(PRE_SKIP), "{speed}");
        // What it cost is what the model made.
        assert_eq!(end.usage.samples, 192_000, "{speed}");
    }
}

#[test]
fn an_engine_is_told_that_a_fast_listener_runs_out_sooner() {
    let zero = |speed: f64| {
        let mut rig = native(speed);
        let key = rig.key(1, 0);
        rig.speak(key, 25);
        rig.wait(Span::from_millis(100));
        match rig.engine[&key].playback {
            Some(Playback::Playing { zero }) => zero,
            other => panic!("{other:?}"),
        }
    };
    let made = Span::of_samples(25 * FRAME as u64, RATE);
    // Two seconds were made; they last one, and so what is made next is due a second sooner.
    // As far as the clock's own guard lets it.
    let near = |sooner: Span, due: Span| (sooner.as_micros() - due.as_micros()).abs() < 50_000;
    assert!(near(zero(1.0).since(zero(2.0)), Span::from_micros(made.as_micros() / 2)));
    assert!(near(zero(0.5).since(zero(1.0)), made));
}

#[test]
fn what_was_heard_of_an_interrupted_text_follows_the_speed() {
    let heard = |speed: f64, played: u64| {
        let mut rig = native(speed);
        let key = rig.key(1, 0);
        rig.speak_all(key, 50);
        rig.wait(Span::from_millis(500));
        rig.text(&format!(r#"{{"type":"cancel","context":1,"played":{played}}}"#));
        let cancelled = rig.messages.iter().find_map(|message| match message {
            ServerMessage::Cancelled { heard, .. } => Some(heard.text.clone()),
            _ => None,
        });
        cancelled.expect("an answer")
    };
    let own = heard(1.0, 48_000);
    assert!(own.len() > 8, "{own}");
    assert_eq!(heard(2.0, 24_000), own);
    assert_eq!(heard(0.5, 96_000), own);
}

#[test]
fn a_speed_that_no_stretch_makes_is_refused_by_field() {
    let mut rig = Rig::new();
    for speed in ["0.2", "4.1", "\"fast\"", "-1"] {
        rig.text(&format!(r#"{{"type":"open","context":1,"audio":{{"speed":{speed}}}}}"#));
    }
    assert_eq!(
        rig.errors(),
        ["field_out_of_range", "field_out_of_range", "wrong_type", "field_out_of_range"]
    );
    let key = rig.key(1, 0);
    rig.finish(key, FinishReason::Done, None);
    assert!(rig.engine.is_empty());
}
