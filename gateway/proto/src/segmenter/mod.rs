//! Cuts streamed text into segments that fit the model (DESIGN.md section 3, step 2).
//!
//! Text goes through at once: whether a segment ends is decided when the next word begins, never by
//! taking text back. Going forward through four zones makes that possible: below the target length
//! nothing but a blank line ends a segment (so that prosody flows), then sentence ends do, then clause
//! ends, then any space, and at the maximum the next grapheme border.
//!
//! Held back are only: the last grapheme cluster (a later delta may extend it), spaces after a word
//! (they belong to no segment if one ends there), and punctuation before a segment's first letter or
//! digit. All three are bounded.
//!
//! Where the input is split into deltas never changes pieces or cuts, with one exception:
//! [`Segmenter::release`], called after a dry spell, lets the last cluster go, so that a combining mark
//! that comes later counts as a cluster of its own.
//!
//! Nothing is lost or doubled: the texts of all pieces in order are the input.

mod marks;

use unicode_segmentation::UnicodeSegmentation;

use marks::{Stop, WORD_CHARACTERS_MAX, ends_sentence, is_border_without_space, stop_after};

/// Lengths at which a segment may end, in Unicode scalar values of spoken text, a digit counting for the
/// word it is read as ([`DIGIT_LENGTH`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// As `target`, for the first segment of a context.
    pub first: u32,
    /// From here on a sentence end ends the segment.
    pub target: u32,
    /// From here on a clause end does, or a line break.
    pub clause: u32,
    /// From here on any space does.
    pub word: u32,
    /// No segment is longer.
    pub max: u32,
}

/// A step of the cut text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The segment ends here. It has spoken text.
    Cut,
    /// Spaces between segments, control characters, or text without a letter or digit: not for the model.
    Skip(String),
    /// Text of the current segment.
    Speak(String),
}

/// Longest grapheme cluster kept whole, in scalar values. Longer ones (stacked combining marks without
/// end) are treated as several.
const CLUSTER_MAX: u32 = 32;
/// Characters a digit counts for: "7" is spoken as long as "seven", and in "1749" as long as "seventeen".
pub const DIGIT_LENGTH: u32 = 4;
/// Digits in a row that are spoken in one segment. No number that people read out is longer, and models
/// lose their place in longer ones (the embedded one reads 20 without fail, and babbles after 24).
pub const DIGITS_MAX: u32 = 20;
/// Most scalar values of spaces or leading punctuation held back.
const HELD_MAX: u32 = 64;

/// Cuts the text of one epoch.
#[derive(Clone, Debug)]
pub struct Segmenter {
    zones: Zones,
    /// Last grapheme cluster; a later character may still belong to it.
    cluster: String,
    cluster_length: u32,
    /// In a segment: spaces after its text. Before one: punctuation before its first letter.
    held: String,
    held_length: u32,
    /// Line breaks in `held`.
    held_lines: u32,
    /// Scalar values spoken in the current segment; 0 before its first letter.
    length: u32,
    /// Digits in a row at the end.
    digits: u32,
    stop: Stop,
    /// The word at the end, lower case, for abbreviations.
    word: String,
    /// Whether `word` began a line.
    line_start: bool,
    /// No segment has ended yet.
    first: bool,
}

impl Zones {
    /// For a layout that speaks a segment only when its text is whole: the first sentence goes alone.
    #[must_use]
    pub fn whole(max: u32) -> Self {
        Self { first: 24.min(max / 2), ..Self::streamed(max) }
    }

    /// For a layout that speaks while text arrives: nothing is gained by a short first segment.
    #[must_use]
    pub fn streamed(max: u32) -> Self {
        let max = max.max(8);
        let target = (max / 2).min(240);
        Self { first: target, target, clause: max / 4 * 3, word: max / 10 * 9, max }
    }
}

impl Segmenter {
    #[must_use]
    pub fn new(zones: Zones) -> Self {
        // The bounds below need room for a held run and a cluster in one segment.
        let zones = Zones { max: zones.max.max(8), ..zones };
        Self {
            zones,
            cluster: String::new(),
            cluster_length: 0,
            held: String::new(),
            held_length: 0,
            held_lines: 0,
            length: 0,
            digits: 0,
            stop: Stop::None,
            word: String::new(),
            line_start: true,
            first: true,
        }
    }

