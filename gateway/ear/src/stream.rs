//! Text as it streams in, text as it is said out.

use std::sync::Arc;

use crate::language::WINDOW_WORDS;
use crate::markup::{PARAGRAPH_MS, PAUSE_MS_MAX, Tag, tag};
use crate::word::stands_alone;
use crate::{Context, Language, Lexicon, Reading, Word};

/// Most characters held back. A longer word, or longer white space, goes on as it stands.
pub const HELD_CHARACTERS_MAX: usize = 256;

/// A piece of the text, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Said as it stands.
    AsIs(String),
    /// Silence of this length; `original` is its markup, empty for a blank line.
    Pause { original: String, ms: u32 },
    /// `original` is said like `said`.
    Said { original: String, said: String },
}

/// Reads one text. Held back is the word at the end, or up to six whose reading depends on the next one.
#[derive(Clone, Debug)]
pub struct Ear {
    language: Option<&'static dyn Language>,
    lexicon: Arc<Lexicon>,
    held: String,
    characters: usize,
    /// The last word given out, without punctuation.
    before: String,
    /// Line breaks since the last word.
    lines: u32,
    /// Pauses since the last word that is spoken, in milliseconds.
    paused_ms: u32,
    /// Something was spoken, so that a blank line is a pause.
    began: bool,
    /// The last word was let go before its end was known.
    open: Open,
}

/// A word let go early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    AsIs,
    No,
    /// As said: what follows cannot be joined to it.
    Said,
}

/// How far a word reaches.
enum Reach {
    /// To here, whatever follows.
    Closed(usize),
    /// At least to here.
    Open(usize),
}

impl Ear {
    /// An ear for `language`; without one only the lexicon and pauses are read.
    #[must_use]
    pub fn new(language: Option<&'static dyn Language>, lexicon: Arc<Lexicon>) -> Self {
        Self {
            language,
            lexicon,
            held: String::new(),
            characters: 0,
            before: String::new(),
            lines: 0,
            paused_ms: 0,
            began: false,
            open: Open::No,
        }
    }

