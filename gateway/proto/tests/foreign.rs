//! The sockets of ElevenLabs' and Cartesia's clients, as those clients use them, over a scripted engine.

mod rig;

use codecs::AudioLimits;
use codecs::ogg::OggOpusReader;
use contract::{EngineError, FinishReason, Span};
use proto::cartesia;
use proto::elevenlabs::{self, Contexts, Options};
use proto::wire::CloseCode;
use rig::Rig;
use serde_json::{Value, json};

fn eleven(contexts: Contexts, more: &[(&str, &str)]) -> Rig {
    let query = [("output_format", "pcm_24000")].into_iter().chain(more.iter().copied());
    let options = Options::read(contexts, "clara", query).expect("valid");
    Rig::speaking(Box::new(elevenlabs::Socket::new(options)))
}

fn sonic() -> Rig {
    Rig::speaking(Box::new(cartesia::Socket::new()))
}

impl Rig {
    /// Sends a message, and gives what came back so far.
    fn send(&mut self, message: &Value) -> Vec<Value> {
        self.text(&message.to_string());
        self.news()
    }

    fn news(&mut self) -> Vec<Value> {
        std::mem::take(self.said.as_mut().expect("a foreign dialect"))
    }
}

/// A request of Cartesia's with what every message repeats.
fn generate(context: &str, transcript: &str, more: bool) -> Value {
    json!({
        "context_id": context, "transcript": transcript, "continue": more, "model_id": "sonic-3",
        "voice": {"mode": "id", "id": "clara"}, "language": "en", "add_timestamps": true,
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
    })
}

fn finals(said: &[Value]) -> Vec<&str> {
    said.iter().filter(|m| m["isFinal"] == true).filter_map(|m| m["contextId"].as_str()).collect()
}

fn audio(said: &[Value], name: &str) -> usize {
    said.iter().filter_map(|message| message[name].as_str()).map(str::len).sum()
}

#[test]
fn a_turn_of_livekit_is_spoken_with_absolute_times_and_one_final_message() {
    let mut rig = eleven(Contexts::Many, &[("sync_alignment", "true"), ("auto_mode", "true")]);
    rig.send(&json!({"text": " ", "voice_settings": {}, "context_id": "a"}));
    assert!(rig.opened.is_empty(), "a space opens nothing in the engine");
    rig.send(&json!({"text": "Good evening. ", "context_id": "a", "flush": true}));
    rig.send(&json!({"text": "Welcome. ", "context_id": "a", "flush": true}));
    rig.send(&json!({"text": "", "context_id": "a", "flush": true}));
    assert!(rig.send(&json!({"context_id": "a", "close_context": true})).is_empty());
    let key = rig.key(1, 0);
    rig.speak_all(key, 10);
    let said = rig.news();
    assert!(said.iter().all(|message| message["contextId"] == "a"));
    let (last, before) = said.split_last().expect("messages");
    assert_eq!(*last, json!({"isFinal": true, "contextId": "a"}));
    assert!(before.iter().all(|message| message["isFinal"].is_null()));
    let list = |name: &str| -> Vec<Value> {
        let lists = before.iter().filter_map(|message| message["alignment"][name].as_array());
        lists.flatten().cloned().collect()
    };
    let text: String = list("chars").iter().filter_map(Value::as_str).collect();
    assert_eq!(text, "Good evening. Welcome. ");
    let starts: Vec<u64> = list("charStartTimesMs").iter().filter_map(Value::as_u64).collect();
    assert!(starts.is_sorted() && *starts.last().expect("a character") > 1_000, "{starts:?}");
    assert_eq!(list("charDurationsMs").len(), starts.len());
    // Base64 of what the rig's encoder made: 40 bytes a packet.
    assert!(audio(before, "audio") >= 2 * 40 * 40 * 4 / 3);
}

#[test]
fn without_sync_the_times_of_messages_add_up() {
    let mut rig = eleven(Contexts::Many, &[]);
    rig.send(&json!({"text": "One two three four five six seven. ", "context_id": "a"}));
    rig.send(&json!({"context_id": "a", "flush": true}));
    rig.send(&json!({"context_id": "a", "close_context": true}));
    let key = rig.key(1, 0);
    rig.speak_all(key, 20);
    let mut clock = 0;
    for alignment in rig.news().iter().map(|message| &message["alignment"]).filter(|a| a.is_object()) {
        let ms =
            |name: &str| alignment[name].as_array().expect(name).last().and_then(Value::as_u64).expect("ms");
        clock += ms("charStartTimesMs") + ms("charDurationsMs");
    }
    // 20 frames of 80 ms; each message loses less than a millisecond to rounding.
    assert!((1_590..=1_600).contains(&clock), "{clock}");
}

