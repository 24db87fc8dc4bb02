//! One written word: what stands between white space, its punctuation told apart.

/// A word and the punctuation around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// As it stands written.
    pub text: &'a str,
    /// Opening quotes and brackets.
    pub lead: &'a str,
    pub core: &'a str,
    /// Stops, commas, closing quotes and brackets.
    pub trail: &'a str,
}

impl<'a> Word<'a> {
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let rest = text.trim_start_matches(opens);
        let core = rest.trim_end_matches(closes);
        let lead = &text[..text.len() - rest.len()];
        Self { text, lead, core, trail: &rest[core.len()..] }
    }

    /// Nothing stands between the core and the next word but space.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.trail.is_empty()
    }

    /// Begins with a capital letter.
    #[must_use]
    pub fn is_capitalised(&self) -> bool {
        self.core.chars().next().is_some_and(char::is_uppercase)
    }

    /// Whether a sentence begins with it, going by its first letter or digit.
    #[must_use]
    pub fn may_begin_a_sentence(&self) -> bool {
        !self.core.chars().find(|c| c.is_alphanumeric()).is_some_and(char::is_lowercase)
    }
}

fn opens(c: char) -> bool {
    matches!(
        c,
        '"' | '\'' | '(' | '[' | '{' | '*' | '_' | '\u{AB}' | '\u{2018}' | '\u{201C}' | '\u{BF}' | '\u{A1}'
    )
}

fn closes(c: char) -> bool {
    matches!(
        c,
        '"' | '\''
            | ')'
            | ']'
            | '}'
            | '*'
            | '_'
            | '.'
            | ','
            | ';'
            | ':'
            | '!'
            | '?'
            | '\u{BB}'
            | '\u{2019}'
            | '\u{201D}'
            | '\u{2026}'
    )
}

/// Scripts written without spaces: each character is a word to itself.
pub(crate) const fn stands_alone(c: char) -> bool {
    matches!(c,
        '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}' | '\u{FE30}'..='\u{FE4F}'
            | '\u{FF00}'..='\u{FFEF}' | '\u{20000}'..='\u{3FFFF}' | '\u{E00}'..='\u{E7F}')
}
