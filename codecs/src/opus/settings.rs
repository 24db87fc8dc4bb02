//! What an encoder can be told.

use super::check_rate;
use crate::{CodecError, OPUS_CLOCK_HZ};

/// What the encoder optimises for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpusApplication {
    /// Closest to the input.
    Audio,
    /// 2.5 ms of look-ahead instead of 6.5 ms; speech modes are off.
    LowDelay,
    /// Intelligibility first: high-pass filtered, formants emphasised.
    Voip,
}

/// Audio in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpusFrame {
    Ms2_5,
    Ms5,
    Ms10,
    Ms20,
    Ms40,
    Ms60,
}

impl OpusFrame {
    pub const ALL: [Self; 6] = [Self::Ms2_5, Self::Ms5, Self::Ms10, Self::Ms20, Self::Ms40, Self::Ms60];

    /// Duration in samples at 48 kHz.
    #[must_use]
    pub const fn duration_48k(self) -> u32 {
        match self {
            Self::Ms2_5 => 120,
            Self::Ms5 => 240,
            Self::Ms10 => 480,
            Self::Ms20 => 960,
            Self::Ms40 => 1_920,
            Self::Ms60 => 2_880,
        }
    }
}

/// What kind of sound the encoder should expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpusSignal {
    Auto,
    Music,
    Voice,
}

/// Settings of one encoder. The channel count is always one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpusSettings {
    pub application: OpusApplication,
    /// 6,000 to 510,000 bits per second.
    pub bitrate_bps: u32,
    /// 0 (cheapest) to 10 (best).
    pub complexity: u8,
    /// Send one-byte packets during silence; the receiver must still advance time.
    pub dtx: bool,
    pub frame: OpusFrame,
    /// Rate of the samples pushed: 8, 12, 16, 24 or 48 kHz.
    pub rate_hz: u32,
    pub signal: OpusSignal,
    /// Variable bit rate, the better choice on any wire without a fixed slot size.
    pub vbr: bool,
}

impl Default for OpusSettings {
    /// Speech over a WebSocket: 24 kHz, 20 ms packets, 32 kb/s VBR, complexity 5, no DTX. In-band error
    /// correction is never on, because a reliable transport loses nothing.
    fn default() -> Self {
        Self {
            application: OpusApplication::Audio,
            bitrate_bps: 32_000,
            complexity: 5,
            dtx: false,
            frame: OpusFrame::Ms20,
            rate_hz: 24_000,
            // Measured on the embedded voice at 32 kb/s: left to itself libopus takes its transform coder, a third
            // of the time of the speech coder that `Voice` forces, and 2.5 dB nearer to the input.
            signal: OpusSignal::Auto,
            vbr: true,
        }
    }
}

impl OpusSettings {
    /// Samples of one packet at `rate_hz`; exact, because every Opus rate divides 48 kHz.
    #[must_use]
    pub const fn frame_samples(&self) -> usize {
        (self.frame.duration_48k() / (OPUS_CLOCK_HZ / self.rate_hz)) as usize
    }

    pub(super) fn check(&self) -> Result<(), CodecError> {
        check_rate(self.rate_hz)?;
        check_bitrate(self.bitrate_bps)?;
        check_complexity(self.complexity)
    }
}

pub(super) fn check_bitrate(bitrate_bps: u32) -> Result<(), CodecError> {
    check_range("Opus bit rate in bits per second", bitrate_bps, 6_000..=510_000, "6000 to 510000")
}

pub(super) fn check_complexity(complexity: u8) -> Result<(), CodecError> {
    check_range("Opus complexity", u32::from(complexity), 0..=10, "0 to 10")
}

fn check_range(
    setting: &'static str,
    value: u32,
    range: std::ops::RangeInclusive<u32>,
    allowed: &'static str,
) -> Result<(), CodecError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(CodecError::InvalidSetting { setting, value: i64::from(value), allowed })
}
