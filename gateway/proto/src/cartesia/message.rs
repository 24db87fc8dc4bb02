//! What a client of the socket says.

use codecs::pcm::RawEncoding;
use contract::Span;

use super::format::{Container, OutputFormat};
use super::generation;
use super::request::CONTEXT_ID_BYTES_MAX;
use crate::catalog::Ask;
use crate::speech::{SpeechReference, reference};
use crate::wire::{AudioChoice, Fields, Text, WireCodec, WireError};

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
        let mut fields = Fields::of_message(text).map_err(|error| (None, error))?;
        let context_id = fields.string("context_id", CONTEXT_ID_BYTES_MAX);
        let context_id = context_id
            .and_then(|context_id| fields.required("context_id", context_id))
            .map_err(|error| (None, error))?;
        match Said::read(fields) {
            Ok(said) => Ok(Self { context_id, said }),
            Err(error) => Err((Some(context_id), error)),
        }
    }
}

impl Said {
    fn read(mut fields: Fields) -> Result<Self, WireError> {
        if fields.boolean("cancel")? == Some(true) {
            return Ok(Self::Cancel);
        }
        let transcript = fields.text("transcript")?;
        let transcript = fields.required("transcript", transcript)?;
        let delay = fields.u32("max_buffer_delay_ms", 0, BUFFER_DELAY_MAX)?.unwrap_or(BUFFER_DELAY_DEFAULT);
        Ok(Self::Generate(Box::new(Generate {
            transcript,
            more: fields.boolean("continue")?.unwrap_or(false),
            flush: fields.boolean("flush")?.unwrap_or(false),
            delay: Span::from_millis(i64::from(delay)),
            rest: fields,
        })))
    }
}

impl Generate {
    /// Takes what a new context is opened with.
    ///
    /// # Errors
    /// What is wrong with it; a socket carries raw samples only.
    pub(super) fn opening(&mut self) -> Result<Opening, WireError> {
        let format = OutputFormat::take(&mut self.rest)?;
        if format.container != Container::Raw {
            let hint = "a socket carries raw samples; use raw".to_owned();
            return Err(WireError::Unsupported { param: "output_format.container", hint });
        }
        Ok(Opening {
            ask: generation::take(&mut self.rest)?,
            audio: AudioChoice {
                codec: WireCodec::Pcm,
                sample_rate: Some(format.sample_rate),
                speed: generation::speed_of(&mut self.rest)?,
                ..AudioChoice::default()
            },
            encoding: format.encoding,
            timestamps: self.rest.boolean("add_timestamps")?.unwrap_or(false),
            reference: reference(&mut self.rest)?,
        })
    }

    /// There is nothing in it to speak.
    pub(super) fn is_blank(&self) -> bool {
        let text = &self.transcript;
        text.lead.is_none() && text.trail.is_none() && text.body.trim().is_empty()
    }
}
