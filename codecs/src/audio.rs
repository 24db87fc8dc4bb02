//! Audio as uploads give it: mono samples at the rate of their file, read within limits.

use crate::{CodecError, ogg, wav};

/// Mono samples at one rate.
#[derive(Clone, Debug, PartialEq)]
pub struct MonoAudio {
    /// Samples per second.
    pub rate_hz: u32,
    /// Mono, finite, in [-1, 1].
    pub samples: Vec<f32>,
}

impl MonoAudio {
    /// Length in milliseconds, rounded down.
    #[must_use]
    pub fn duration_ms(&self) -> u64 {
        self.samples.len() as u64 * 1000 / u64::from(self.rate_hz.max(1))
    }
}

/// Bounds on an upload, checked before anything of that size is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioLimits {
    /// Bytes of the whole file.
    pub bytes_max: usize,
    /// Channels of the file; more than one is averaged to mono.
    pub channels_max: u16,
    /// Length of the sound.
    pub duration_ms_max: u32,
    /// Highest sample rate.
    pub rate_hz_max: u32,
    /// Lowest sample rate.
    pub rate_hz_min: u32,
}

impl Default for AudioLimits {
    /// A reference clip: 20 MiB, 8 channels, one minute, 8 to 192 kHz.
    fn default() -> Self {
        Self {
            bytes_max: 20 << 20,
            channels_max: 8,
            duration_ms_max: 60_000,
            rate_hz_max: 192_000,
            rate_hz_min: 8_000,
        }
    }
}

impl AudioLimits {
    pub(crate) fn check_bytes(&self, found: usize) -> Result<(), CodecError> {
        check_max("size of the file in bytes", found as u64, self.bytes_max as u64)
    }

    pub(crate) fn check_channels(&self, found: u16) -> Result<(), CodecError> {
        check_max("channel count", u64::from(found), u64::from(self.channels_max))
    }

    pub(crate) fn check_duration(&self, samples: u64, rate_hz: u32) -> Result<(), CodecError> {
        let found_ms = samples.saturating_mul(1000) / u64::from(rate_hz.max(1));
        check_max("length in milliseconds", found_ms, u64::from(self.duration_ms_max))
    }

    pub(crate) fn check_rate(&self, rate_hz: u32) -> Result<(), CodecError> {
        if (self.rate_hz_min..=self.rate_hz_max).contains(&rate_hz) {
            return Ok(());
        }
        Err(CodecError::Unsupported {
            what: "sample rate in Hz",
            found: u64::from(rate_hz),
            supported: "a common rate such as 16000, 24000, 44100 or 48000",
        })
    }
}

/// Reads a WAV or an Ogg Opus file, told apart by its first bytes. Ogg Opus is decoded at 24 kHz.
pub fn read_audio(bytes: &[u8], limits: &AudioLimits) -> Result<MonoAudio, CodecError> {
    if bytes.starts_with(b"OggS") {
        return ogg::decode(bytes, 24_000, limits);
    }
    if bytes.starts_with(b"RIFF") {
        return wav::decode(bytes, limits);
    }
    Err(CodecError::Malformed { format: "audio", reason: "neither WAV nor Ogg Opus by its first four bytes" })
}

fn check_max(what: &'static str, found: u64, limit: u64) -> Result<(), CodecError> {
    if found > limit {
        return Err(CodecError::TooLarge { what, found, limit });
    }
    Ok(())
}
