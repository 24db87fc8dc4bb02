//! When each character sounds, given as the sound is: a cursor that walks the text behind the sound.

use std::collections::VecDeque;

use super::segment::{Segment, WINDOW};

/// Most characters of one word; a longer run without a space is cut there.
pub const WORD_CHARACTERS_MAX: usize = 256;

/// A character of the text and when it sounds, in 48 kHz samples from the first of its epoch. One that makes
/// no sound begins and ends where the one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedCharacter {
    pub character: char,
    pub start: u64,
    pub end: u64,
}

/// A run of characters without white space, as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedWord {
    pub word: String,
    pub start: u64,
    pub end: u64,
}

/// Joins timed characters into words.
#[derive(Clone, Debug, Default)]
pub struct Words {
    open: Option<TimedWord>,
    characters: usize,
}

impl Words {
    /// Takes characters in order and appends each word that is whole by them.
    pub fn push(&mut self, characters: &[TimedCharacter], out: &mut Vec<TimedWord>) {
        for timed in characters {
            if timed.character.is_whitespace() {
                self.finish(out);
                continue;
            }
            let word = self.open.get_or_insert_with(|| TimedWord {
                word: String::new(),
                start: timed.start,
                end: timed.end,
            });
            word.word.push(timed.character);
            word.end = timed.end;
            self.characters += 1;
            if self.characters >= WORD_CHARACTERS_MAX {
                self.finish(out);
            }
        }
    }

    /// Ends the word at the end of the text.
    pub fn finish(&mut self, out: &mut Vec<TimedWord>) {
        out.extend(self.open.take());
        self.characters = 0;
    }
}

/// How far the text has been given its times.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    segment: u32,
    /// Of the segment's text: scalar values said for what was given, and its bytes; bytes of the gap after it.
    given: f64,
    given_bytes: usize,
    gap_bytes: usize,
    /// Voiced windows that the given characters took.
    voiced: f64,
    /// Where the last one ended.
    at: u64,
    /// Of segments that are gone: not yet asked for.
    owed: Vec<TimedCharacter>,
}

impl Cursor {
    /// Appends what sounds before `until`. `segments[0]` has the index `first`.
    pub(super) fn advance(
        &mut self,
        until: u64,
        pace: f64,
        first: u32,
        segments: &VecDeque<Segment>,
        out: &mut Vec<TimedCharacter>,
    ) {
        out.append(&mut self.owed);
        while let Some(segment) = segments.get(self.segment.saturating_sub(first) as usize) {
            self.speak(until, pace, segment, out);
            let done = segment.end.is_some_and(|end| end <= until);
            if !done {
                return;
            }
            self.skip(segment, out);
            // Until the next segment begins, this one's gap may still grow.
            if self.segment - first + 1 >= segments.len() as u32 {
                return;
            }
            self.leave();
        }
    }

    /// The segment with the index `first` goes away: what was not given of it is kept.
    pub(super) fn owe_rest(&mut self, first: u32, segment: &Segment) {
        if self.segment != first {
            return;
        }
        let mut owed = std::mem::take(&mut self.owed);
        self.speak(u64::MAX, 1.0, segment, &mut owed);
        self.skip(segment, &mut owed);
        self.owed = owed;
        self.leave();
    }

    /// Text that follows a segment that is gone.
    pub(super) fn owe_gap(&mut self, text: &str) {
        self.owed.extend(text.chars().map(|character| TimedCharacter {
            character,
            start: self.at,
            end: self.at,
        }));
    }

