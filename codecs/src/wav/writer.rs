//! Headers for 16-bit mono WAV.

use crate::{CodecError, pcm};

/// Length of the headers made here.
pub const HEADER_BYTES: usize = 44;

const BYTES_PER_SAMPLE: u32 = 2;

/// A header for a stream whose length is not known yet: both sizes are 0xFFFFFFFF, which decoders take as
/// "until the end". s16le samples follow ([`pcm::encode_s16le`]).
#[must_use]
pub fn streaming_header(rate_hz: u32) -> [u8; HEADER_BYTES] {
    header_with(rate_hz, u32::MAX, u32::MAX)
}

/// A header for exactly `samples` samples.
///
/// # Errors
/// [`CodecError::TooLarge`] past the 4 GiB that a WAV can say.
pub fn header(rate_hz: u32, samples: u64) -> Result<[u8; HEADER_BYTES], CodecError> {
    let rest = HEADER_BYTES as u32 - 8;
    let limit = (u32::MAX - 1 - rest) / BYTES_PER_SAMPLE;
    match u32::try_from(samples) {
        Ok(samples) if samples <= limit => {
            let data_bytes = samples * BYTES_PER_SAMPLE;
            Ok(header_with(rate_hz, rest + data_bytes, data_bytes))
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
    let mut file = header(rate_hz, samples.len() as u64)?.to_vec();
    pcm::encode_s16le(samples, &mut file);
    Ok(file)
}

fn header_with(rate_hz: u32, riff_bytes: u32, data_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"RIFF");
    put(4, &riff_bytes.to_le_bytes());
    put(8, b"WAVEfmt ");
    put(16, &16u32.to_le_bytes());
    put(20, &1u16.to_le_bytes());
    put(22, &1u16.to_le_bytes());
    put(24, &rate_hz.to_le_bytes());
    put(28, &rate_hz.saturating_mul(BYTES_PER_SAMPLE).to_le_bytes());
    put(32, &(BYTES_PER_SAMPLE as u16).to_le_bytes());
    put(34, &16u16.to_le_bytes());
    put(36, b"data");
    put(40, &data_bytes.to_le_bytes());
    header
}
