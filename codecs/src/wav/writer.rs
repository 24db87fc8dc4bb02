//! Headers for mono WAV: 16-bit where nothing else is said.

use crate::CodecError;
use crate::pcm::{self, RawEncoding};

/// Length of a header without an INFO list.
pub const HEADER_BYTES: usize = 44;

/// What a file says of itself: four-letter names of RIFF's INFO list (`ISFT`, `ICMT`...) and ASCII texts.
pub type Info<'a> = [(&'a [u8; 4], &'a str)];

/// Longest INFO list, in bytes.
const INFO_BYTES_MAX: usize = 4 << 10;

/// A header for a stream whose length is not known yet: both sizes are 0xFFFFFFFF, which decoders take as
/// "until the end". Samples in this encoding follow.
///
/// # Errors
/// [`CodecError::TooLarge`] for an INFO list that is not short.
pub fn streaming_header(rate_hz: u32, encoding: RawEncoding, info: &Info<'_>) -> Result<Vec<u8>, CodecError> {
    Ok(header_with(rate_hz, encoding, (u32::MAX, u32::MAX), &list(info)?))
}

/// A header for exactly `samples` samples, as long as [`streaming_header`]'s with the same INFO list, and
/// [`HEADER_BYTES`] long without one.
///
/// # Errors
/// [`CodecError::TooLarge`] past the 4 GiB that a WAV can say, or for an INFO list that is not short.
pub fn header(
    rate_hz: u32,
    encoding: RawEncoding,
    samples: u64,
    info: &Info<'_>,
) -> Result<Vec<u8>, CodecError> {
    let sample_bytes = encoding.bytes_per_sample();
    let list = list(info)?;
    let rest = (HEADER_BYTES - 8 + list.len()) as u32;
    let limit = (u32::MAX - 1 - rest) / sample_bytes;
    match u32::try_from(samples) {
        Ok(samples) if samples <= limit => {
            let data_bytes = samples * sample_bytes;
            Ok(header_with(rate_hz, encoding, (rest + data_bytes, data_bytes), &list))
        }
        _ => Err(CodecError::TooLarge {
            what: "samples in one WAV file",
            found: samples,
            limit: u64::from(limit),
        }),
    }
}

/// A whole 16-bit mono file.
///
/// # Errors
/// As [`header`].
pub fn encode(samples: &[f32], rate_hz: u32) -> Result<Vec<u8>, CodecError> {
    let mut file = header(rate_hz, RawEncoding::S16Le, samples.len() as u64, &[])?;
    pcm::encode_s16le(samples, &mut file);
    Ok(file)
}

/// The chunk of an INFO list; nothing for an empty one.
fn list(info: &Info<'_>) -> Result<Vec<u8>, CodecError> {
    let mut body = b"INFO".to_vec();
    for (name, text) in info {
        body.extend_from_slice(*name);
        // Texts end with a zero and take an even number of bytes.
        let bytes: Vec<u8> = text.bytes().filter(|byte| matches!(byte, 0x20..=0x7E)).chain([0]).collect();
        body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        body.extend_from_slice(&bytes);
        body.resize(body.len().next_multiple_of(2), 0);
    }
    if body.len() > INFO_BYTES_MAX {
        let (found, limit) = (body.len() as u64, INFO_BYTES_MAX as u64);
        return Err(CodecError::TooLarge { what: "size of the INFO list in bytes", found, limit });
    }
    if info.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = b"LIST".to_vec();
    list.extend_from_slice(&(body.len() as u32).to_le_bytes());
    list.append(&mut body);
    Ok(list)
}

fn header_with(
    rate_hz: u32,
    encoding: RawEncoding,
    (riff_bytes, data_bytes): (u32, u32),
    list: &[u8],
) -> Vec<u8> {
    // WAVE_FORMAT_PCM, IEEE_FLOAT, ALAW, MULAW.
    let tag: u16 = match encoding {
        RawEncoding::S16Le => 1,
        RawEncoding::F32Le => 3,
        RawEncoding::ALaw => 6,
        RawEncoding::MuLaw => 7,
    };
    let sample_bytes = encoding.bytes_per_sample();
    let mut header = Vec::with_capacity(HEADER_BYTES + list.len());
    header.extend_from_slice(b"RIFF");
    header.extend_from_slice(&riff_bytes.to_le_bytes());
    header.extend_from_slice(b"WAVEfmt ");
    header.extend_from_slice(&16u32.to_le_bytes());
    header.extend_from_slice(&tag.to_le_bytes());
    header.extend_from_slice(&1u16.to_le_bytes());
    header.extend_from_slice(&rate_hz.to_le_bytes());
    header.extend_from_slice(&rate_hz.saturating_mul(sample_bytes).to_le_bytes());
    header.extend_from_slice(&(sample_bytes as u16).to_le_bytes());
    header.extend_from_slice(&(sample_bytes as u16 * 8).to_le_bytes());
    header.extend_from_slice(list);
    header.extend_from_slice(b"data");
    header.extend_from_slice(&data_bytes.to_le_bytes());
    header
}
