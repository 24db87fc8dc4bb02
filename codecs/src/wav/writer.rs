//! Headers for mono WAV: 16-bit where nothing else is said.

use crate::CodecError;
use crate::pcm::{self, RawEncoding};

/// Length of the headers made here.
pub const HEADER_BYTES: usize = 44;

const BYTES_PER_SAMPLE: u32 = RawEncoding::S16Le.bytes_per_sample();

/// A header for a stream whose length is not known yet: both sizes are 0xFFFFFFFF, which decoders take as
/// "until the end". Samples in this encoding follow.
#[must_use]
pub fn streaming_header(rate_hz: u32, encoding: RawEncoding) -> [u8; HEADER_BYTES] {
    header_with(rate_hz, encoding, u32::MAX, u32::MAX)
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
            Ok(header_with(rate_hz, RawEncoding::S16Le, rest + data_bytes, data_bytes))
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

fn header_with(rate_hz: u32, encoding: RawEncoding, riff_bytes: u32, data_bytes: u32) -> [u8; HEADER_BYTES] {
    // WAVE_FORMAT_PCM, IEEE_FLOAT, ALAW, MULAW.
    let tag: u16 = match encoding {
        RawEncoding::S16Le => 1,
        RawEncoding::F32Le => 3,
        RawEncoding::ALaw => 6,
        RawEncoding::MuLaw => 7,
    };
    let sample_bytes = encoding.bytes_per_sample();
    let mut header = [0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"RIFF");
    put(4, &riff_bytes.to_le_bytes());
    put(8, b"WAVEfmt ");
    put(16, &16u32.to_le_bytes());
    put(20, &tag.to_le_bytes());
    put(22, &1u16.to_le_bytes());
    put(24, &rate_hz.to_le_bytes());
    put(28, &rate_hz.saturating_mul(sample_bytes).to_le_bytes());
    put(32, &(sample_bytes as u16).to_le_bytes());
    put(34, &(sample_bytes as u16 * 8).to_le_bytes());
    put(36, b"data");
    put(40, &data_bytes.to_le_bytes());
    header
}
