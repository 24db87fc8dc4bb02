//! Reference clips as people have them: WAV, FLAC, MP3, Ogg (Opus, Vorbis) and WebM (Opus, Vorbis), told
//! apart by their first bytes, read within [`AudioLimits`], and judged by [`Verdict`] before anything is made
//! of them.

mod container;
mod level;

use std::ops::RangeInclusive;

pub use level::{Refusal, Verdict, judge};

use crate::{AudioLimits, CodecError, MonoAudio, ogg, wav};

/// Bounds of a reference clip: 10 MiB, 30 s, 8 to 48 kHz, one or two channels.
pub const REFERENCE: AudioLimits = AudioLimits {
    bytes_max: 10 << 20,
    channels_max: 2,
    duration_ms_max: 30_000,
    rate_hz_max: 48_000,
    rate_hz_min: 8_000,
};

/// Length of a reference clip, in milliseconds.
pub const REFERENCE_MS: RangeInclusive<u64> = 1_000..=REFERENCE.duration_ms_max as u64;

/// Opus is decoded at this rate, whatever it was made from.
const OPUS_RATE_HZ: u32 = 48_000;

/// Reads a file of any known kind. Nothing larger than `limits` allow is ever allocated: channels and rate
/// are checked before the first sample is decoded, the length while it is.
///
/// # Errors
/// [`CodecError`] saying what is wrong and what would be right.
pub fn read(bytes: &[u8], limits: &AudioLimits) -> Result<MonoAudio, CodecError> {
    limits.check_bytes(bytes.len())?;
    let bytes = after_tags(bytes);
    match bytes {
        [b'R', b'I', b'F', b'F', ..] => wav::decode(bytes, limits),
        [b'O', b'g', b'g', b'S', ..] if is_opus(bytes) => ogg::decode(bytes, OPUS_RATE_HZ, limits),
        [b'O', b'g', b'g', b'S', ..]
        | [b'f', b'L', b'a', b'C', ..]
        | [0xFF, 0xE0..=0xFF, ..]
        | [0x1A, 0x45, 0xDF, 0xA3, ..] => container::decode(bytes, limits),
        _ => Err(CodecError::Malformed {
            format: "audio",
            reason: "its first bytes are none of WAV, FLAC, MP3, Ogg or WebM",
        }),
    }
}

/// What follows ID3v2 tags (id3.org, "ID3 tag version 2.4.0", section 3): pictures in them look like sound to whoever reads
/// on, and nothing in them is wanted.
fn after_tags(mut bytes: &[u8]) -> &[u8] {
    while let [b'I', b'D', b'3', _, _, flags, size @ ..] = bytes {
        let Some((size, rest)) = size.split_first_chunk::<4>() else { return bytes };
        let size = size.iter().fold(0_usize, |size, byte| size << 7 | usize::from(byte & 0x7F));
        // A footer repeats the head.
        let footer = if flags & 0x10 == 0 { 0 } else { 10 };
        bytes = rest.get(size + footer..).unwrap_or_default();
    }
    bytes
}

/// Whether the first page of an Ogg file begins an Opus stream.
fn is_opus(bytes: &[u8]) -> bool {
    bytes.get(..64.min(bytes.len())).is_some_and(|head| head.windows(8).any(|window| window == b"OpusHead"))
}
