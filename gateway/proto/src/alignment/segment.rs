//! One segment's text and sound, and how the one is spread over the other.

use unicode_segmentation::UnicodeSegmentation;

use crate::at_wire_clock;
use crate::wire::CLOCK_HZ;

/// 48 kHz samples of one window that is voiced or not: 20 ms.
pub(super) const WINDOW: u64 = 960;
/// Mean square above which a window is voiced: -50 dBFS.
const VOICED_MEAN_SQUARE: f32 = 1e-5;

#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    pub(super) text: String,
    pub(super) characters: u64,
    /// Spaces and unspoken text after it.
    pub(super) gap: String,
    /// 48 kHz positions of its first sample and after its last.
    pub(super) start: Option<u64>,
    pub(super) end: Option<u64>,
    /// Windows from `start` so far, and which of them are voiced, in order.
    pub(super) windows: u32,
    pub(super) voiced: Vec<u32>,
    /// The window being filled: sum of squares and samples, at the model's rate.
    energy: f32,
    filled: u64,
}

impl Segment {
    pub(super) fn push_text(&mut self, text: &str) {
        self.text.push_str(text);
        self.characters += text.chars().count() as u64;
    }

    /// Sound at `rate`; `first_sample` counts the context's samples.
    pub(super) fn push_sound(&mut self, first_sample: u64, samples: &[f32], rate: u32) {
        let window = WINDOW * u64::from(rate.max(1)) / u64::from(CLOCK_HZ);
        self.start.get_or_insert(at_wire_clock(first_sample, rate));
        for sample in samples {
            self.energy += sample * sample;
            self.filled += 1;
            if self.filled >= window {
                if self.energy / self.filled as f32 > VOICED_MEAN_SQUARE {
                    self.voiced.push(self.windows);
                }
                self.windows += 1;
                self.energy = 0.0;
                self.filled = 0;
            }
        }
    }

    /// Voiced windows that end at or before 48 kHz position `played`.
    pub(super) fn voiced_before(&self, played: u64) -> u64 {
        let start = self.start.unwrap_or(u64::MAX);
        let windows = played.saturating_sub(start) / WINDOW;
        self.voiced.partition_point(|window| u64::from(*window) < windows) as u64
    }

    /// The words heard: whole ones only. `floor` characters are taken as heard whatever the sound says.
    pub(super) fn heard(&self, played: u64, pace: f64, floor: u64) -> &str {
        let before = self.voiced_before(played);
        let all = self.voiced_before(u64::MAX);
        let spread = match self.end {
            // A segment without a voiced window is heard as its time passes.
            Some(end) if all == 0 => {
                let start = self.start.unwrap_or(end);
                let length = (end - start.min(end)).max(1);
                self.characters * played.saturating_sub(start).min(length) / length
            }
            Some(_) => self.characters * before / all,
            None => (before as f64 * pace) as u64,
        };
        let characters = spread.max(floor).min(self.characters);
        let bytes = self.text.char_indices().nth(usize::try_from(characters).unwrap_or(usize::MAX));
        let bytes = bytes.map_or(self.text.len(), |(at, _)| at);
        if bytes == self.text.len() && self.end.is_some() {
            return &self.text;
        }
        let words = self.text.unicode_word_indices().map(|(at, word)| at + word.len());
        &self.text[..words.take_while(|end| *end <= bytes).last().unwrap_or(0)]
    }
}
