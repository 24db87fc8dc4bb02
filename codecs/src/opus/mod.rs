//! Opus (RFC 6716) by libopus: an encoder that turns a sample stream into timed packets, and a decoder.
//!
//! Time stamps count decoded samples at 48 kHz from 0 and include the pre-skip, as RFC 7587 and the native
//! header have them. A receiver drops the first `pre_skip_48k` decoded samples and the last `end_trim_48k`;
//! what remains has exactly the length of what was encoded, aligned with it.

mod decoder;
mod encoder;
mod settings;

pub use decoder::OpusDecoder;
pub use encoder::{OpusEncoder, OpusPacket, OpusTail, PacketBatch};
pub use settings::{OpusApplication, OpusFrame, OpusSettings, OpusSignal};

use crate::CodecError;

/// Longest packet RFC 6716 allows: 48 frames of 2.5 ms with 1275 bytes each, plus their headers.
pub const PACKET_BYTES_MAX: usize = 48 * (1275 + 2) + 2;

/// Longest duration of one packet: 120 ms at 48 kHz.
pub const PACKET_DURATION_48K_MAX: u32 = 5_760;

/// The duration of a packet at 48 kHz, read from its header.
///
/// # Errors
/// [`CodecError::Malformed`] for bytes that are no Opus packet.
pub fn packet_duration_48k(packet: &[u8]) -> Result<u32, CodecError> {
    check_packet(packet)?;
    let samples = ::opus::packet::get_nb_samples(packet, crate::OPUS_CLOCK_HZ)
        .map_err(|_| malformed("bad packet header"))?;
    u32::try_from(samples)
        .ok()
        .filter(|samples| (1..=PACKET_DURATION_48K_MAX).contains(samples))
        .ok_or(malformed("longer than 120 ms"))
}

fn check_packet(packet: &[u8]) -> Result<(), CodecError> {
    if packet.is_empty() {
        // libopus takes an empty packet for a lost one, which must be asked for by name instead.
        return Err(malformed("an empty packet"));
    }
    if packet.len() > PACKET_BYTES_MAX {
        return Err(CodecError::TooLarge {
            what: "size of an Opus packet in bytes",
            found: packet.len() as u64,
            limit: PACKET_BYTES_MAX as u64,
        });
    }
    Ok(())
}

fn check_rate(rate_hz: u32) -> Result<(), CodecError> {
    if matches!(rate_hz, 8_000 | 12_000 | 16_000 | 24_000 | 48_000) {
        return Ok(());
    }
    Err(CodecError::InvalidSetting {
        setting: "Opus sample rate in Hz",
        value: i64::from(rate_hz),
        allowed: "8000, 12000, 16000, 24000 or 48000 (resample first)",
    })
}

fn malformed(reason: &'static str) -> CodecError {
    CodecError::Malformed { format: "Opus", reason }
}

fn library(operation: &'static str, error: &::opus::Error) -> CodecError {
    CodecError::Library { operation, reason: error.to_string() }
}