    /// Gives characters of the segment's text: of a finished one whatever begins before `until`, of another
    /// what has surely ended by then.
    fn speak(&mut self, until: u64, pace: f64, segment: &Segment, out: &mut Vec<TimedCharacter>) {
        let Some(ruler) = Ruler::new(segment) else { return };
        let left = segment.characters as f64 - self.given;
        let unit = match segment.end {
            Some(_) => (f64::from(ruler.length) - self.voiced).max(0.0) / left.max(1.0),
            None => 1.0 / pace,
        };
        let sounded = segment.voiced_before(until) as f64;
        for character in segment.text[self.given_bytes..].chars() {
            let said = segment.said_at(self.given_bytes);
            let (from, each) = (self.voiced, unit * said);
            let start = ruler.start(from).max(self.at);
            let end = ruler.end(from + each).max(start);
            let gives = match segment.end {
                Some(end) => start < until || end <= until,
                None => from + each <= sounded,
            };
            if !gives {
                return;
            }
            out.push(TimedCharacter { character, start, end });
            self.given += said;
            self.given_bytes += character.len_utf8();
            self.voiced = from + each;
            self.at = end;
        }
    }

    fn skip(&mut self, segment: &Segment, out: &mut Vec<TimedCharacter>) {
        self.at = self.at.max(segment.end.unwrap_or(0));
        let gap = &segment.gap[self.gap_bytes..];
        out.extend(gap.chars().map(|character| TimedCharacter { character, start: self.at, end: self.at }));
        self.gap_bytes = segment.gap.len();
    }

    fn leave(&mut self) {
        let (at, owed) = (self.at, std::mem::take(&mut self.owed));
        *self = Self { segment: self.segment + 1, at, owed, ..Self::default() };
    }
}

/// A segment's voiced windows laid end to end, and where each lies in time.
struct Ruler<'a> {
    start: u64,
    /// No time is later.
    end: u64,
    /// Windows from the segment's start, in order; `None` where all count, because none is voiced.
    voiced: Option<&'a [u32]>,
    /// How many count.
    length: u32,
}

impl<'a> Ruler<'a> {
    /// `None` for a segment that has not begun.
    fn new(segment: &'a Segment) -> Option<Self> {
        let start = segment.start?;
        let end = segment.end.unwrap_or(u64::MAX);
        // A segment without a voiced window is spoken as its time passes.
        if segment.voiced.is_empty() && segment.end.is_some() {
            return Some(Self { start, end, voiced: None, length: segment.windows });
        }
        let length = segment.voiced.len() as u32;
        Some(Self { start, end, voiced: Some(&segment.voiced), length })
    }

    /// When what begins after `voiced` windows begins.
    fn start(&self, voiced: f64) -> u64 {
        self.time(voiced.floor(), voiced)
    }

    /// When what ends after `voiced` windows ends: before a pause, not after it.
    fn end(&self, voiced: f64) -> u64 {
        self.time(voiced.ceil() - 1.0, voiced)
    }