    /// Takes text in and appends what can go on to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        for c in text.chars() {
            if !self.cluster.is_empty() && !self.extends(c) {
                self.take_cluster(out);
            }
            self.cluster.push(c);
            self.cluster_length += 1;
        }
    }

    /// After a dry spell: lets the last cluster go. Ends no segment.
    pub fn release(&mut self, out: &mut Vec<Piece>) {
        self.take_cluster(out);
    }

    /// Ends the current segment, if there is one, and lets go of everything.
    pub fn flush(&mut self, out: &mut Vec<Piece>) {
        self.take_cluster(out);
        self.end_segment(out);
    }

    /// Whether a segment has text and no end.
    #[must_use]
    pub const fn is_speaking(&self) -> bool {
        self.length > 0
    }

    /// Scalar values held back.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.cluster_length + self.held_length
    }

    /// Bytes of the last cluster, which [`Segmenter::release`] would let go.
    #[must_use]
    pub const fn cluster_bytes(&self) -> usize {
        self.cluster.len()
    }

    const fn half(&self, bound: u32) -> u32 {
        let half = self.zones.max / 2;
        if bound < half { bound } else { half }
    }

    /// Whether `c` belongs to the cluster at the end (Unicode Annex 29).
    fn extends(&mut self, c: char) -> bool {
        if self.cluster_length >= self.half(CLUSTER_MAX) {
            return false;
        }
        if c.is_ascii() && self.cluster.is_ascii() {
            return self.cluster == "\r" && c == '\n';
        }
        // A prepended mark makes one cluster with any letter that follows; a blank after it is still between words.
        if c.is_whitespace() && !self.cluster.ends_with(char::is_whitespace) {
            return false;
        }
        self.cluster.push(c);
        let one = self.cluster.graphemes(true).nth(1).is_none();
        self.cluster.pop();
        one
    }

    fn take_cluster(&mut self, out: &mut Vec<Piece>) {
        if self.cluster.is_empty() {
            return;
        }
        let cluster = std::mem::take(&mut self.cluster);
        let length = std::mem::take(&mut self.cluster_length);
        self.unit(&cluster, length, out);
        // The allocation goes back, to be filled by the next cluster.
        self.cluster = cluster;
        self.cluster.clear();
    }

    fn unit(&mut self, cluster: &str, length: u32, out: &mut Vec<Piece>) {
        // A cluster is never empty.
        let c = cluster.chars().next().unwrap_or(' ');
        if c.is_whitespace() {
            self.space(cluster, length, out);
        } else if c.is_control() {
            // Held text goes out in order, so a control character inside it waits with it.
            if self.held.is_empty() { skip(cluster, out) } else { self.hold(cluster, length, out) }
        } else {
            self.visible(c, cluster, length, out);
        }
    }

    fn space(&mut self, cluster: &str, length: u32, out: &mut Vec<Piece>) {
        self.word.clear();
        self.digits = 0;
        let line = cluster.contains(['\n', '\r', '\u{2028}', '\u{2029}']);
        self.line_start |= line;
        if self.length == 0 && self.held.is_empty() {
            skip(cluster, out);
            return;
        }
        self.held_lines += u32::from(line);
        self.hold(cluster, length, out);
        if self.held_lines >= 2 {
            self.end_segment(out);
        }
    }

    fn hold(&mut self, cluster: &str, length: u32, out: &mut Vec<Piece>) {
        self.held.push_str(cluster);
        self.held_length += length;
        if self.held_length > self.half(HELD_MAX) {
            self.end_segment(out);
        }
    }

    fn visible(&mut self, c: char, cluster: &str, length: u32, out: &mut Vec<Piece>) {
        if self.length > 0 && self.cuts_before(c, length) {
            self.end_segment(out);
        }
        self.follow(c);
        if self.length == 0 && !cluster.chars().any(char::is_alphanumeric) {
            self.hold(cluster, length, out);
            return;
        }
        self.length += self.held_length + spoken_length(c, length);
        self.digits = if c.is_numeric() { self.digits + 1 } else { 0 };
        speak(&self.held, out);
        speak(cluster, out);
        self.clear_held();
    }

    /// Whether the segment ends before a cluster that begins with `next`.
    fn cuts_before(&self, next: char, length: u32) -> bool {
        if self.length + self.held_length + spoken_length(next, length) > self.zones.max {
            return true;
        }
        if next.is_numeric() && self.digits >= DIGITS_MAX {
            return true;
        }
        let spaced = !self.held.is_empty();
        if !spaced && !is_border_without_space(self.stop, next) {
            return false;
        }
        let sentence = ends_sentence(self.stop, next);
        let clause = matches!(self.stop, Stop::Clause | Stop::ClauseCjk) || self.held_lines > 0;
        let target = if self.first { self.zones.first } else { self.zones.target };
        sentence && self.length >= target
            || (sentence || clause) && self.length >= self.zones.clause
            || spaced && self.length >= self.zones.word
    }

    /// Keeps track of stops and of the word at the end.
    fn follow(&mut self, c: char) {
        self.stop = stop_after(c, self.stop, &self.word, self.line_start);
        if !c.is_alphanumeric() && c != '.' {
            self.word.clear();
            return;
        }
        if self.word.is_empty() && !self.held.is_empty() && self.held_lines == 0 {
            self.line_start = false;
        }
        if self.word.chars().count() < WORD_CHARACTERS_MAX {
            self.word.extend(c.to_lowercase());
        }
    }

    fn end_segment(&mut self, out: &mut Vec<Piece>) {
        if self.length > 0 {
            out.push(Piece::Cut);
            self.first = false;
            self.length = 0;
            self.digits = 0;
        }
        let held = std::mem::take(&mut self.held);
        skip(&held, out);
        self.clear_held();
        self.stop = Stop::None;
    }

    fn clear_held(&mut self) {
        self.held.clear();
        self.held_length = 0;
        self.held_lines = 0;
    }
}

/// How long a cluster of `length` characters that begins with `c` is to speak.
fn spoken_length(c: char, length: u32) -> u32 {
    if c.is_numeric() { length.max(DIGIT_LENGTH) } else { length }
}

fn skip(text: &str, out: &mut Vec<Piece>) {
    if text.is_empty() {
        return;
    }
    match out.last_mut() {
        Some(Piece::Skip(skipped)) => skipped.push_str(text),
        _ => out.push(Piece::Skip(text.to_owned())),
    }
}

/// Appends to the current segment; control characters within are left out of it.
fn speak(text: &str, out: &mut Vec<Piece>) {
    for part in text.split_inclusive(|c: char| c.is_control() && !c.is_whitespace()) {
        let visible = part.trim_end_matches(|c: char| c.is_control() && !c.is_whitespace());
        if !visible.is_empty() {
            match out.last_mut() {
                Some(Piece::Speak(spoken)) => spoken.push_str(visible),
                _ => out.push(Piece::Speak(visible.to_owned())),
            }
        }
        skip(&part[visible.len()..], out);
    }
}
