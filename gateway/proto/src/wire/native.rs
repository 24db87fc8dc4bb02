//! The native wire as a [`Dialect`]: its words are the session's own.

use bytes::Bytes;
use contract::{Layout, Tick};

use super::{HEADER_BYTES, Header, Incoming, Unreadable};
use crate::dialect::{Dialect, Event, Manner, Step};

/// Reads and writes docs/protocol.md as it stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

impl Dialect for Native {
    fn manner(&self) -> Manner {
        Manner { layouts: [Layout::Streamed, Layout::Whole], times: false, resumes: true }
    }

    fn handle_text(&mut self, _now: Tick, text: &str, steps: &mut Vec<Step>) {
        steps.push(match Incoming::decode(text) {
            Ok(Incoming { id, message }) => Step::Client { id, message },
            Err(unreadable) => Step::Unreadable(unreadable),
        });
    }

    fn handle_binary(&mut self, _now: Tick, bytes: &[u8], steps: &mut Vec<Step>) {
        steps.push(match Header::decode(bytes) {
            Ok((header, payload)) => Step::Audio { header, payload: Bytes::copy_from_slice(payload) },
            Err(error) => Step::Unreadable(Box::new(Unreadable { id: None, error })),
        });
    }

    fn handle_event(&mut self, _now: Tick, event: &Event<'_>, steps: &mut Vec<Step>) {
        match event {
            Event::Message(message) => steps.push(Step::Text(message.to_json())),
            Event::Packet { header, payload } => {
                let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
                message.extend_from_slice(&header.encode());
                message.extend_from_slice(payload);
                steps.push(Step::Binary(Bytes::from(message)));
            }
            Event::FlushSpoken { .. } | Event::Quotas(_) | Event::Settled | Event::Times { .. } => {}
        }
    }
}
