//! Respellings: how single words are to be said, whatever the language.

use std::collections::BTreeMap;

use crate::Word;

/// Words of one lexicon.
pub const WORDS_MAX: usize = 10_000;
/// Characters of a word.
pub const WORD_CHARACTERS_MAX: usize = 64;
/// Characters of a respelling.
pub const RESPELLING_CHARACTERS_MAX: usize = 256;

/// Words and how they are said. Case does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lexicon {
    words: BTreeMap<String, String>,
}

/// An entry that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LexiconError {
    /// Longer than a bound, or empty.
    Length { word: String },
    /// A key with white space or punctuation at its ends can never be met.
    NoWord { word: String },
    /// More than [`WORDS_MAX`].
    TooMany,
}

impl std::fmt::Display for LexiconError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length { word } => write!(
                f,
                "{word:?} must have 1 to {WORD_CHARACTERS_MAX} characters, its respelling 1 to {RESPELLING_CHARACTERS_MAX}"
            ),
            Self::NoWord { word } => write!(f, "{word:?} must be one word, without punctuation around it"),
            Self::TooMany => write!(f, "it must hold at most {WORDS_MAX} words"),
        }
    }
}

impl std::error::Error for LexiconError {}

impl Lexicon {
    /// A lexicon of `(word, respelling)`; of two for one word the later holds.
    ///
    /// # Errors
    /// An entry that is too long or no word.
    pub fn new(entries: impl IntoIterator<Item = (String, String)>) -> Result<Self, LexiconError> {
        let mut words = BTreeMap::new();
        for (word, respelling) in entries {
            let fits = |text: &str, max| (1..=max).contains(&text.chars().count());
            if !fits(&word, WORD_CHARACTERS_MAX)
                || !fits(&respelling, RESPELLING_CHARACTERS_MAX)
                || !respelling.chars().any(char::is_alphanumeric)
            {
                return Err(LexiconError::Length { word });
            }
            if Word::new(&word).core != word || word.chars().any(char::is_whitespace) {
                return Err(LexiconError::NoWord { word });
            }
            words.insert(word.to_lowercase(), respelling);
            if words.len() > WORDS_MAX {
                return Err(LexiconError::TooMany);
            }
        }
        Ok(Self { words })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// The word as it is to be said, its punctuation and a possessive kept.
    pub(crate) fn read(&self, word: Word<'_>) -> Option<String> {
        if self.words.is_empty() || word.core.len() > WORD_CHARACTERS_MAX * 4 {
            return None;
        }
        let lower = word.core.to_lowercase();
        let (respelling, ending) = match self.words.get(&lower) {
            Some(respelling) => (respelling, ""),
            None => {
                let stem = lower.strip_suffix("'s").or_else(|| lower.strip_suffix("\u{2019}s"))?;
                (self.words.get(stem)?, "'s")
            }
        };
        Some(format!("{}{respelling}{ending}{}", word.lead, word.trail))
    }
}