#[test]
fn a_turn_that_is_broken_off_ends_at_once_and_a_flushed_one_is_spoken() {
    let mut rig = eleven(Contexts::Many, &[]);
    rig.send(&json!({"text": "Never to be flushed ", "context_id": "a"}));
    let key = rig.key(1, 0);
    rig.speak(key, 4);
    rig.news();
    let said = rig.send(&json!({"context_id": "a", "close_context": true}));
    assert_eq!(finals(&said), ["a"]);
    assert!(rig.engine[&key].cancelled);
    rig.finish(key, FinishReason::Cancelled, None);
    assert!(rig.news().is_empty(), "nothing of it follows");

    rig.send(&json!({"text": "Flushed.", "context_id": "b", "flush": true}));
    assert!(rig.send(&json!({"context_id": "b", "close_context": true})).is_empty());
    let key = rig.key(2, 0);
    assert!(!rig.engine[&key].cancelled);
    // Closing a second time is an interruption.
    let said = rig.send(&json!({"context_id": "b", "close_context": true}));
    assert_eq!(finals(&said), ["b"]);
    assert!(rig.engine[&key].cancelled);
}

#[test]
fn keep_alives_and_harmless_mistakes_change_nothing() {
    let mut rig = eleven(Contexts::Many, &[]);
    for message in [
        json!({"text": ""}),
        json!({"text": "", "context_id": "none"}),
        json!({"context_id": "none", "flush": true}),
        json!({"context_id": "none", "close_context": true}),
        json!({"text": " ", "context_id": "a", "a_field_of_tomorrow": [1]}),
        json!({"text": "", "context_id": "a"}),
        json!({"context_id": "a", "flush": true}),
    ] {
        assert!(rig.send(&message).is_empty(), "{message}");
    }
    assert!(rig.opened.is_empty() && rig.closed.is_none());
    // A context without a word ends as soon as it is closed.
    assert_eq!(finals(&rig.send(&json!({"context_id": "a", "close_context": true}))), ["a"]);
}

#[test]
fn keep_alives_keep_a_context_that_has_spoken() {
    let mut rig = eleven(Contexts::Many, &[]);
    rig.send(&json!({"text": "Wait.", "context_id": "a", "flush": true}));
    let key = rig.key(1, 0);
    rig.speak_all(key, 5);
    for _ in 0..10 {
        rig.wait(Span::from_millis(10_000));
        rig.send(&json!({"text": "", "context_id": "a"}));
    }
    assert!(finals(&rig.news()).is_empty());
    rig.wait(Span::from_millis(61_000));
    assert!(rig.engine[&key].cancelled, "without them it ends");
    rig.finish(key, FinishReason::Cancelled, None);
    assert_eq!(finals(&rig.news()), ["a"]);
}

#[test]
fn errors_name_their_context_and_end_it_alone() {
    let mut rig = eleven(Contexts::Many, &[]);
    rig.send(&json!({"text": "Fine.", "context_id": "b", "flush": true}));
    rig.refuse_open = Some(EngineError::Overloaded { retry_after: Span::from_millis(50) });
    let said = rig.send(&json!({"text": "No room.", "context_id": "a", "flush": true}));
    assert_eq!((&said[0]["contextId"], &said[0]["code"]), (&json!("a"), &json!("system_busy")), "{said:?}");
    assert!(said[0]["error"].as_str().is_some_and(|text| text.contains("retry")));
    assert_eq!(finals(&said), ["a"]);
    let said = rig.send(&json!({"text": 7, "context_id": "b"}));
    assert_eq!((said.len(), &said[0]["code"]), (1, &json!("wrong_type")));
    let key = rig.key(1, 0);
    rig.speak_all(key, 4);
    assert!(audio(&rig.news(), "audio") > 0, "the other one goes on");
    assert!(rig.closed.is_none());
}

