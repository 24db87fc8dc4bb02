//! Which words the listener has heard, and when each character sounds: characters spread over the voiced
//! parts of each segment (DESIGN.md section 3, "Alignment"). Estimates, and marked so.
//!
//! What is spread is what is said; what is told is what was written for it. "$5" is heard once "five
//! dollars" is.

mod pace;
mod segment;
mod times;

use std::collections::VecDeque;

pub use pace::Pace;
use segment::Segment;
use times::Cursor;
pub use times::{TimedCharacter, TimedWord, WORD_CHARACTERS_MAX, Words};

use crate::reader::{Part, Run};
use crate::wire::{Heard, Speed};

/// Most characters of text an answer repeats.
pub const HEARD_CHARACTERS_MAX: usize = 16_384;

/// Text and sound of one epoch, as far as the listener has not fully heard them.
#[derive(Clone, Debug, Default)]
pub struct Alignment {
    segments: VecDeque<Segment>,
    /// Index of `segments[0]`.
    first: u32,
    /// What was heard of segments that are gone: their count of characters, and the end of their text.
    past_characters: u64,
    past: String,
    pace: Pace,
    /// How fast the voice is heard.
    speed: Speed,
    /// Estimates never go back.
    floor: u64,
    /// How far characters have been given their times; `None` where nobody asks for them.
    cursor: Option<Cursor>,
    /// The segment that the next piece of text goes into, and whether it has any.
    segment: u32,
    in_segment: bool,
}

impl Alignment {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One that also gives times: [`Alignment::timed`].
    #[must_use]
    pub fn with_times() -> Self {
        Self { cursor: Some(Cursor::default()), ..Self::default() }
    }

