//! Messages of a client that means no good, for [`crate::fuzz::realtime`].

use serde_json::json;

/// The message that `kind` and `argument` choose.
pub(crate) fn message(kind: u8, argument: u8) -> String {
    let id = format!("item_s_{}", argument % 8);
    let text = ["Hello there. ", "a", "<|x|>", "", "3.", "你好。"][usize::from(argument) % 6];
    let part = ["input_text", "input_audio", "output_text", "none"][usize::from(argument / 6) % 4];
    let item = json!({
        "id": if argument > 100 { json!(id) } else { json!(null) },
        "type": if argument > 250 { "mcp_call" } else { "message" },
        "role": if argument.is_multiple_of(5) { "assistant" } else { "user" },
        "content": [{ "type": part, "text": text }],
    });
    let previous = ["root", "x", &id][usize::from(argument) % 3];
    let format = ["audio/pcm", "audio/pcmu", "audio/opus"][usize::from(argument) % 3];
    let modality = if argument.is_multiple_of(7) { "text" } else { "audio" };
    let event = match kind {
        0 | 1 => json!({ "type": "conversation.item.create", "item": item,
            "previous_item_id": previous }),
        2 | 3 => json!({ "type": "response.create", "response": {
            "conversation": if argument > 200 { "none" } else { "auto" },
            "input": if argument > 150 { json!([item]) } else { json!(null) },
            "output_modalities": [modality],
            "instructions": text,
        } }),
        4 => json!({ "type": "response.cancel" }),
        5 => json!({ "type": "conversation.item.truncate", "item_id": id, "content_index": 0,
            "audio_end_ms": u64::from(argument) * 20 }),
        6 => json!({ "type": "conversation.item.retrieve", "item_id": id }),
        7 => json!({ "type": "conversation.item.delete", "item_id": id }),
        8 => json!({ "type": "session.update", "session": { "audio": {
            "input": { "turn_detection": if argument > 128 { json!({ "type": "server_vad",
                "idle_timeout_ms": argument }) } else { json!(null) },
                "format": { "type": format } },
            "output": { "voice": text } } } }),
        9 => {
            json!({ "type": "input_audio_buffer.append", "audio": "AAECAwQF".repeat(usize::from(argument)) })
        }
        _ if argument > 128 => json!({ "type": "input_audio_buffer.commit",
            "voxlane": { "reference": { "transcript": text } } }),
        _ => json!({ "type": "input_audio_buffer.clear" }),
    };
    event.to_string()
}
