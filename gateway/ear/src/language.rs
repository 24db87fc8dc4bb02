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
    /// Its name, as BCP 47 writes it.
    fn tag(&self) -> &'static str;

    /// How the first of `words` is read, or the first few. They stand in one line, at most
    /// six of them; there is at least one.
    fn read(&self, words: &[Word<'_>], context: Context<'_>) -> Reading;
}

/// Words a language sees at once.
pub(crate) const WINDOW_WORDS: usize = 6;

/// Regions whose English is read as in Britain: it counts days, and says numbers, their way.
const AS_IN_BRITAIN: &[&str] = &["gb", "uk", "ie", "au", "nz", "in", "za"];

/// The language of this name (`english`, `en`, `en-GB`, `en_us`), if it is built in. English is America's
/// where no region says otherwise.
#[must_use]
pub fn language(name: &str) -> Option<&'static dyn Language> {
    let name = name.to_ascii_lowercase();
    let mut parts = name.split(['-', '_']);
    if !matches!(parts.next(), Some("en" | "eng" | "english")) {
        return None;
    }
    let british = parts.any(|part| AS_IN_BRITAIN.contains(&part));
    Some(if british { &English::BRITISH } else { &English::AMERICAN })
}
