//! How the sound of a whole text stands in the body of an HTTP answer. Each protocol has shapes of its own;
//! what makes the sound knows none of them.

use bytes::Bytes;
use contract::{FinishReason, Span, Usage};

use crate::alignment::TimedCharacter;
use crate::speech::SpeechFormat;
use crate::wire::ErrorObject;

/// The next part of the sound: bytes of the file, and the characters that begin to sound in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sound {
    pub audio: Bytes,
    /// Empty for shapes that want none.
    pub times: Vec<TimedCharacter>,
}

/// Writes an answer's body piece by piece.
pub trait Body: Send {
    fn media_type(&self) -> &'static str;

    /// Whether [`Sound::times`] are wanted.
    fn takes_times(&self) -> bool {
        false
    }

    /// Sound that came `after` the request; empty where nothing is to be sent.
    fn sound(&mut self, sound: Sound, after: Span) -> Bytes;

    /// Why the sound ends, before [`Body::end`].
    fn finished(&mut self, _reason: FinishReason) {}

    /// The rest of the sound, and the end. `usage` counts samples at 48 kHz.
    fn end(&mut self, rest: Sound, usage: &Usage, after: Span) -> Bytes;

    /// The sound broke off; `None` where only a body that ends too early can say so.
    fn broken(&mut self, error: ErrorObject) -> Option<Bytes>;
}

/// That a machine spoke, in plain words, and the IPTC's word for it.
pub const SPOKEN_BY: &str = concat!("AI-generated speech, Voxlane ", env!("CARGO_PKG_VERSION"));
pub const SOURCE_TYPE: &str = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia";

/// What every Ogg, FLAC and MP3 file says of itself.
#[must_use]
pub fn comments() -> Vec<(String, String)> {
    let comment = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![comment("DIGITALSOURCETYPE", SOURCE_TYPE), comment("COMMENT", SPOKEN_BY)]
}

/// The file itself.
#[derive(Clone, Copy, Debug)]
pub struct Plain(pub SpeechFormat);

impl Body for Plain {
    fn media_type(&self) -> &'static str {
        self.0.content_type()
    }

    fn sound(&mut self, sound: Sound, _after: Span) -> Bytes {
        sound.audio
    }

    fn end(&mut self, rest: Sound, _usage: &Usage, _after: Span) -> Bytes {
        rest.audio
    }

    fn broken(&mut self, _error: ErrorObject) -> Option<Bytes> {
        None
    }
}
