//! G.711 mu-law and A-law (ITU-T G.711, tables 1a to 2b), 8 bits a sample.
//!
//! Samples are taken at 16 bits, as telephony equipment does: mu-law uses the upper 14 of them, A-law the
//! upper 13. The usual rate is 8 kHz; the laws themselves know no rate.

use crate::pcm;

/// Added before the segment search so that segment borders fall on powers of two (G.711's 33, at 16 bits).
const MU_BIAS: i32 = 33 << 2;
/// Largest magnitude that does not overflow segment 7 once biased.
const MU_CLIP: i32 = 32_635;

/// One sample to mu-law. Silence is 0xFF.
#[must_use]
pub fn mu_law_from_i16(sample: i16) -> u8 {
    let (sign, folded) = fold(sample);
    let magnitude = i32::from(folded).min(MU_CLIP) + MU_BIAS;
    // Biased magnitudes lie in [132, 32767], so their top bit is 7..=14 and names the segment.
    let segment = 31 - magnitude.leading_zeros() - 7;
    let step = (magnitude >> (segment + 3)) & 0x0F;
    // The line carries all bits inverted, so its sign bit is set for positive samples.
    !(sign ^ 0x80 | (segment as u8) << 4 | step as u8)
}

/// One mu-law byte to a sample, the middle of its interval.
#[must_use]
pub fn mu_law_to_i16(code: u8) -> i16 {
    let bits = !code;
    let segment = i32::from((bits >> 4) & 7);
    let step = i32::from(bits & 0x0F);
    let magnitude = ((((step << 3) + MU_BIAS) << segment) - MU_BIAS) as i16;
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// One sample to A-law. Silence is 0xD5.
#[must_use]
pub fn a_law_from_i16(sample: i16) -> u8 {
    let (sign, folded) = fold(sample);
    let magnitude = folded.cast_unsigned() >> 4;
    // Eleven bits: below 32 the law is linear (segments 0 and 1), above that each segment doubles its step.
    let code = if magnitude < 32 {
        magnitude
    } else {
        let shift = 16 - magnitude.leading_zeros() - 5;
        (shift as u16 + 1) << 4 | ((magnitude >> shift) & 0x0F)
    };
    // Every second bit is inverted on the line, beginning with the lowest.
    (sign | code as u8) ^ 0x55
}

/// One A-law byte to a sample, the middle of its interval.
#[must_use]
pub fn a_law_to_i16(code: u8) -> i16 {
    let bits = code ^ 0x55;
    let segment = i32::from((bits >> 4) & 7);
    let step = i32::from(bits & 0x0F);
    let half_steps = if segment == 0 { 2 * step + 1 } else { (2 * step + 33) << (segment - 1) };
    let magnitude = (half_steps << 3) as i16;
    if bits & 0x80 == 0 { -magnitude } else { magnitude }
}

/// Appends one mu-law byte a sample.
pub fn encode_mu_law(samples: &[f32], out: &mut Vec<u8>) {
    out.extend(samples.iter().map(|sample| mu_law_from_i16(pcm::to_i16(*sample))));
}

/// Appends one sample a mu-law byte.
pub fn decode_mu_law(codes: &[u8], out: &mut Vec<f32>) {
    out.extend(codes.iter().map(|code| pcm::from_i16(mu_law_to_i16(*code))));
}

/// Appends one A-law byte a sample.
pub fn encode_a_law(samples: &[f32], out: &mut Vec<u8>) {
    out.extend(samples.iter().map(|sample| a_law_from_i16(pcm::to_i16(*sample))));
}

/// Appends one sample an A-law byte.
pub fn decode_a_law(codes: &[u8], out: &mut Vec<f32>) {
    out.extend(codes.iter().map(|code| pcm::from_i16(a_law_to_i16(*code))));
}

/// Sign bit as the line has it for positive values, and magnitude. Negative values fold by one's
/// complement, as ITU-T G.191's reference does, so that both signs have intervals of equal width.
fn fold(sample: i16) -> (u8, i16) {
    if sample < 0 { (0, !sample) } else { (0x80, sample) }
}
