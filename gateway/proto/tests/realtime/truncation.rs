//! Reports of where a listener was: what they stop, what they leave, and that none brings back what was cut.

use contract::{FinishReason, Span};
use serde_json::json;

use crate::client::Client;
use crate::conversation::ENDING;

#[test]
fn a_truncation_stops_what_is_being_made_and_leaves_the_text_that_was_heard() {
    let mut client = Client::new();
    client.say("One two three four five six seven eight nine ten eleven twelve.");
    client.ask(&json!({}));
    client.speak(50);
    let item = client.last("response.output_item.added")["item"]["id"].clone();
    client.now += Span::from_millis(2_000);
    client.events.clear();
    let truncate = json!({ "type": "conversation.item.truncate", "item_id": item, "content_index": 0, "audio_end_ms": 1_500 });
    client.send(&truncate);
    let mut kinds = ENDING.map(str::to_owned).to_vec();
    kinds.push("conversation.item.truncated".to_owned());
    assert_eq!(client.kinds(), kinds);
    assert_eq!(client.last("conversation.item.truncated")["audio_end_ms"], 1_500);
    client.send(&json!({ "type": "conversation.item.retrieve", "item_id": item }));
    let kept = client.last("conversation.item.retrieved")["item"]["content"][0]["transcript"].clone();
    let kept = kept.as_str().unwrap();
    assert!("One two three four five six seven eight".starts_with(kept) && kept.len() > 10, "{kept:?}");
    // Again, beyond its end, after everything: clamped to what is left, and no error.
    let mut late = truncate.clone();
    late["audio_end_ms"] = json!(99_000);
    client.send(&late);
    assert_eq!(client.last("conversation.item.truncated")["audio_end_ms"], 1_500);
    client.send(&json!({ "type": "conversation.item.retrieve", "item_id": item }));
    assert_eq!(client.last("conversation.item.retrieved")["item"]["content"][0]["transcript"], kept);
    assert!(client.errors().is_empty());
}

#[test]
fn a_truncation_after_the_end_is_a_playback_report() {
    let mut client = Client::new();
    client.say("One two three four.");
    client.ask(&json!({}));
    client.speak(25);
    client.finish(FinishReason::Done, None);
    let item = client.last("response.done")["response"]["output"][0]["id"].clone();
    client.send(&json!({ "type": "conversation.item.truncate", "item_id": item, "content_index": 0,
        "audio_end_ms": 1_000 }));
    client.send(&json!({ "type": "conversation.item.retrieve", "item_id": item }));
    let kept = &client.last("conversation.item.retrieved")["item"]["content"][0]["transcript"];
    assert!(["One two", "One two three"].contains(&kept.as_str().unwrap()), "{kept}");
    client.send(&json!({ "type": "conversation.item.truncate", "item_id": "nobody", "audio_end_ms": 1 }));
    assert_eq!(client.errors(), ["item_truncate_invalid_item_id"]);
}

#[test]
fn what_a_truncation_has_cut_no_later_one_brings_back() {
    // Stopped by the client with and without a report, or spoken to its end; truncated at once, or long after.
    for stopped in ["by a cancel", "by a truncation", "not at all"] {
        for others in [0, 10] {
            let mut client = Client::new();
            client.say("One two three four five six seven eight nine ten eleven twelve.");
            client.ask(&json!({}));
            client.speak(50);
            let item = client.last("response.output_item.added")["item"]["id"].clone();
            client.now += Span::from_millis(3_500);
            let mut kept = 4_000;
            match stopped {
                "by a cancel" => client.send(&json!({ "type": "response.cancel" })),
                "by a truncation" => {
                    kept = 3_000;
                    client.send(
                        &json!({ "type": "conversation.item.truncate", "item_id": item, "content_index": 0,
                        "audio_end_ms": kept }),
                    );
                    client.finish(FinishReason::Cancelled, None);
                }
                _ => client.finish(FinishReason::Done, None),
            }
            for _ in 0..others {
                client.say("Another.");
                client.ask(&json!({}));
                client.speak(10);
                client.finish(FinishReason::Done, None);
            }
            let mut before = usize::MAX;
            for millis in [2_500, 1_000, 2_000, 99_000, 500, 1_000] {
                client.send(
                    &json!({ "type": "conversation.item.truncate", "item_id": item, "content_index": 0,
                    "audio_end_ms": millis }),
                );
                kept = kept.min(millis);
                assert_eq!(
                    client.last("conversation.item.truncated")["audio_end_ms"],
                    kept,
                    "{stopped} {millis}"
                );
                client.send(&json!({ "type": "conversation.item.retrieve", "item_id": item }));
                let part = &client.last("conversation.item.retrieved")["item"]["content"][0];
                let text = part["transcript"].as_str().expect("a transcript");
                assert!(text.len() <= before && text.len() < 60, "{stopped}, {millis} ms: {text:?}");
                assert_eq!(text.len() < before, millis == kept, "{stopped}, {millis} ms: {text:?}");
                before = text.len();
            }
            assert!(client.errors().is_empty());
        }
    }
}

#[test]
fn a_truncation_of_what_was_heard_long_ago_is_held_to_its_sound_too() {
    let mut client = Client::new();
    let mut items = Vec::new();
    for _ in 0..12 {
        client.say("One two three four.");
        client.ask(&json!({}));
        client.speak(25);
        client.finish(FinishReason::Done, None);
        items.push(client.last("response.done")["response"]["output"][0]["id"].clone());
    }
    let asked = client.last("conversation.item.added")["previous_item_id"].clone();
    for (item, millis, kept, text) in [
        (&items[0], 99_000, 2_000, "One two three four."),
        (&items[0], 1_000, 1_000, "One two"),
        (&items[0], 1_500, 1_000, "One two"),
        (&items[0], 0, 0, ""),
        (&asked, 500, 0, "One two three four."),
    ] {
        client.send(&json!({ "type": "conversation.item.truncate", "item_id": item, "content_index": 0,
            "audio_end_ms": millis }));
        assert_eq!(client.last("conversation.item.truncated")["audio_end_ms"], kept, "{millis}");
        client.send(&json!({ "type": "conversation.item.retrieve", "item_id": item }));
        let part = &client.last("conversation.item.retrieved")["item"]["content"][0];
        assert!(part["transcript"] == text || part["text"] == text, "{millis}: {part}");
    }
    assert!(client.errors().is_empty());
}
