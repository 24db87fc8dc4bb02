//! The hook of a language: how its words are read.

use crate::{English, Word};

/// How the next words are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The first word is read as it stands.
    AsIs,
    /// What follows decides. Only while [`Context::more`] holds.
    Wait,
    /// The first `words` words are said like this, punctuation included.
    Spoken { words: usize, text: String },
}

/// What a language knows besides the words themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// The word before, without punctuation; empty at the text's beginning.
    pub before: &'a str,
    /// Further words may follow those given.
    pub more: bool,
}

/// Reads the words of a language. The answer depends on nothing but what is given.
pub trait Language: std::fmt::Debug + Send + Sync {
    /// How the first of `words` is read, or the first few. They stand in one line, at most
    /// six of them; there is at least one.
    fn read(&self, words: &[Word<'_>], context: Context<'_>) -> Reading;
}

/// Words a language sees at once.
pub(crate) const WINDOW_WORDS: usize = 6;

/// The language of this name (`english`, `en`, `en-GB`), if it is built in.
#[must_use]
pub fn language(name: &str) -> Option<&'static dyn Language> {
    let name = name.to_ascii_lowercase();
    let main = name.split(['-', '_']).next().unwrap_or_default();
    matches!(main, "en" | "eng" | "english").then_some(&English)
}
