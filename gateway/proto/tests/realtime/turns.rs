//! Turns in the client's audio: real speech with pauses, in noise, over G.711.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::{FinishReason, Span};
use serde_json::{Value, json};

use crate::client::Client;

pub(crate) const RATE: usize = 24_000;

/// A voice's sentence from the embedded model's folder.
pub(crate) fn sentence(voice: &str) -> Vec<i16> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/models/tiny/voices/");
    let mut file = hound::WavReader::open(format!("{folder}{voice}.wav")).expect("the voice's clip");
    assert_eq!(file.spec().sample_rate as usize, RATE);
    file.samples::<i16>().map(|sample| sample.expect("a sample")).collect()
}

pub(crate) fn silence(seconds: f64) -> Vec<i16> {
    vec![0; (seconds * RATE as f64) as usize]
}

/// Two sentences with pauses around them; milliseconds at which each begins and ends.
fn two_sentences() -> (Vec<i16>, [(f64, f64); 2]) {
    let (first, second) = (sentence("clara"), sentence("marcus"));
    let millis = |samples: usize| samples as f64 * 1_000.0 / RATE as f64;
    let one = (1_000.0, 1_000.0 + millis(first.len()));
    let two = (one.1 + 1_500.0, one.1 + 1_500.0 + millis(second.len()));
    let audio = [silence(1.0), first, silence(1.5), second, silence(1.5)].concat();
    (audio, [one, two])
}

/// Noise of about -40 dBFS, the same in every run.
fn noise(audio: &mut [i16]) {
    let mut state = 1_u32;
    for sample in audio {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *sample = sample.saturating_add(((state >> 16) as i16) / 56);
    }
}

/// Says the audio in pieces of 100 ms, in the session's input format.
pub(crate) fn append(client: &mut Client, audio: &[i16], bytes_of: impl Fn(&[i16]) -> Vec<u8>) {
    for piece in audio.chunks(RATE / 10) {
        let audio = STANDARD.encode(bytes_of(piece));
        client.send(&json!({ "type": "input_audio_buffer.append", "audio": audio }));
    }
}

pub(crate) fn pcm(samples: &[i16]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

/// Each third sample, coarsely, as a telephone would have it.
pub(crate) fn telephone(samples: &[i16], code: fn(i16) -> u8) -> Vec<u8> {
    let third = samples.chunks(3).map(|three| {
        let sum: i32 = three.iter().map(|sample| i32::from(*sample)).sum();
        code((sum / three.len() as i32) as i16)
    });
    third.collect()
}

pub(crate) fn times(client: &Client, kind: &str, name: &str) -> Vec<f64> {
    let events = client.events.iter().filter(|event| event["type"] == kind);
    events.map(|event| event[name].as_f64().expect("milliseconds")).collect()
}

pub(crate) fn check(client: &Client, spoken: [(f64, f64); 2]) {
    let starts = times(client, "input_audio_buffer.speech_started", "audio_start_ms");
    let stops = times(client, "input_audio_buffer.speech_stopped", "audio_end_ms");
    assert_eq!((starts.len(), stops.len()), (2, 2), "{starts:?} {stops:?}");
    for (((begin, end), start), stop) in spoken.into_iter().zip(starts).zip(stops) {
        // 300 ms before the voice; 500 ms of silence after it. A clip may begin and end with a little.
        assert!((begin - 350.0..begin + 150.0).contains(&start), "{begin} {start}");
        assert!((end + 150.0..end + 700.0).contains(&stop), "{end} {stop}");
    }
}

#[test]
fn two_sentences_are_two_turns_each_committed_when_it_ends() {
    let (audio, spoken) = two_sentences();
    let mut client = Client::new();
    append(&mut client, &audio, pcm);
    check(&client, spoken);
    let kinds: Vec<String> = client.kinds().into_iter().skip(1).take(5).collect();
    assert_eq!(
        kinds,
        [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done"
        ]
    );
    let started = client.events[1]["item_id"].clone();
    assert_eq!(client.events[3]["item_id"], started, "one id from the first sound to the item");
}

#[test]
fn turns_are_found_in_noise_and_over_a_telephone_and_none_in_noise_alone() {
    let (mut audio, spoken) = two_sentences();
    let mut phone = Client::new();
    phone.send(&json!({ "type": "session.update", "session": { "type": "realtime",
        "audio": { "input": { "format": { "type": "audio/pcmu" } } } } }));
    append(&mut phone, &audio, |piece| telephone(piece, codecs::g711::mu_law_from_i16));
    check(&phone, spoken);
    noise(&mut audio);
    let mut client = Client::new();
    append(&mut client, &audio, pcm);
    check(&client, spoken);
    let mut hiss = silence(5.0);
    noise(&mut hiss);
    let mut client = Client::new();
    append(&mut client, &hiss, pcm);
    assert_eq!(client.kinds(), ["session.created"]);
}

#[test]
fn a_user_who_speaks_interrupts_unless_told_not_to() {
    for interrupts in [true, false] {
        let mut client = Client::new();
        client.send(&json!({ "type": "session.update", "session": { "type": "realtime",
            "audio": { "input": { "turn_detection": { "type": "semantic_vad",
                "interrupt_response": interrupts } } } } }));
        client.say("One two three four five six seven eight.");
        client.ask(&json!({}));
        client.speak(40);
        append(&mut client, &sentence("june"), pcm);
        assert!(client.kinds().contains(&"input_audio_buffer.speech_started".to_owned()));
        assert_eq!(client.kinds().contains(&"response.done".to_owned()), interrupts);
        if interrupts {
            let details = &client.last("response.done")["response"]["status_details"];
            assert_eq!(details["reason"], "turn_detected");
            assert_eq!(client.cancelled.len(), 1);
        }
    }
}

#[test]
fn without_turn_detection_nothing_is_heard_and_a_commit_within_a_turn_keeps_its_id() {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "type": "realtime",
        "audio": { "input": { "turn_detection": null } } } }));
    client.events.clear();
    append(&mut client, &sentence("nora"), pcm);
    assert!(client.events.is_empty());
    let mut client = Client::new();
    append(&mut client, &sentence("nora")[..RATE], pcm);
    let id = client.last("input_audio_buffer.speech_started")["item_id"].clone();
    client.send(&json!({ "type": "input_audio_buffer.commit" }));
    assert_eq!(client.last("input_audio_buffer.committed")["item_id"], id);
    client.send(&json!({ "type": "input_audio_buffer.clear" }));
    assert_eq!(client.kinds().last().map(String::as_str), Some("input_audio_buffer.cleared"));
}

