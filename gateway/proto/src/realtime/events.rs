//! The types of this protocol's events that are read and said here, for the reference of the sockets.

/// What clients say.
pub const CLIENT_EVENTS: [&str; 11] = [
    "conversation.item.create",
    "conversation.item.delete",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "input_audio_buffer.append",
    "input_audio_buffer.clear",
    "input_audio_buffer.commit",
    "output_audio_buffer.clear",
    "response.cancel",
    "response.create",
    "session.update",
];

/// What this server says.
pub const SERVER_EVENTS: [&str; 26] = [
    "conversation.item.added",
    "conversation.item.deleted",
    "conversation.item.done",
    "conversation.item.retrieved",
    "conversation.item.truncated",
    "error",
    "input_audio_buffer.cleared",
    "input_audio_buffer.committed",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.timeout_triggered",
    "rate_limits.updated",
    "response.content_part.added",
    "response.content_part.done",
    "response.created",
    "response.done",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.delta",
    "response.output_audio_transcript.done",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.output_text.done",
    "session.created",
    "session.updated",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SOURCES: [&str; 6] = [
        include_str!("client.rs"),
        include_str!("hearing.rs"),
        include_str!("mod.rs"),
        include_str!("response.rs"),
        include_str!("turns.rs"),
        include_str!("words.rs"),
    ];

    /// Texts in quotes, wherever they stand.
    fn quoted() -> BTreeSet<&'static str> {
        SOURCES.iter().flat_map(|source| source.split('"')).collect()
    }

    #[test]
    fn every_listed_event_stands_in_the_code_and_every_event_of_the_code_is_listed() {
        let quoted = quoted();
        for event in CLIENT_EVENTS.iter().chain(&SERVER_EVENTS) {
            assert!(quoted.contains(event), "{event}");
        }
        let listed = |word: &&str| CLIENT_EVENTS.contains(word) || SERVER_EVENTS.contains(word);
        let ends = [".added", ".created", ".delta", ".done", ".updated", ".started", ".stopped", ".cleared"];
        for word in
            quoted.iter().filter(|word| word.contains('.') && ends.iter().any(|end| word.ends_with(end)))
        {
            assert!(listed(word), "{word}");
        }
    }
}
