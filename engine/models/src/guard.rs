//! Bounds of our own, the same for every family: how long a segment may run for its text, and how much
//! reference audio is taken. A checkpoint's own bounds come from its config.
//!
//! Speech models sometimes miss their end (about 1 in 300 requests of the published Qwen3-TTS), so each
//! segment has a most number of frames by its text. Slow speech must not be clipped: one spoken digit is
//! one id and may take half a second, hence 8 frames an id at 12.5 frames a second.

/// Frames any segment may take, however short its text; very short texts have the least steady length.
const FRAMES_FLOOR: u32 = 75;
const FRAMES_PER_ID_MAX: u32 = 8;
/// What a text will probably take, for admission: the embedded checkpoint speaks 2.1 to 2.8
/// frames an id; rounded up so that admission errs on the safe side.
const FRAMES_PER_ID_EXPECTED: u32 = 3;
const FRAMES_EXPECTED_EXTRA: u32 = 4;
/// Frames a character may take so that a segment of the longest length still ends by itself: 6 characters
/// a second, half the tempo of slow prose.
const FRAMES_PER_CHARACTER: u32 = 2;
/// Longest reference clip; the published models were given 3 to 15 s.
const REFERENCE_SECONDS_MAX: u32 = 30;

/// Most frames of a segment of `text_ids`, `frames_max` being the model's own bound.
pub(crate) fn frames_max(text_ids: usize, frames_max: u32) -> u32 {
    by_text(text_ids, FRAMES_PER_ID_MAX).max(FRAMES_FLOOR).min(frames_max)
}

/// Frames a segment of `text_ids` will probably take.
pub(crate) fn frames_predicted(text_ids: usize, frames_max: u32) -> u32 {
    by_text(text_ids, FRAMES_PER_ID_EXPECTED).saturating_add(FRAMES_EXPECTED_EXTRA).min(frames_max)
}

/// Longest text of one segment, in characters, for a model of `frames_max` frames whose prompt and frames
/// share `positions_max` positions: a character takes at most about one id in the prompt.
pub(crate) fn segment_characters_max(frames_max: u32, positions_max: u32) -> u32 {
    let by_frames = frames_max / FRAMES_PER_CHARACTER;
    let by_positions = positions_max / (FRAMES_PER_CHARACTER + 1);
    by_frames.min(by_positions).max(1)
}

/// Most samples of a reference clip at `sample_rate`.
pub(crate) fn reference_samples_max(sample_rate: u32) -> usize {
    REFERENCE_SECONDS_MAX as usize * sample_rate as usize
}

fn by_text(text_ids: usize, frames_per_id: u32) -> u32 {
    u32::try_from(text_ids).unwrap_or(u32::MAX).saturating_mul(frames_per_id)
}