/// Models do say "..." now and then, and their clients cannot know that there is nothing to speak in it.
#[test]
fn a_turn_with_nothing_to_speak_ends_like_any_other_and_without_a_sound() {
    let mut rig = eleven(Contexts::Many, &[]);
    assert!(rig.send(&json!({"text": "... ", "context_id": "a", "flush": true})).is_empty());
    let said = rig.send(&json!({"context_id": "a", "close_context": true}));
    assert_eq!(said, [json!({"isFinal": true, "contextId": "a"})]);
    assert_eq!(rig.closed, None);
    rig.send(&json!({"text": "?!", "context_id": "b"}));
    assert_eq!(finals(&rig.send(&json!({"close_socket": true}))), ["b"]);
    assert_eq!(rig.closed, Some(CloseCode::Done));

    let mut rig = eleven(Contexts::One, &[]);
    rig.send(&json!({"text": "\u{2026} "}));
    assert_eq!(rig.send(&json!({"text": ""})), [json!({"isFinal": true})]);
    assert_eq!(rig.closed, Some(CloseCode::Done));

    let mut rig = sonic();
    let mut flushed = generate("c", "... ", true);
    flushed["flush"] = json!(true);
    assert_eq!(rig.send(&flushed)[0]["flush_done"], true, "nothing is waited for");
    let said = rig.send(&generate("c", "", false));
    assert_eq!((said.len(), &said[0]["type"], &said[0]["context_id"]), (1, &json!("done"), &json!("c")));
    assert!(rig.opened.is_empty(), "no engine hears of it");
    // What follows such a beginning is spoken with it.
    rig.send(&generate("d", "... ", true));
    rig.send(&generate("d", "Well.", false));
    let key = rig.key(2, 0);
    rig.speak_all(key, 4);
    assert_eq!(rig.news().last().map(|event| event["type"].clone()), Some(json!("done")));
}

#[test]
fn a_socket_that_is_asked_to_close_speaks_what_it_has_first() {
    let mut rig = eleven(Contexts::Many, &[]);
    rig.send(&json!({"text": "The last words.", "context_id": "a"}));
    rig.send(&json!({"close_socket": true}));
    assert_eq!(rig.closed, None);
    let key = rig.key(1, 0);
    rig.speak_all(key, 4);
    assert_eq!(finals(&rig.news()), ["a"]);
    assert_eq!(rig.closed, Some(CloseCode::Done));
    let mut rig = eleven(Contexts::Many, &[]);
    rig.send(&json!({"close_socket": true}));
    assert_eq!(rig.closed, Some(CloseCode::Done));
}

#[test]
fn the_single_context_socket_ends_with_its_text() {
    let mut rig = eleven(Contexts::One, &[]);
    let settings = json!({"stability": 0.5, "speed": 1.0});
    rig.send(&json!({"text": " ", "voice_settings": settings, "generation_config": {"chunk_length_schedule": [50]}}));
    rig.send(&json!({"text": "Hello ", "try_trigger_generation": true}));
    rig.send(&json!({"text": "there. ", "try_trigger_generation": true}));
    rig.send(&json!({"text": ""}));
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].segments, ["Hello there."]);
    rig.speak_all(key, 4);
    let said = rig.news();
    assert!(said.iter().all(|message| message.get("contextId").is_none()));
    assert_eq!(said.last(), Some(&json!({"isFinal": true})));
    assert_eq!(rig.closed, Some(CloseCode::Done));
}

#[test]
fn opus_comes_as_one_ogg_stream_a_context() {
    use base64::Engine;
    let query = [("output_format", "opus_48000_32")];
    let options = Options::read(Contexts::Many, "clara", query).expect("valid");
    let mut rig = Rig::speaking(Box::new(elevenlabs::Socket::new(options)));
    rig.send(&json!({"text": "Boxed.", "context_id": "a", "flush": true}));
    rig.send(&json!({"context_id": "a", "close_context": true}));
    let key = rig.key(1, 0);
    rig.speak_all(key, 10);
    let said = rig.news();
    let parts = said.iter().filter_map(|message| message["audio"].as_str());
    let bytes: Vec<u8> =
        parts.flat_map(|part| base64::prelude::BASE64_STANDARD.decode(part).expect("base64")).collect();
    let mut reader = OggOpusReader::new(&bytes, &AudioLimits::default()).expect("Ogg");
    assert_eq!(reader.head().pre_skip_48k, rig::PRE_SKIP);
    let mut packets = 0;
    while reader.next_packet().expect("a packet").is_some() {
        packets += 1;
    }
    assert!(reader.ended(), "the last page says so");
    assert_eq!(packets, (rig.engine[&key].samples * 2 + u64::from(rig::PRE_SKIP)).div_ceil(960));
}

#[test]
fn a_turn_of_cartesia_has_chunks_words_and_one_done() {
    let mut rig = sonic();
    rig.send(&generate("c", "Good evening, ", true));
    rig.send(&generate("c", "dear friends.", true));
    rig.send(&generate("c", " ", false));
    let key = rig.key(1, 0);
    assert_eq!(rig.engine[&key].segments, ["Good evening, dear friends."]);
    rig.speak_all(key, 20);
    let said = rig.news();
    assert!(said.iter().all(|event| event["context_id"] == "c"));
    assert!(audio(&said, "data") > 0);
    let words = said.iter().filter_map(|event| event["word_timestamps"]["words"].as_array()).flatten();
    assert_eq!(words.cloned().collect::<Vec<_>>(), ["Good", "evening,", "dear", "friends."]);
    let (last, before) = said.split_last().expect("events");
    assert_eq!(last["type"], "done");
    assert!(before.iter().all(|event| event["done"] == false));
}

