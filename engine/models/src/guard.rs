//! Bounds of our own, the same for every family: how long a segment may run for its text, and how much
//! reference audio is taken. A checkpoint's own bounds come from its config.
//!
//! Speech models sometimes miss their end (about 1 in 300 requests of the published Qwen3-TTS), so each
//! segment has a most number of frames by its text. Slow speech must not be clipped: hence 8 frames an id
//! at 12.5 frames a second, and half as many again for a digit, which is one id and read as a word or more.

/// Frames any segment may take, however short its text; very short texts have the least steady length.
const FRAMES_FLOOR: u32 = 75;
const FRAMES_PER_ID_MAX: u32 = 8;
/// What a digit may take beyond its id: the embedded checkpoint takes 5 to 8 frames for one in a long
/// number.
const FRAMES_PER_DIGIT_MAX: u32 = 4;
/// What a text will probably take, for admission: the embedded checkpoint speaks 2.1 to 2.8
/// frames an id; rounded up so that admission errs on the safe side.
const FRAMES_PER_ID_EXPECTED: u32 = 3;
const FRAMES_EXPECTED_EXTRA: u32 = 4;
const FRAMES_PER_DIGIT_EXPECTED: u32 = 4;
/// Frames a character may take so that a segment of the longest length still ends by itself: 6 characters
/// a second, half the tempo of slow prose.
const FRAMES_PER_CHARACTER: u32 = 2;
/// Longest reference clip; the published models were given 3 to 15 s.
const REFERENCE_SECONDS_MAX: u32 = 30;

/// How much there is to speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) ids: usize,
    /// Digits in them.
    pub(crate) digits: usize,
}

/// Most frames of a segment, `frames_max` being the model's own bound.
pub(crate) fn frames_max(amount: Amount, frames_max: u32) -> u32 {
    let frames = frames(amount.ids, FRAMES_PER_ID_MAX);
    frames.saturating_add(self::frames(amount.digits, FRAMES_PER_DIGIT_MAX)).max(FRAMES_FLOOR).min(frames_max)
}

/// Frames a segment will probably take.
pub(crate) fn frames_predicted(amount: Amount, frames_max: u32) -> u32 {
    let frames = frames(amount.ids, FRAMES_PER_ID_EXPECTED).saturating_add(FRAMES_EXPECTED_EXTRA);
    frames.saturating_add(self::frames(amount.digits, FRAMES_PER_DIGIT_EXPECTED)).min(frames_max)
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

fn frames(count: usize, each: u32) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digit_may_take_as_long_as_the_words_it_is_read_as() {
        let (words, number) = (Amount { ids: 40, digits: 0 }, Amount { ids: 40, digits: 40 });
        assert_eq!((frames_max(words, 8_192), frames_max(number, 8_192)), (320, 480));
        assert!(frames_predicted(number, 8_192) > 2 * frames_predicted(words, 8_192));
        assert_eq!(frames_max(Amount { ids: 1, digits: 1 }, 8_192), FRAMES_FLOOR);
        assert_eq!(frames_max(number, 400), 400);
    }
}
