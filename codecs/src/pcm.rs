//! Plain PCM: `f32` to little-endian 16-bit integers and back, and little-endian `f32`.
//!
//! One full scale is 32768, so that every 16-bit value survives the way to `f32` and back.

use crate::{CodecError, g711};

/// How the samples of raw mono audio lie in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RawEncoding {
    ALaw,
    F32Le,
    MuLaw,
    S16Le,
}

impl RawEncoding {
    #[must_use]
    pub const fn bytes_per_sample(self) -> u32 {
        match self {
            Self::ALaw | Self::MuLaw => 1,
            Self::F32Le => 4,
            Self::S16Le => 2,
        }
    }

    /// Appends samples in this encoding.
    pub fn encode(self, samples: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::ALaw => g711::encode_a_law(samples, out),
            Self::F32Le => encode_f32le(samples, out),
            Self::MuLaw => g711::encode_mu_law(samples, out),
            Self::S16Le => encode_s16le(samples, out),
        }
    }

    /// Appends the samples that lie whole in `bytes`; the rest of a last one is nothing.
    pub fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            Self::ALaw => g711::decode_a_law(bytes, out),
            Self::F32Le => out.extend(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four))),
            Self::MuLaw => g711::decode_mu_law(bytes, out),
            Self::S16Le => {
                out.extend(bytes.as_chunks().0.iter().map(|pair| from_i16(i16::from_le_bytes(*pair))))
            }
        }
    }

    /// Appends the samples of `bytes`, whole s16le ones, in this encoding.
    pub fn extend_from_s16le(self, bytes: &[u8], out: &mut Vec<u8>) {
        let (pairs, _) = bytes.as_chunks::<2>();
        let samples = pairs.iter().map(|pair| i16::from_le_bytes(*pair));
        match self {
            Self::ALaw => out.extend(samples.map(g711::a_law_from_i16)),
            Self::F32Le => out.extend(samples.flat_map(|sample| from_i16(sample).to_le_bytes())),
            Self::MuLaw => out.extend(samples.map(g711::mu_law_from_i16)),
            Self::S16Le => out.extend_from_slice(bytes),
        }
    }
}

/// Rounds to the nearest step (halves away from zero) and clamps; +1.0 becomes 32767. NaN becomes 0.
#[must_use]
pub fn to_i16(sample: f32) -> i16 {
    // A float to integer `as` saturates at the type's ends and turns NaN into 0.
    (sample * 32_768.0).round() as i16
}

/// The exact inverse of [`to_i16`]: in [-1, 1).
#[must_use]
pub fn from_i16(sample: i16) -> f32 {
    f32::from(sample) / 32_768.0
}

/// Appends two bytes a sample.
pub fn encode_s16le(samples: &[f32], out: &mut Vec<u8>) {
    out.reserve(samples.len() * 2);
    out.extend(samples.iter().flat_map(|sample| to_i16(*sample).to_le_bytes()));
}

/// Appends four bytes a sample, unclamped.
pub fn encode_f32le(samples: &[f32], out: &mut Vec<u8>) {
    out.reserve(samples.len() * 4);
    out.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
}

/// Decodes s16le that arrives in pieces of any length; a sample may be cut in two.
#[derive(Clone, Debug, Default)]
pub struct S16leDecoder {
    /// First byte of a sample whose second byte has not come yet.
    low_byte: Option<u8>,
}

impl S16leDecoder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends every sample that is complete. `out` grows by at most `(bytes.len() + 1) / 2`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<f32>) {
        let mut rest = bytes;
        if let (Some(low), [high, tail @ ..]) = (self.low_byte, rest) {
            out.push(from_i16(i16::from_le_bytes([low, *high])));
            self.low_byte = None;
            rest = tail;
        }
        let (pairs, odd) = rest.as_chunks::<2>();
        out.extend(pairs.iter().map(|pair| from_i16(i16::from_le_bytes(*pair))));
        if let [low] = odd {
            self.low_byte = Some(*low);
        }
    }

    /// Ends the stream and makes the decoder ready for another.
    ///
    /// # Errors
    /// [`CodecError::Truncated`] if half a sample was left over.
    pub fn finish(&mut self) -> Result<(), CodecError> {
        match self.low_byte.take() {
            Some(_) => Err(CodecError::Truncated { format: "s16le sample", needed: 2, found: 1 }),
            None => Ok(()),
        }
    }
}
