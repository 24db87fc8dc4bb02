//! A reader that believes no size a file states.

use crate::error::check_finite;
use crate::{AudioLimits, CodecError, MonoAudio, g711, pcm};

const RIFF_HEADER_BYTES: usize = 12;
const CHUNK_HEADER_BYTES: usize = 8;
/// What streaming writers put where a size belongs.
const SIZE_UNKNOWN: u32 = u32::MAX;
/// Bytes 2..16 of the sub-format GUID that wraps a plain format tag.
const EXTENSIBLE_GUID_TAIL: [u8; 14] =
    [0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x80, 0x00, 0x00, 0xAA, 0x00, 0x38, 0x9B, 0x71];

/// Reads a WAV file: PCM of 8, 16, 24 or 32 bits, float of 32 or 64, A-law, mu-law, plain or extensible.
/// Channels are averaged to mono; floats outside [-1, 1] are clamped. A data size of 0xFFFFFFFF means
/// "until the end of the file".
///
/// # Errors
/// [`CodecError::TooLarge`] beyond `limits`, [`CodecError::Truncated`] when a stated size reaches past the
/// file, [`CodecError::Malformed`], [`CodecError::Unsupported`], [`CodecError::NonFinite`] (its index
/// counts interleaved samples).
pub fn decode(file: &[u8], limits: &AudioLimits) -> Result<MonoAudio, CodecError> {
    limits.check_bytes(file.len())?;
    check_riff(file)?;
    let (format, data) = find_chunks(file)?;
    limits.check_channels(format.channels)?;
    limits.check_rate(format.rate_hz)?;
    let frame_bytes = usize::from(format.frame_bytes);
    let frames = data.len() / frame_bytes;
    limits.check_duration(frames as u64, format.rate_hz)?;
    let partial = data.len() % frame_bytes;
    if partial != 0 {
        return Err(CodecError::Truncated {
            format: "the last WAV frame",
            needed: frame_bytes as u64,
            found: partial as u64,
        });
    }
    let interleaved = format.coding.decode(data);
    check_finite(&interleaved, 0)?;
    Ok(MonoAudio { rate_hz: format.rate_hz, samples: mix_down(interleaved, format.channels) })
}

struct Format {
    channels: u16,
    coding: Coding,
    /// Bytes of one sample of every channel, never 0.
    frame_bytes: u16,
    rate_hz: u32,
}

#[derive(Clone, Copy)]
enum Coding {
    ALaw,
    Float32,
    Float64,
    MuLaw,
    Pcm16,
    Pcm24,
    Pcm32,
    Pcm8,
}

fn check_riff(file: &[u8]) -> Result<(), CodecError> {
    if file.len() < RIFF_HEADER_BYTES {
        return Err(truncated("the RIFF header", RIFF_HEADER_BYTES, file.len()));
    }
    if &file[..4] != b"RIFF" || &file[8..12] != b"WAVE" {
        return Err(malformed("no RIFF WAVE header"));
    }
    let stated = u32_at(file, 4);
    if stated != SIZE_UNKNOWN && stated as usize > file.len() - CHUNK_HEADER_BYTES {
        return Err(truncated("the WAV file", stated as usize, file.len() - CHUNK_HEADER_BYTES));
    }
    Ok(())
}

fn find_chunks(file: &[u8]) -> Result<(Format, &[u8]), CodecError> {
    let mut rest = &file[RIFF_HEADER_BYTES..];
    let mut format = None;
    while rest.len() >= CHUNK_HEADER_BYTES {
        let (head, body) = rest.split_at(CHUNK_HEADER_BYTES);
        let stated = u32_at(head, 4);
        let is_data = &head[..4] == b"data";
        let len = if is_data && stated == SIZE_UNKNOWN { body.len() } else { stated as usize };
        if len > body.len() {
            return Err(truncated("a WAV chunk", len, body.len()));
        }
        if is_data {
            let format = format.ok_or(malformed("the data chunk comes before the fmt chunk"))?;
            return Ok((format, &body[..len]));
        }
        if &head[..4] == b"fmt " && format.replace(parse_format(&body[..len])?).is_some() {
            return Err(malformed("two fmt chunks"));
        }
        // Chunks of odd length are followed by one byte of padding.
        rest = &body[(len + len % 2).min(body.len())..];
    }
    Err(malformed("no data chunk"))
}

