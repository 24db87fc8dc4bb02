//! The one rule for control tokens in what others say: a text that spells one is refused, however it was
//! split, and is never obeyed.

use std::sync::Arc;

/// The spellings a model obeys in texts of its own making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlTokens {
    /// Longest first, so that of equal starts the longest is found.
    spellings: Arc<[String]>,
}

/// Follows one text that arrives in deltas.
#[derive(Clone, Debug)]
pub struct ControlWatch {
    tokens: ControlTokens,
    /// The end of what was taken: a spelling may be split over deltas.
    recent: String,
}

impl ControlTokens {
    /// Empty spellings are nothing.
    #[must_use]
    pub fn new(mut spellings: Vec<String>) -> Self {
        spellings.retain(|spelling| !spelling.is_empty());
        spellings.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        Self { spellings: spellings.into() }
    }

    /// The spelling that starts first in `text`, the longest of those that start there, and the byte at
    /// which it starts.
    #[must_use]
    pub fn first_in(&self, text: &str) -> Option<(usize, &str)> {
        let found = self.spellings.iter().filter_map(|s| Some((text.find(s.as_str())?, s.as_str())));
        // Of equal starts the first of the list, the longest, is kept.
        found.min_by_key(|(start, _)| *start)
    }
}

impl ControlWatch {
    #[must_use]
    pub const fn new(tokens: ControlTokens) -> Self {
        Self { tokens, recent: String::new() }
    }

    /// Takes a delta in.
    ///
    /// # Errors
    /// The control token that the text would spell with this delta; nothing of it was taken.
    pub fn push(&mut self, delta: &str) -> Result<(), String> {
        let longest = self.tokens.spellings.first().map_or(0, String::len);
        let joined = format!("{}{delta}", self.recent);
        if let Some((_, token)) = self.tokens.first_in(&joined) {
            return Err(token.to_owned());
        }
        let start = joined.floor_char_boundary((joined.len() + 1).saturating_sub(longest));
        self.recent.clear();
        self.recent.push_str(&joined[start..]);
        Ok(())
    }

    /// The text has ended; another begins.
    pub fn restart(&mut self) {
        self.recent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> ControlTokens {
        ControlTokens::new(["<|a|>", "", "<|a|><|b|>", "é|"].map(str::to_owned).to_vec())
    }

    #[test]
    fn of_spellings_that_start_together_the_longest_is_found() {
        assert_eq!(tokens().first_in("x <|a|><|b|>"), Some((2, "<|a|><|b|>")));
        assert_eq!(tokens().first_in("x <|a|> <|b|>"), Some((2, "<|a|>")));
        assert_eq!(tokens().first_in("<|x|> is no token of this model"), None);
    }

    #[test]
    fn a_spelling_split_over_deltas_is_found_and_its_last_delta_not_taken() {
        for split in 1.."x<|a|>".len() {
            let mut watch = ControlWatch::new(tokens());
            let (head, tail) = "x<|a|>".split_at(split);
            assert_eq!(watch.push(head), Ok(()));
            assert_eq!(watch.push(tail), Err("<|a|>".to_owned()), "{split}");
            assert_eq!(watch.push(" and on"), Ok(()));
            watch.restart();
            assert_eq!(watch.push(tail).is_ok(), tail != "<|a|>");
        }
    }
}
