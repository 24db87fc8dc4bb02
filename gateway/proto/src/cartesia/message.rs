//! What a client of the socket says.

use codecs::pcm::RawEncoding;
use contract::Span;

use serde_json::{Value, json};

use super::format::ON_SOCKET;
use super::generation::{self, GENERATION_CONFIG, LANGUAGE, LOCALE, MODEL_ID, SEED, VOICE};
use super::request::{ADD_TIMESTAMPS, CONTEXT_ID_CHARACTERS_MAX, TRANSCRIPT};
use crate::catalog::Ask;
use crate::speech::{REFERENCE, SpeechReference};
use crate::wire::told::{self, Field, Flag, Table, Whole, Words};
use crate::wire::{AudioChoice, Fields, Text, WireCodec, WireError};

/// All that is read of a client's message.
const MESSAGE: &Table = &[
    &CONTEXT_ID,
    &CANCEL,
    &TRANSCRIPT,
    &CONTINUE,
    &FLUSH,
    &MAX_BUFFER_DELAY_MS,
    &ON_SOCKET,
    &MODEL_ID,
    &VOICE,
    &LANGUAGE,
    &LOCALE,
    &SEED,
    &GENERATION_CONFIG,
    &ADD_TIMESTAMPS,
    &REFERENCE,
];
const CONTEXT_ID: Field<Words> = Field::required("context_id", Words(CONTEXT_ID_CHARACTERS_MAX));
const CANCEL: Field<Flag> = Field::new("cancel", Flag);
const CONTINUE: Field<Flag> = Field::new("continue", Flag);
const FLUSH: Field<Flag> = Field::new("flush", Flag);
const MAX_BUFFER_DELAY_MS: Field<Whole> =
    Field::new("max_buffer_delay_ms", Whole { min: 0, max: BUFFER_DELAY_MAX });

/// What a client says, in JSON Schema: made of what is read. Fields that are not in it change nothing.
#[must_use]
pub fn message_schema() -> Value {
    let mut schema = told::object(MESSAGE);
    // What cancels says nothing else, and what opens a context is read of its first message alone.
    schema["required"] = json!([CONTEXT_ID.name]);
    let cancels = json!({ "required": [CANCEL.name], "properties": { CANCEL.name: { "const": true } } });
    schema["anyOf"] = json!([cancels, { "required": [TRANSCRIPT.name] }]);
    schema
}

/// How long text may wait for more when the client does not say.
const BUFFER_DELAY_DEFAULT: u32 = 3_000;
const BUFFER_DELAY_MAX: u32 = 5_000;

/// A message that names a context.
pub(super) struct ClientMessage {
    pub(super) context_id: String,
    pub(super) said: Said,
}

pub(super) enum Said {
    Cancel,
    Generate(Box<Generate>),
}

/// A piece of text, and all that a context could be opened with.
pub(super) struct Generate {
    pub(super) transcript: Text,
    /// More text will follow.
    pub(super) more: bool,
    pub(super) flush: bool,
    /// Text that waits this long for more is spoken; zero speaks each piece at once.
    pub(super) delay: Span,
    /// What is read only where the context is new: clients repeat it with every message, and not always
    /// the same.
    rest: Fields,
}

/// What a context is opened with.
pub(super) struct Opening {
    pub(super) ask: Ask,
    pub(super) audio: AudioChoice,
    pub(super) encoding: RawEncoding,
    pub(super) timestamps: bool,
    /// A clip in place of a voice.
    pub(super) reference: Option<SpeechReference>,
}

impl ClientMessage {
    /// Reads a message. Unknown fields are ignored.
    ///
    /// # Errors
    /// What is wrong, with the field's name, and the context where it could be read.
    pub(super) fn decode(text: &str) -> Result<Self, (Option<String>, WireError)> {
        let mut fields = Fields::of_message(text, MESSAGE).map_err(|error| (None, error))?;
        let context_id = CONTEXT_ID.demand(&mut fields).map_err(|error| (None, error))?;
        match Said::read(fields) {
            Ok(said) => Ok(Self { context_id, said }),
            Err(error) => Err((Some(context_id), error)),
        }
    }
}

impl Said {
    fn read(mut fields: Fields) -> Result<Self, WireError> {
        if CANCEL.take(&mut fields)? == Some(true) {
            return Ok(Self::Cancel);
        }
        let transcript = TRANSCRIPT.demand(&mut fields)?;
        let delay = MAX_BUFFER_DELAY_MS.take(&mut fields)?.unwrap_or(BUFFER_DELAY_DEFAULT);
        Ok(Self::Generate(Box::new(Generate {
            transcript,
            more: CONTINUE.take(&mut fields)?.unwrap_or(false),
            flush: FLUSH.take(&mut fields)?.unwrap_or(false),
            delay: Span::from_millis(i64::from(delay)),
            rest: fields,
        })))
    }
}

impl Generate {
    /// Takes what a new context is opened with.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn opening(&mut self) -> Result<Opening, WireError> {
        let format = ON_SOCKET.demand(&mut self.rest)?;
        Ok(Opening {
            ask: generation::take(&mut self.rest)?,
            audio: AudioChoice {
                codec: WireCodec::Pcm,
                sample_rate: Some(format.sample_rate),
                speed: generation::speed_of(&mut self.rest)?,
                ..AudioChoice::default()
            },
            encoding: format.encoding,
            timestamps: ADD_TIMESTAMPS.take(&mut self.rest)?.unwrap_or(false),
            reference: REFERENCE.take(&mut self.rest)?,
        })
    }

    /// There is nothing in it to speak.
    pub(super) fn is_blank(&self) -> bool {
        let text = &self.transcript;
        text.lead.is_none() && text.trail.is_none() && text.body.trim().is_empty()
    }
}