    /// The same, of a voice whose pace is known.
    #[must_use]
    pub fn knowing(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// The same, of a voice that is heard at this speed. Positions are those that are heard.
    #[must_use]
    pub fn at_speed(self, speed: Speed) -> Self {
        Self { speed, ..self }
    }

    /// Characters heard in a voiced window.
    fn per_window(&self) -> f64 {
        self.pace.per_window() * self.speed.get()
    }

    /// What is known of the voice's pace by now: of its own, whatever the speed.
    #[must_use]
    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// The next part of the text.
    pub fn handle_part(&mut self, part: &Part) {
        match part {
            Part::Cut => {
                self.segment += 1;
                self.in_segment = false;
            }
            // Control characters within a segment are no gap after one.
            Part::Skip(_) | Part::Pause { .. } if self.in_segment || self.segment == 0 => {}
            Part::Skip(text) | Part::Pause { original: text, .. } => self.handle_gap(self.segment - 1, text),
            Part::Speak { runs, .. } => {
                self.in_segment = true;
                for run in runs {
                    self.handle_run(self.segment, run);
                }
            }
        }
    }

    /// Segments of the text so far that have been ended.
    #[must_use]
    pub const fn segments(&self) -> u32 {
        self.segment
    }

    /// Text of a segment that is said as it stands; segments come in order.
    pub fn handle_text(&mut self, segment: u32, text: &str) {
        let said = text.chars().count() as u64;
        self.handle_run(segment, &Run { original: text.to_owned(), said, as_is: true });
    }

    /// Text of a segment as it was written, and how much is said for it.
    pub fn handle_run(&mut self, segment: u32, run: &Run) {
        if let Some(segment) = self.segment(segment) {
            segment.push_run(run);
        }
    }

    /// Text that follows a segment and is not spoken.
    pub fn handle_gap(&mut self, segment: u32, text: &str) {
        if segment.checked_add(1) == Some(self.first) {
            self.past.push_str(text);
            self.past_characters += text.chars().count() as u64;
            if let Some(cursor) = &mut self.cursor {
                cursor.owe_gap(text);
            }
        } else if let Some(segment) = self.segment(segment) {
            segment.gap.push_str(text);
        }
    }

    /// Sound of a segment: `first_sample` counts the context's samples at `rate`.
    pub fn handle_chunk(&mut self, segment: u32, first_sample: u64, samples: &[f32], rate: u32) {
        if let Some(segment) = self.segment(segment) {
            segment.push_sound(first_sample, samples, rate);
        }
    }

    /// A segment's sound ended before 48 kHz position `end`.
    pub fn handle_segment_end(&mut self, segment: u32, end: u64) {
        let Some(segment) = self.segment(segment) else { return };
        segment.end = Some(end);
        segment.start.get_or_insert(end);
        let (characters, windows) = (segment.characters, segment.voiced_before(u64::MAX));
        // As many as it would have taken at the voice's own speed.
        self.pace.measure(characters, (windows as f64 * self.speed.get()).round() as u64);
    }

    /// Folds segments heard to their end away, so that a long text takes no more room than a short one.
    pub fn forget(&mut self, played: u64) {
        while self.segments.front().is_some_and(|segment| segment.end.is_some_and(|end| end <= played)) {
            if let Some(segment) = self.segments.pop_front() {
                if let Some(cursor) = &mut self.cursor {
                    cursor.owe_rest(self.first, &segment);
                }
                self.first += 1;
                self.past_characters += (segment.text.chars().count() + segment.gap.chars().count()) as u64;
                self.past.push_str(&segment.text);
                self.past.push_str(&segment.gap);
                keep_end(&mut self.past);
            }
        }
    }

    /// The characters that sound before 48 kHz position `until` and that no earlier call gave, in the order
    /// of the text: the sum of all calls is the text, spaces and what is not spoken included. Times never go
    /// back, and one that was given stays. Those of a segment whose end is not known yet come by the voice's
    /// rate, the rest of it once its end is known. Empty unless made by [`Alignment::with_times`].
    pub fn timed(&mut self, until: u64) -> Vec<TimedCharacter> {
        let pace = self.per_window();
        let mut out = Vec::new();
        if let Some(cursor) = &mut self.cursor {
            cursor.advance(until, pace, self.first, &self.segments, &mut out);
        }
        out
    }

    /// What was heard when position `played` was audible.
    pub fn heard(&mut self, played: u64) -> Heard {
        self.forget(played);
        let mut text = self.past.clone();
        let mut characters = self.past_characters;
        let pace = self.per_window();
        if let Some(segment) = self.segments.front() {
            let floor = self.floor.saturating_sub(characters);
            let part = segment.heard(played, pace, floor);
            text.push_str(part);
            characters += part.chars().count() as u64;
        }
        // Spaces after the last word were not heard.
        let gap = text.len() - text.trim_end().len();
        characters -= text[text.len() - gap..].chars().count() as u64;
        text.truncate(text.len() - gap);
        keep_end(&mut text);
        self.floor = self.floor.max(characters);
        Heard { text, characters, samples: played, estimated: true }
    }

    /// The segment with this index, made if it is the next one; `None` when it is gone or far ahead.
    fn segment(&mut self, index: u32) -> Option<&mut Segment> {
        let at = index.checked_sub(self.first)? as usize;
        if at == self.segments.len() {
            self.segments.push_back(Segment::default());
        }
        self.segments.get_mut(at)
    }
}

fn keep_end(text: &mut String) {
    if text.len() <= HEARD_CHARACTERS_MAX {
        return;
    }
    let surplus = text.chars().count().saturating_sub(HEARD_CHARACTERS_MAX);
    let at = text.char_indices().nth(surplus).map_or(0, |(at, _)| at);
    text.drain(..at);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 24_000;

    /// `seconds` of a loud or silent segment that goes on at `first`.
    fn sound(alignment: &mut Alignment, segment: u32, first: &mut u64, seconds: f64, loud: bool) {
        let samples = vec![if loud { 0.1 } else { 0.0 }; (seconds * f64::from(RATE)) as usize];
        alignment.handle_chunk(segment, *first, &samples, RATE);
        *first += samples.len() as u64;
    }

    fn two_segments() -> (Alignment, u64) {
        let mut alignment = Alignment::new();
        alignment.handle_text(0, "One two three four.");
        alignment.handle_gap(0, " ");
        alignment.handle_text(1, "Five six");
        let mut at = 0;
        sound(&mut alignment, 0, &mut at, 1.0, true);
        sound(&mut alignment, 0, &mut at, 1.0, false);
        sound(&mut alignment, 0, &mut at, 1.0, true);
        alignment.handle_segment_end(0, at * 2);
        sound(&mut alignment, 1, &mut at, 1.0, true);
        (alignment, at * 2)
    }

    #[test]
    fn nothing_is_heard_before_the_first_sample() {
        let (mut alignment, _) = two_segments();
        assert_eq!(alignment.heard(0).text, "");
    }

    #[test]
    fn silence_is_no_text_and_the_cut_is_at_a_words_end() {
        let (mut alignment, _) = two_segments();
        let half = alignment.heard(48_000);
        assert_eq!((half.text.as_str(), half.characters, half.estimated), ("One two", 7, true));
        assert_eq!(alignment.heard(96_000).text, "One two");
        assert_eq!(alignment.heard(120_000).text, "One two three");
        let all = alignment.heard(144_000);
        assert_eq!((all.text.as_str(), all.characters), ("One two three four.", 19));
    }

    #[test]
    fn an_unfinished_segment_is_measured_by_the_rate_of_the_finished_ones() {
        let (mut alignment, end) = two_segments();
        // 19 characters in 100 voiced windows: 9.5 in the second that the second segment has.
        assert_eq!(alignment.heard(end).text, "One two three four. Five six");
        let (mut alignment, end) = two_segments();
        assert_eq!(alignment.heard(end - 24_000).text, "One two three four. Five");
    }

    #[test]
    fn what_is_said_otherwise_is_heard_whole_and_told_as_it_was_written() {
        let mut alignment = Alignment::new();
        let run = |original: &str, said: u64, as_is: bool| Run { original: original.to_owned(), said, as_is };
        // "Pay " four, "$3.50" as "three dollars and fifty cents", " now" four.
        for part in [run("Pay ", 4, true), run("$3.50", 29, false), run(" now", 4, true)] {
            alignment.handle_run(0, &part);
        }
        let mut at = 0;
        sound(&mut alignment, 0, &mut at, 3.7, true);
        alignment.handle_segment_end(0, at * 2);
        let heard = |seconds: f64| alignment.clone().heard((seconds * 48_000.0) as u64).text;
        assert_eq!([heard(0.5), heard(3.0)], ["Pay", "Pay"]);
        assert_eq!([heard(3.4), heard(3.69)], ["Pay $3.50", "Pay $3.50"]);
        assert_eq!(heard(3.7), "Pay $3.50 now");
        assert_eq!(alignment.heard(at * 2).characters, 13);
    }

    #[test]
    fn what_was_heard_never_shrinks() {
        let (mut alignment, end) = two_segments();
        let mut last = 0;
        for played in (0..end).step_by(1_000) {
            let heard = alignment.heard(played).characters;
            assert!(heard >= last, "{heard} < {last} at {played}");
            last = heard;
        }
        assert!(
            alignment.heard(0).characters >= 19,
            "a position that goes back takes no finished segment back"
        );
    }

    #[test]
    fn a_long_text_leaves_only_its_end() {
        let mut alignment = Alignment::new();
        let mut at = 0;
        for segment in 0..200 {
            alignment.handle_text(segment, &"wort ".repeat(50));
            sound(&mut alignment, segment, &mut at, 0.1, true);
            alignment.handle_segment_end(segment, at * 2);
            alignment.heard(at * 2);
        }
        let heard = alignment.heard(at * 2);
        assert_eq!(heard.characters, 49_999);
        assert!(heard.text.chars().count() <= HEARD_CHARACTERS_MAX);
        assert!(alignment.segments.is_empty());
    }
}