#[test]
fn each_flush_is_told_once_its_text_was_spoken() {
    let mut rig = sonic();
    let mut flushed = generate("c", "One. ", true);
    flushed["flush"] = json!(true);
    rig.send(&flushed);
    rig.send(&generate("c", "Two.", true));
    let key = rig.key(1, 0);
    assert!(rig.news().is_empty());
    rig.speak(key, 5);
    assert!(rig.news().iter().all(|event| event["type"] != "flush_done"));
    rig.finish_segment(key);
    let said = rig.news();
    assert!(said.iter().any(|event| event["type"] == "flush_done" && event["flush_id"] == 1), "{said:?}");
    rig.send(&generate("c", "", false));
    rig.speak_all(key, 5);
    let said = rig.news();
    assert!(said.iter().filter(|event| event["type"] == "chunk").all(|event| event["flush_id"] == 2));
    assert_eq!(said.last().map(|event| event["type"].clone()), Some(json!("done")));
}

#[test]
fn text_is_spoken_when_it_has_waited_for_more() {
    for (delay, wait) in [(Some(0), 0), (Some(500), 510), (None, 3_010)] {
        let mut rig = sonic();
        let mut asked = generate("c", "Nothing follows", true);
        asked["max_buffer_delay_ms"] = json!(delay);
        rig.send(&asked);
        let key = rig.key(1, 0);
        if wait > 0 {
            rig.wait(Span::from_millis(wait - 20));
            assert!(rig.engine[&key].segments.is_empty(), "{delay:?}");
            rig.wait(Span::from_millis(20));
        }
        assert_eq!(rig.engine[&key].segments, ["Nothing follows"], "{delay:?}");
        rig.speak_all(key, 4);
        assert!(rig.news().iter().all(|event| event["type"] != "flush_done"), "nobody asked for one");
    }
}

#[test]
fn a_cancelled_context_says_nothing_more() {
    let mut rig = sonic();
    rig.send(&generate("c", "To be broken off ", true));
    let key = rig.key(1, 0);
    rig.speak(key, 4);
    rig.news();
    assert!(rig.send(&json!({"context_id": "c", "cancel": true})).is_empty());
    assert!(rig.engine[&key].cancelled);
    rig.finish(key, FinishReason::Cancelled, None);
    assert!(rig.news().is_empty());
    assert!(rig.send(&json!({"context_id": "c", "cancel": true})).is_empty(), "twice does no harm");
    // The name is free again.
    rig.send(&generate("c", "Once more.", false));
    assert_eq!(rig.opened.len(), 2);
}

#[test]
fn a_client_that_reads_only_while_it_is_spoken_to_keeps_its_socket_between_turns() {
    let mut rig = sonic();
    rig.send(&generate("c", "One turn.", false));
    rig.answer_pings = false;
    let key = rig.key(1, 0);
    rig.speak_all(key, 4);
    rig.wait(Span::from_millis(90_000));
    assert_eq!(rig.closed, None, "nobody looks at the socket in its pool");
    rig.send(&generate("d", "Another turn ", true));
    rig.wait(Span::from_millis(5_000));
    assert_eq!(rig.closed, None, "the pong of the last turn may still come");
    let key = rig.key(2, 0);
    rig.speak(key, 4);
    rig.wait(Span::from_millis(40_000));
    assert!(rig.closed.is_some(), "but who is spoken to reads");
}

#[test]
fn errors_of_cartesia_are_not_done_and_name_their_context() {
    let mut rig = sonic();
    let mut wrong = generate("c", "Hello.", false);
    wrong["voice"]["id"] = json!("nobody");
    let said = rig.send(&wrong);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((&said[0]["type"], &said[0]["done"]), (&json!("error"), &json!(false)));
    assert_eq!((&said[0]["error_code"], &said[0]["status_code"]), (&json!("voice_not_found"), &json!(404)));
    assert_eq!(said[0]["context_id"], "c");
    let said = rig.send(&json!({"transcript": "no context"}));
    assert_eq!((&said[0]["context_id"], &said[0]["error_code"]), (&json!(""), &json!("missing_field")));
    rig.send(&generate("d", "Spoken.", false));
    assert!(rig.send(&generate("d", "", false)).is_empty(), "an end that comes twice does no harm");
    let said = rig.send(&generate("d", "More.", true));
    assert_eq!(said[0]["error_code"], "context_ended");
    let key = rig.key(2, 0);
    rig.speak_all(key, 4);
    assert_eq!(rig.news().last().map(|event| event["type"].clone()), Some(json!("done")));
    assert!(rig.closed.is_none());
}
