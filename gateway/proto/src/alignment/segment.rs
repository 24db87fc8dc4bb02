//! One segment's text and sound, and how the one is spread over the other.

use unicode_segmentation::UnicodeSegmentation;

use crate::at_wire_clock;
use crate::reader::Run;
use crate::wire::CLOCK_HZ;

/// 48 kHz samples of one window that is voiced or not: 20 ms.
pub(super) const WINDOW: u64 = 960;
/// Mean square above which a window is voiced: -50 dBFS.
const VOICED_MEAN_SQUARE: f32 = 1e-5;

#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    /// As it was written.
    pub(super) text: String,
    /// Scalar values said.
    pub(super) characters: u64,
    /// How the two go together.
    runs: Vec<Stretch>,
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

/// A part of a segment: bytes written, scalar values said for them.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    bytes: usize,
    said: u64,
    as_is: bool,
}

impl Segment {
    pub(super) fn push_run(&mut self, run: &Run) {
        self.text.push_str(&run.original);
        self.characters += run.said;
        let (bytes, said, as_is) = (run.original.len(), run.said, run.as_is);
        match self.runs.last_mut() {
            Some(last) if last.as_is && as_is => {
                last.bytes += bytes;
                last.said += said;
            }
            _ => self.runs.push(Stretch { bytes, said, as_is }),
        }
    }

    /// Scalar values said for the character that is written at byte `at`.
    pub(super) fn said_at(&self, at: usize) -> f64 {
        let (mut start, mut owed) = (0, 0);
        for run in &self.runs {
            let end = start + run.bytes;
            if at >= end {
                // What a reading said before its segment ended has nothing written beside it.
                owed = if run.bytes == 0 { owed + run.said } else { 0 };
                start = end;
                continue;
            }
            if run.as_is {
                return 1.0 + if at == start { owed as f64 } else { 0.0 };
            }
            return (run.said + owed) as f64 / self.text[start..end].chars().count().max(1) as f64;
        }
        1.0
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
        let bytes = self.written(spread.min(self.characters)).max(nth(&self.text, floor));
        if bytes == self.text.len() && self.end.is_some() {
            return &self.text;
        }
        let words = self.text.unicode_word_indices().map(|(at, word)| at + word.len());
        let word = words.take_while(|end| *end <= bytes).last().unwrap_or(0);
        // What is said otherwise than it stands may end in signs, which are no word.
        let mut end = 0;
        let ends = self.runs.iter().map(|run| {
            end += run.bytes;
            if run.as_is { 0 } else { end }
        });
        let reading = ends.take_while(|end| *end <= bytes).max().unwrap_or(0);
        &self.text[..word.max(reading)]
    }

    /// The bytes written for the first `said` scalar values. What is said otherwise than it stands is heard
    /// whole or not at all.
    fn written(&self, said: u64) -> usize {
        let (mut bytes, mut left) = (0, said);
        for run in &self.runs {
            if left < run.said {
                return bytes + if run.as_is { nth(&self.text[bytes..bytes + run.bytes], left) } else { 0 };
            }
            left -= run.said;
            bytes += run.bytes;
        }
        bytes
    }
}

/// Where in `text` its first `characters` end, in bytes.
fn nth(text: &str, characters: u64) -> usize {
    let found = text.char_indices().nth(usize::try_from(characters).unwrap_or(usize::MAX));
    found.map_or(text.len(), |(at, _)| at)
}