fn parse_format(chunk: &[u8]) -> Result<Format, CodecError> {
    if chunk.len() < 16 {
        return Err(truncated("the fmt chunk", 16, chunk.len()));
    }
    let tag = u16_at(chunk, 0);
    let channels = u16_at(chunk, 2);
    let rate_hz = u32_at(chunk, 4);
    let frame_bytes = u16_at(chunk, 12);
    let bits = u16_at(chunk, 14);
    if channels == 0 {
        return Err(malformed("zero channels"));
    }
    if rate_hz == 0 {
        return Err(malformed("a sample rate of zero"));
    }
    let coding = coding_of(if tag == 0xFFFE { extensible_tag(chunk, bits)? } else { tag }, bits)?;
    if u32::from(frame_bytes) != u32::from(channels) * u32::from(bits / 8) {
        return Err(malformed("block size, channels and bits per sample contradict each other"));
    }
    Ok(Format { channels, coding, frame_bytes, rate_hz })
}

fn extensible_tag(chunk: &[u8], bits: u16) -> Result<u16, CodecError> {
    if chunk.len() < 40 {
        return Err(truncated("the extensible fmt chunk", 40, chunk.len()));
    }
    // Unused low bits of a container are zero, so reading the whole container is right for any of them.
    if u16_at(chunk, 18) > bits {
        return Err(malformed("more valid bits than the sample holds"));
    }
    if chunk[26..40] != EXTENSIBLE_GUID_TAIL {
        return Err(malformed("an extensible format that is neither PCM, float nor G.711"));
    }
    Ok(u16_at(chunk, 24))
}

fn coding_of(tag: u16, bits: u16) -> Result<Coding, CodecError> {
    match (tag, bits) {
        (1, 8) => Ok(Coding::Pcm8),
        (1, 16) => Ok(Coding::Pcm16),
        (1, 24) => Ok(Coding::Pcm24),
        (1, 32) => Ok(Coding::Pcm32),
        (3, 32) => Ok(Coding::Float32),
        (3, 64) => Ok(Coding::Float64),
        (6, 8) => Ok(Coding::ALaw),
        (7, 8) => Ok(Coding::MuLaw),
        (1 | 3 | 6 | 7, _) => Err(CodecError::Unsupported {
            what: "WAV sample size in bits",
            found: u64::from(bits),
            supported: "16-bit PCM or 32-bit float",
        }),
        _ => Err(CodecError::Unsupported {
            what: "WAV format tag",
            found: u64::from(tag),
            supported: "16-bit PCM or 32-bit float",
        }),
    }
}

impl Coding {
    /// Samples in [-1, 1]; floats may still be NaN.
    fn decode(self, data: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        match self {
            Self::ALaw => g711::decode_a_law(data, &mut out),
            Self::MuLaw => g711::decode_mu_law(data, &mut out),
            Self::Pcm8 => out.extend(data.iter().map(|byte| (f32::from(*byte) - 128.0) / 128.0)),
            Self::Pcm16 => out.extend(each(data, |bytes| pcm::from_i16(i16::from_le_bytes(bytes)))),
            Self::Pcm24 => out.extend(each(data, |[a, b, c]: [u8; 3]| {
                i32::from_le_bytes([0, a, b, c]) as f32 / 2_147_483_648.0
            })),
            Self::Pcm32 => {
                out.extend(each(data, |bytes| i32::from_le_bytes(bytes) as f32 / 2_147_483_648.0));
            }
            Self::Float32 => out.extend(each(data, |bytes| clamp_finite(f32::from_le_bytes(bytes)))),
            Self::Float64 => out.extend(each(data, |bytes| clamp_finite(f64::from_le_bytes(bytes) as f32))),
        }
        out
    }
}

fn each<const N: usize>(data: &[u8], convert: impl Fn([u8; N]) -> f32) -> impl Iterator<Item = f32> {
    data.as_chunks::<N>().0.iter().map(move |bytes| convert(*bytes))
}

/// Infinities must stay visible to the finite check, so they are not clamped away.
fn clamp_finite(sample: f32) -> f32 {
    if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { sample }
}

fn mix_down(interleaved: Vec<f32>, channels: u16) -> Vec<f32> {
    if channels == 1 {
        return interleaved;
    }
    let scale = 1.0 / f32::from(channels);
    interleaved.chunks_exact(usize::from(channels)).map(|frame| frame.iter().sum::<f32>() * scale).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn malformed(reason: &'static str) -> CodecError {
    CodecError::Malformed { format: "WAV", reason }
}

fn truncated(format: &'static str, needed: usize, found: usize) -> CodecError {
    CodecError::Truncated { format, needed: needed as u64, found: found as u64 }
}
