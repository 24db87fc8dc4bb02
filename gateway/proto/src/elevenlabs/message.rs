//! Messages of the sockets, both ways.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Alignment;
use super::request::{VOICE_SETTINGS, speed_of};
use crate::speech::{REFERENCE, SpeechReference};
use crate::wire::told::{self, Field, Flag, Piece, Table, Words};
use crate::wire::{Fields, Speed, Text, WireError};

/// All that is read of a client's message.
const MESSAGE: &Table =
    &[&CONTEXT_ID, &TEXT, &VOICE_SETTINGS, &REFERENCE, &FLUSH, &CLOSE_CONTEXT, &CLOSE_SOCKET];
const CONTEXT_ID: Field<Words> = Field::new("context_id", Words(256));
const TEXT: Field<Piece> = Field::new("text", Piece);
const FLUSH: Field<Flag> = Field::new("flush", Flag);
const CLOSE_CONTEXT: Field<Flag> = Field::new("close_context", Flag);
const CLOSE_SOCKET: Field<Flag> = Field::new("close_socket", Flag);

/// What a client says, in JSON Schema: made of what is read. Fields that are not in it change nothing.
#[must_use]
pub fn message_schema() -> Value {
    told::object(MESSAGE)
}

/// What a client says. Every message may say several things at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClientMessage {
    pub(super) context_id: Option<String>,
    pub(super) text: Option<Text>,
    /// Of a context that this message opens.
    pub(super) speed: Speed,
    /// Likewise: a clip in place of the voice. What is wrong with it matters to nobody else.
    pub(super) reference: Option<Result<SpeechReference, WireError>>,
    pub(super) flush: bool,
    pub(super) close_context: bool,
    pub(super) close_socket: bool,
}

impl ClientMessage {
    /// Reads a message. Unknown fields are ignored.
    ///
    /// # Errors
    /// What is wrong, with the field's name, and the context where it could be read.
    pub(super) fn decode(text: &str) -> Result<Self, (Option<String>, WireError)> {
        let mut fields = Fields::of_message(text, MESSAGE).map_err(|error| (None, error))?;
        let context_id = CONTEXT_ID.take(&mut fields).map_err(|error| (None, error))?;
        Self::rest(&mut fields, context_id.clone()).map_err(|error| (context_id, error))
    }

    fn rest(fields: &mut Fields, context_id: Option<String>) -> Result<Self, WireError> {
        Ok(Self {
            context_id,
            text: TEXT.take(fields)?,
            speed: speed_of(fields)?,
            reference: REFERENCE.take(fields).transpose(),
            flush: FLUSH.take(fields)?.unwrap_or(false),
            close_context: CLOSE_CONTEXT.take(fields)?.unwrap_or(false),
            close_socket: CLOSE_SOCKET.take(fields)?.unwrap_or(false),
        })
    }
}

/// What this server says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ElevenLabsMessage)]
pub enum ServerMessage {
    #[serde(rename_all = "camelCase")]
    Audio {
        /// Base64; empty where a context ends with characters whose sound has been sent.
        audio: String,
        /// Always `null`: what ends a context comes in a message of its own.
        is_final: Option<bool>,
        alignment: Option<Alignment>,
        normalized_alignment: Option<Alignment>,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
    },
    #[serde(rename_all = "camelCase")]
    Error {
        /// For people; the two clients that there are look in different places.
        error: String,
        message: String,
        /// The service's name of it.
        code: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
    },
    #[serde(rename_all = "camelCase")]
    Final {
        is_final: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_id: Option<String>,
    },
}

impl ServerMessage {
    pub(super) fn to_json(&self) -> String {
        // Only maps with keys that are no strings can fail, and there are none.
        serde_json::to_string(self).unwrap_or_default()
    }
}