    /// Takes text in and appends what is certain to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Span>) {
        for c in text.chars() {
            self.held.push(c);
            self.characters += 1;
            let decides = c.is_whitespace() || c == '>' || stands_alone(c);
            if decides || self.passes_at_once() || self.open != Open::No {
                self.drain(false, out);
            }
            if self.characters >= HELD_CHARACTERS_MAX {
                self.release(out);
            }
        }
    }

    /// After a dry spell: lets go of what is held. A word whose end comes later was read without it.
    pub fn release(&mut self, out: &mut Vec<Span>) {
        let within = self.held.chars().next_back().is_some_and(|c| !c.is_whitespace() && !stands_alone(c));
        self.drain(true, out);
        if within {
            self.open = match out.last() {
                Some(Span::AsIs(_)) => Open::AsIs,
                Some(Span::Said { .. }) => Open::Said,
                Some(Span::Pause { .. }) | None => Open::No,
            };
        }
    }

    /// The text ends here, or a part of it that is to be spoken by itself.
    pub fn flush(&mut self, out: &mut Vec<Span>) {
        self.drain(true, out);
        self.open = Open::No;
    }

    /// Bytes held back.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.held.len()
    }

    fn passes_at_once(&self) -> bool {
        self.language.is_none() && self.lexicon.is_empty()
    }

    /// Gives out all that is certain; everything, when the text has `ended`.
    fn drain(&mut self, ended: bool, out: &mut Vec<Span>) {
        while let Some(first) = self.held.chars().next() {
            if first.is_whitespace() {
                self.open = Open::No;
                let gap = self.held.find(|c: char| !c.is_whitespace()).unwrap_or(self.held.len());
                let gap = self.take(gap);
                self.lines +=
                    gap.chars().filter(|c| matches!(c, '\n' | '\u{2028}' | '\u{2029}')).count() as u32;
                as_is(gap, out);
                continue;
            }
            if first == '<' {
                match tag(&self.held) {
                    Tag::Break { bytes, ms } => {
                        self.open = Open::No;
                        let original = self.take(bytes);
                        self.pause(original, ms, out);
                        continue;
                    }
                    Tag::Unfinished if !ended => return,
                    Tag::None | Tag::Unfinished => {}
                }
            }
            if !self.word(ended, out) {
                return;
            }
        }
    }

    /// Gives out what begins with the word that is held; false when it has to wait.
    fn word(&mut self, ended: bool, out: &mut Vec<Span>) -> bool {
        let at_once = self.passes_at_once() || self.open == Open::AsIs;
        let end = match reach(&self.held, ended) {
            Reach::Closed(end) => end,
            Reach::Open(end) if at_once => end,
            Reach::Open(_) if !ended => return false,
            Reach::Open(end) => end,
        };
        if end == 0 {
            return false;
        }
        if at_once {
            self.give(end, None, out);
            return true;
        }
        if std::mem::replace(&mut self.open, Open::No) == Open::Said {
            out.push(Span::Said { original: String::new(), said: " ".to_owned() });
        }
        let first = Word::new(&self.held[..end]);
        if let Some(said) = self.lexicon.read(first) {
            self.give(end, Some(said), out);
            return true;
        }
        let alone = self.held.chars().next().is_some_and(stands_alone);
        let Some(language) = self.language.filter(|_| !alone) else {
            self.give(end, None, out);
            return true;
        };
        let (ends, more) = self.window(end, ended);
        let words: Vec<Word<'_>> = ends.iter().map(|(from, to)| Word::new(&self.held[*from..*to])).collect();
        match language.read(&words, Context { before: &self.before, more }) {
            Reading::Wait if more => return false,
            Reading::AsIs | Reading::Wait => self.give(end, None, out),
            Reading::Spoken { words, text } => {
                let end = ends.get(words.saturating_sub(1)).map_or(end, |(_, to)| *to);
                self.give(end, Some(text), out);
            }
        }
        true
    }

    /// Where the words stand that begin with one that ends at `end`, and whether further ones may follow
    /// in the line.
    fn window(&self, end: usize, ended: bool) -> (Vec<(usize, usize)>, bool) {
        let mut ends = vec![(0, end)];
        let mut at = end;
        while ends.len() < WINDOW_WORDS {
            let rest = &self.held[at..];
            let gap = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
            if rest.is_empty() {
                return (ends, false);
            }
            if gap == 0 || rest[..gap].contains(['\n', '\u{2028}', '\u{2029}']) {
                return (ends, false);
            }
            let next = &rest[gap..];
            let Some(first) = next.chars().next() else { return (ends, !ended) };
            if stands_alone(first) {
                return (ends, false);
            }
            match if first == '<' { tag(next) } else { Tag::None } {
                Tag::Break { .. } => return (ends, false),
                Tag::Unfinished if !ended => return (ends, true),
                Tag::None | Tag::Unfinished => {}
            }
            match reach(next, ended) {
                Reach::Open(_) if !ended => return (ends, true),
                Reach::Closed(length) | Reach::Open(length) => ends.push((at + gap, at + gap + length)),
            }
            at += gap + ends.last().map_or(0, |(from, to)| to - from);
        }
        (ends, false)
    }

    /// Gives `end` bytes out, said like `said` or as they stand.
    fn give(&mut self, end: usize, said: Option<String>, out: &mut Vec<Span>) {
        let original = self.take(end);
        let spoken = original.chars().any(char::is_alphanumeric) || said.is_some();
        if spoken {
            if std::mem::take(&mut self.lines) >= 2 && self.began {
                self.pause(String::new(), PARAGRAPH_MS, out);
            }
            self.began = true;
            self.paused_ms = 0;
        }
        let last = original.split_whitespace().next_back().unwrap_or_default();
        self.before.clear();
        self.before.push_str(Word::new(last).core);
        match said {
            Some(said) if said != original => out.push(Span::Said { original, said }),
            _ => as_is(original, out),
        }
    }

    fn pause(&mut self, original: String, ms: u32, out: &mut Vec<Span>) {
        let ms = ms.min(PAUSE_MS_MAX - self.paused_ms);
        self.paused_ms += ms;
        out.push(Span::Pause { original, ms });
    }

    fn take(&mut self, bytes: usize) -> String {
        let taken: String = self.held.drain(..bytes).collect();
        self.characters -= taken.chars().count();
        taken
    }
}

/// How far the word at the beginning of `text` reaches.
fn reach(text: &str, ended: bool) -> Reach {
    for (at, c) in text.char_indices() {
        if c.is_whitespace() {
            return Reach::Closed(at);
        }
        if stands_alone(c) {
            return Reach::Closed(if at == 0 { c.len_utf8() } else { at });
        }
        if c == '<' {
            match tag(&text[at..]) {
                Tag::Break { .. } => return Reach::Closed(at),
                Tag::Unfinished if !ended => return Reach::Open(at),
                Tag::None | Tag::Unfinished => {}
            }
        }
    }
    Reach::Open(text.len())
}

fn as_is(text: String, out: &mut Vec<Span>) {
    match out.last_mut() {
        Some(Span::AsIs(earlier)) => earlier.push_str(&text),
        _ => out.push(Span::AsIs(text)),
    }
}
