//! Packets to samples.

use super::{PACKET_DURATION_48K_MAX, check_packet, check_rate, library, malformed};
use crate::{CodecError, OPUS_CLOCK_HZ};

/// Decodes one mono stream (stereo packets are mixed down by libopus) and drops the pre-skip.
pub struct OpusDecoder {
    inner: ::opus::Decoder,
    rate_hz: u32,
    /// Room for the longest packet, reused by every call.
    decoded: Vec<f32>,
    /// Decoded samples still to drop at the start, at `rate_hz`.
    skip: usize,
}

impl OpusDecoder {
    /// A decoder at `rate_hz` (8, 12, 16, 24 or 48 kHz) that drops the first `pre_skip_48k` samples.
    ///
    /// # Errors
    /// [`CodecError::InvalidSetting`] for another rate.
    pub fn new(rate_hz: u32, pre_skip_48k: u32) -> Result<Self, CodecError> {
        check_rate(rate_hz)?;
        let inner = ::opus::Decoder::new(rate_hz, ::opus::Channels::Mono)
            .map_err(|error| library("making an Opus decoder", &error))?;
        let mut decoder = Self { inner, rate_hz, decoded: Vec::new(), skip: 0 };
        decoder.decoded = vec![0.0; decoder.at_rate(PACKET_DURATION_48K_MAX)];
        decoder.skip = decoder.at_rate(pre_skip_48k);
        Ok(decoder)
    }

    #[must_use]
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// Decodes one packet; what the pre-skip leaves of it comes back, at `rate_hz`.
    ///
    /// # Errors
    /// [`CodecError::Malformed`] or [`CodecError::TooLarge`] for bytes that are no packet; later packets
    /// can still be decoded.
    pub fn decode(&mut self, packet: &[u8]) -> Result<&[f32], CodecError> {
        self.decode_last(packet, 0)
    }

    /// Decodes a stream's last packet and drops `end_trim_48k` at its end.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_last(&mut self, packet: &[u8], end_trim_48k: u32) -> Result<&[f32], CodecError> {
        check_packet(packet)?;
        let len = self
            .inner
            .decode_float(packet, &mut self.decoded, false)
            .map_err(|_| malformed("a packet the decoder refuses"))?;
        let end = len.saturating_sub(self.at_rate(end_trim_48k));
        let start = self.take_skip(len).min(end);
        Ok(&self.decoded[start..end])
    }

    /// Fills a gap of `duration_48k` (a multiple of 2.5 ms up to 120 ms) by concealment.
    ///
    /// # Errors
    /// [`CodecError::InvalidSetting`] for another duration.
    pub fn conceal(&mut self, duration_48k: u32) -> Result<&[f32], CodecError> {
        if duration_48k == 0 || !duration_48k.is_multiple_of(120) || duration_48k > PACKET_DURATION_48K_MAX {
            return Err(CodecError::InvalidSetting {
                setting: "duration of a gap in 48 kHz samples",
                value: i64::from(duration_48k),
                allowed: "multiples of 120 up to 5760",
            });
        }
        let wanted = self.at_rate(duration_48k);
        let len = self
            .inner
            .decode_float(&[], &mut self.decoded[..wanted], false)
            .map_err(|error| library("Opus concealment", &error))?;
        let start = self.take_skip(len);
        Ok(&self.decoded[start..len])
    }

    /// Forgets everything and drops a new pre-skip: a START flag or a new epoch.
    ///
    /// # Errors
    /// [`CodecError::Library`] only if libopus breaks its own contract.
    pub fn reset(&mut self, pre_skip_48k: u32) -> Result<(), CodecError> {
        self.inner.reset_state().map_err(|error| library("Opus reset", &error))?;
        self.skip = self.at_rate(pre_skip_48k);
        Ok(())
    }

    fn at_rate(&self, samples_48k: u32) -> usize {
        (u64::from(samples_48k) * u64::from(self.rate_hz) / u64::from(OPUS_CLOCK_HZ)) as usize
    }

    fn take_skip(&mut self, len: usize) -> usize {
        let dropped = self.skip.min(len);
        self.skip -= dropped;
        dropped
    }
}