    /// `voiced` within or at a border of the window that comes `window`th.
    fn time(&self, window: f64, voiced: f64) -> u64 {
        let Some(last) = self.length.checked_sub(1) else { return self.start.min(self.end) };
        let index = (window.max(0.0) as u32).min(last);
        let within = (voiced - f64::from(index)).clamp(0.0, 1.0);
        let window = self.voiced.map_or(index, |voiced| voiced[index as usize]);
        let time = self.start + u64::from(window) * WINDOW + (within * WINDOW as f64) as u64;
        time.min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use crate::alignment::{Alignment, TimedCharacter, Words};

    const RATE: u32 = 24_000;

    struct Speech {
        alignment: Alignment,
        /// Samples at 24 kHz so far.
        at: u64,
    }

    impl Speech {
        fn new() -> Self {
            Self { alignment: Alignment::with_times(), at: 0 }
        }

        fn sound(&mut self, segment: u32, seconds: f64, level: f32) {
            let samples = vec![level; (seconds * f64::from(RATE)) as usize];
            self.alignment.handle_chunk(segment, self.at, &samples, RATE);
            self.at += samples.len() as u64;
        }

        fn end(&mut self, segment: u32) {
            self.alignment.handle_segment_end(segment, self.at * 2);
        }

        fn timed(&mut self) -> Vec<TimedCharacter> {
            self.alignment.timed(self.at * 2)
        }
    }

    fn text(timed: &[TimedCharacter]) -> String {
        timed.iter().map(|timed| timed.character).collect()
    }

    fn ms(timed: &TimedCharacter) -> (u64, u64) {
        (timed.start / 48, timed.end / 48)
    }

    #[test]
    fn characters_share_the_voiced_time_and_a_pause_belongs_to_none() {
        let mut speech = Speech::new();
        speech.alignment.handle_text(0, "abcd");
        for level in [0.1, 0.0, 0.1] {
            speech.sound(0, 0.2, level);
        }
        speech.end(0);
        let timed = speech.timed();
        assert_eq!(text(&timed), "abcd");
        let times: Vec<_> = timed.iter().map(ms).collect();
        assert_eq!(times, [(0, 100), (100, 200), (400, 500), (500, 600)]);
    }

    #[test]
    fn a_segment_still_being_spoken_gives_characters_by_the_voices_rate_and_the_rest_at_its_end() {
        let mut speech = Speech::new();
        speech.alignment.handle_text(0, "twelve chars");
        speech.sound(0, 0.2, 0.1);
        // 0.4 characters a window of 20 ms: 4 in ten windows.
        assert_eq!(text(&speech.timed()), "twel");
        assert_eq!(text(&speech.timed()), "", "what was given is not given again");
        speech.sound(0, 0.2, 0.1);
        speech.end(0);
        let rest = speech.timed();
        assert_eq!(text(&rest), "ve chars");
        assert_eq!((ms(&rest[0]), ms(&rest[7])), ((200, 225), (375, 400)));
    }

    #[test]
    fn all_calls_together_give_the_text_once_and_times_never_go_back() {
        for step in [960, 7_000, 100_000] {
            let mut speech = Speech::new();
            let mut all = Vec::new();
            let said = ["Hello there.", "你好, world!", "3 more", "quiet"];
            for (segment, said) in (0..).zip(said) {
                speech.alignment.handle_text(segment, said);
                for round in 0..6 {
                    speech.sound(segment, 0.13, if segment < 3 && round % 3 != 1 { 0.1 } else { 0.0 });
                    let position = (speech.at * 2).saturating_sub(step);
                    all.extend(speech.alignment.timed(position));
                }
                speech.end(segment);
                if segment == 1 {
                    speech.alignment.forget(speech.at * 2);
                    speech.alignment.handle_gap(segment, "\n");
                } else {
                    speech.alignment.handle_gap(segment, " ");
                }
            }
            all.extend(speech.timed());
            assert_eq!(text(&all), "Hello there. 你好, world!\n3 more quiet ", "step {step}");
            let mut at = 0;
            for timed in &all {
                assert!(at <= timed.start && timed.start <= timed.end, "step {step}: {timed:?} after {at}");
                at = timed.end;
            }
            assert!(at <= speech.at * 2, "step {step}: no time is after the sound");
        }
    }

    #[test]
    fn who_does_not_ask_for_times_gets_none_and_keeps_none() {
        let mut alignment = Alignment::new();
        alignment.handle_text(0, "text");
        alignment.handle_chunk(0, 0, &[0.1; 24_000], RATE);
        alignment.handle_segment_end(0, 48_000);
        assert_eq!(alignment.timed(u64::MAX), []);
    }

    #[test]
    fn words_are_what_stands_between_spaces_as_it_was_sent() {
        let mut speech = Speech::new();
        speech.alignment.handle_text(0, "\"Well,\" it's  24%!");
        speech.sound(0, 1.8, 0.1);
        speech.end(0);
        let (mut words, mut out) = (Words::default(), Vec::new());
        for timed in speech.timed().chunks(3) {
            words.push(timed, &mut out);
        }
        words.finish(&mut out);
        let words: Vec<_> =
            out.iter().map(|word| (word.word.as_str(), word.start / 48, word.end / 48)).collect();
        assert_eq!(words, [("\"Well,\"", 0, 700), ("it's", 800, 1_200), ("24%!", 1_400, 1_800)]);
    }
}
