//! Audio of the client's: appended, committed, cleared.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::settings::Format;
use super::words::Mistake;

/// Bytes of base64 in one event.
const APPEND_BYTES_MAX: usize = 15 * 1_024 * 1_024;
/// Seconds of the newest audio kept: as long as a reference clip may be.
const KEPT_SECONDS: usize = 30;

/// Clients differ in whether they pad, and in what they leave in the last bits.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The buffer that `commit` makes an item of.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    /// The newest samples, 16-bit, at `rate_hz`.
    samples: Vec<i16>,
    rate_hz: u32,
    /// First byte of a sample whose second has not come.
    odd: Option<u8>,
    /// Samples since the last commit or clear.
    count: u64,
}

/// A committed recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recording {
    pub(super) samples: Vec<i16>,
    pub(super) rate_hz: u32,
}

impl Input {
    /// Takes base64 in; gives the samples.
    pub(super) fn append(&mut self, audio: &str, format: Format) -> Result<Vec<i16>, Mistake> {
        if audio.len() > APPEND_BYTES_MAX {
            let message = format!("audio must be at most {APPEND_BYTES_MAX} bytes of base64 an event");
            return Err(Mistake::new("invalid_value", message).at("audio"));
        }
        let wrong = |_| Mistake::new("invalid_value", "audio is not base64").at("audio");
        let bytes = LENIENT.decode(audio.trim_ascii()).map_err(wrong)?;
        let samples = self.samples_of(&bytes, format);
        self.count += samples.len() as u64;
        self.rate_hz = format.rate_hz();
        self.samples.extend_from_slice(&samples);
        let kept = KEPT_SECONDS * self.rate_hz as usize;
        if self.samples.len() > kept {
            self.samples.drain(..self.samples.len() - kept);
        }
        Ok(samples)
    }

    /// Whether there is nothing to commit.
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Empties the buffer.
    pub(super) fn take(&mut self) -> Recording {
        self.count = 0;
        self.odd = None;
        Recording { samples: std::mem::take(&mut self.samples), rate_hz: self.rate_hz }
    }

    fn samples_of(&mut self, bytes: &[u8], format: Format) -> Vec<i16> {
        let code = match format {
            Format::ALaw => codecs::g711::a_law_to_i16,
            Format::MuLaw => codecs::g711::mu_law_to_i16,
            Format::Pcm => return self.pcm(bytes),
        };
        bytes.iter().map(|byte| code(*byte)).collect()
    }

    /// Events may end within a sample.
    fn pcm(&mut self, bytes: &[u8]) -> Vec<i16> {
        let whole;
        let bytes = match self.odd.take() {
            None => bytes,
            Some(first) => {
                whole = [&[first], bytes].concat();
                &whole[..]
            }
        };
        let (pairs, rest) = bytes.as_chunks::<2>();
        self.odd = rest.first().copied();
        pairs.iter().map(|pair| i16::from_le_bytes(*pair)).collect()
    }
}