/// Half an hour of a telephone in two events: only the newest minutes are listened to, and positions stay true.
#[test]
fn sound_that_comes_far_faster_than_it_plays_is_listened_to_from_its_newest_minutes_on() {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "type": "realtime",
        "audio": { "input": { "format": { "type": "audio/pcmu" } } } } }));
    let code = codecs::g711::mu_law_from_i16;
    let spoken = telephone(&[sentence("nora"), silence(1.0)].concat(), code);
    let quiet = |seconds: usize| vec![code(0); seconds * 8_000];
    let long = [&spoken[..], &quiet(1_400), &spoken].concat();
    let begins = (long.len() - spoken.len()) as f64 / 8.0;
    client.send(&json!({ "type": "input_audio_buffer.append", "audio": STANDARD.encode(&long) }));
    let starts = times(&client, "input_audio_buffer.speech_started", "audio_start_ms");
    assert!(matches!(starts[..], [start] if (start - begins + 300.0).abs() < 300.0), "{starts:?} {begins}");
    assert_eq!(times(&client, "input_audio_buffer.speech_stopped", "audio_end_ms").len(), 1);
    // Nothing is left for the next, until time has passed.
    let begins = (long.len() + spoken.len()) as f64 / 8.0;
    client.events.clear();
    for (waited, found) in [(0, 0), (10_000, 1)] {
        client.now += Span::from_millis(waited);
        client.send(&json!({ "type": "input_audio_buffer.append", "audio": STANDARD.encode(&spoken) }));
        let starts = times(&client, "input_audio_buffer.speech_started", "audio_start_ms");
        assert_eq!(starts.len(), found);
        assert!(starts.iter().all(|start| (start - begins + 300.0).abs() < 300.0), "{starts:?} {begins}");
    }
}

#[test]
fn a_user_who_stays_silent_after_a_response_is_told_once_its_sound_is_over() {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "type": "realtime", "audio": { "input": {
        "turn_detection": { "type": "server_vad", "idle_timeout_ms": 6_000 } } } } }));
    let shown = &client.last("session.updated")["session"]["audio"]["input"]["turn_detection"];
    assert_eq!(shown["idle_timeout_ms"], 6_000);
    client.say("One two.");
    client.ask(&json!({}));
    client.speak(25);
    client.finish(FinishReason::Done, None);
    let triggered =
        |client: &Client| client.kinds().contains(&"input_audio_buffer.timeout_triggered".to_owned());
    for (wait, expected) in [(7_900, false), (200, true)] {
        client.now += Span::from_millis(wait);
        client.session.handle_timeout(client.now);
        client.drain();
        assert_eq!(triggered(&client), expected, "2 s of sound, then 6 s");
    }
    assert!(client.last("input_audio_buffer.committed")["item_id"] != Value::Null);
}
