//! What the service says, on the socket and as server-sent events.

use serde::Serialize;
use utoipa::ToSchema;

use crate::alignment::TimedWord;
use crate::wire::CLOCK_HZ;

/// One event. Every one carries the context it is about, where the request named one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = CartesiaEvent)]
pub enum Event {
    Chunk {
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
        /// Base64.
        data: String,
        done: bool,
        status_code: u16,
        /// Milliseconds since the context's first text.
        step_time: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        flush_id: Option<u32>,
    },
    Done {
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
        done: bool,
        status_code: u16,
    },
    /// `done` is false, because one widely used client looks at it before it looks for an error.
    Error {
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
        done: bool,
        status_code: u16,
        title: String,
        message: String,
        error_code: String,
        request_id: String,
    },
    FlushDone {
        context_id: Option<String>,
        done: bool,
        flush_done: bool,
        flush_id: u32,
        status_code: u16,
    },
    Timestamps {
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
        done: bool,
        status_code: u16,
        word_timestamps: WordTimestamps,
        #[serde(skip_serializing_if = "Option::is_none")]
        flush_id: Option<u32>,
    },
}

/// Words as they were sent, and seconds from the context's first sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct WordTimestamps {
    pub words: Vec<String>,
    pub start: Vec<f64>,
    pub end: Vec<f64>,
}

impl Event {
    #[must_use]
    pub fn to_json(&self) -> String {
        // Only maps with keys that are no strings can fail, and there are none.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As a server-sent event.
    #[must_use]
    pub fn to_event(&self) -> String {
        format!("event: {}\ndata: {}\n\n", self.name(), self.to_json())
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Chunk { .. } => "chunk",
            Self::Done { .. } => "done",
            Self::Error { .. } => "error",
            Self::FlushDone { .. } => "flush_done",
            Self::Timestamps { .. } => "timestamps",
        }
    }
}

impl WordTimestamps {
    #[must_use]
    pub fn new(words: Vec<TimedWord>) -> Self {
        let seconds = |position: u64| (position * 1_000 / u64::from(CLOCK_HZ)) as f64 / 1_000.0;
        let mut timestamps = Self::default();
        for word in words {
            timestamps.words.push(word.word);
            timestamps.start.push(seconds(word.start));
            timestamps.end.push(seconds(word.end));
        }
        timestamps
    }
}
