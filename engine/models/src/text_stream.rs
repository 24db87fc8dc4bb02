//! Text that arrives in deltas, turned into ids as early as they are certain (DESIGN.md section 3.3).

use std::sync::Arc;

use contract::ControlWatch;

use crate::tokenizer::{Clusters, More, PIECE_CHARS_MAX, Tokenizer, settle};

/// One text on its way to ids. However it is split into deltas, the ids given by all calls, in order,
/// are those of [`Tokenizer::encode`] of the whole, unless [`TextStream::release`] cut it.
///
/// Held back is what a later delta could re-tokenize: the word or run of signs at the end, blanks at the
/// end, and a last character that a combining mark could still change. That is never more than
/// [`PIECE_CHARS_MAX`] characters of each.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    clusters: Clusters,
    /// Composed text from the last border of pieces on.
    pending: String,
    pending_chars: usize,
    watch: ControlWatch,
}

/// A run this long is looked at again only when a character of another kind, or a capital, follows.
const LONG_RUN_CHARS: usize = 64;

/// Kinds of characters that split patterns make runs of.
#[derive(PartialEq, Eq)]
enum Kind {
    Blank,
    Digit,
    Letter,
    Sign,
}

impl Kind {
    fn of(character: char) -> Self {
        match character {
            c if c.is_alphabetic() => Self::Letter,
            c if c.is_numeric() => Self::Digit,
            c if c.is_whitespace() => Self::Blank,
            _ => Self::Sign,
        }
    }
}

impl TextStream {
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let clusters = Clusters::new(tokenizer.composes());
        let watch = ControlWatch::new(tokenizer.control_spellings().clone());
        Self { tokenizer, clusters, pending: String::new(), pending_chars: 0, watch }
    }

    /// Appends a delta; returns the ids that no later text can change.
    ///
    /// # Errors
    /// The spelling of the control token that the text would spell with this delta; nothing of it was taken.
    pub fn push(&mut self, delta: &str) -> Result<Vec<u32>, String> {
        self.watch.push(delta)?;
        let before = self.pending.len();
        let only_grows = self.only_grows(delta);
        self.clusters.push(delta, &mut self.pending);
        self.pending_chars += self.pending[before..].chars().count();
        if only_grows && self.pending_chars < PIECE_CHARS_MAX {
            return Ok(Vec::new());
        }
        let known = self.pending.len();
        // An ASCII character keeps its class (letter, digit, blank, sign) whatever marks follow, so it
        // can serve as the character after a piece before its own marks are known.
        if let Some(next) = self.clusters.held().chars().next().filter(char::is_ascii) {
            self.pending.push(next);
        }
        Ok(self.take(More::After { known }))
    }

    /// Gives what is held back, as if the text ended here; later text starts afresh. Blanks at the end
    /// stay: they are nothing to speak, and belong to the word that follows.
    #[must_use]
    pub fn release(&mut self) -> Vec<u32> {
        self.clusters.finish(&mut self.pending);
        let blanks = self.pending.split_off(self.pending.trim_end().len());
        let ids = self.take(More::Never);
        self.pending_chars = blanks.chars().count();
        self.pending = blanks;
        ids
    }

    /// Gives all that is left. The stream is then as new.
    #[must_use]
    pub fn end(&mut self) -> Vec<u32> {
        self.clusters.finish(&mut self.pending);
        let ids = self.take(More::Never);
        self.watch.restart();
        ids
    }

    /// Bytes whose ids were not given yet.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.pending.len() + self.clusters.held().len()
    }

    /// Gives the settled pieces of `pending` and drops them from it, and the glimpse behind it.
    fn take(&mut self, more: More) -> Vec<u32> {
        let mut ids = Vec::new();
        let tokenizer = &self.tokenizer;
        let given = settle(tokenizer.split(), &self.pending, more, |piece| tokenizer.merge(piece, &mut ids));
        if let More::After { known } = more {
            self.pending.truncate(known);
        }
        self.pending.drain(..given);
        self.pending_chars = self.pending.chars().count();
        ids
    }

    /// Whether `delta` only makes one long run longer, so that looking again would settle nothing.
    fn only_grows(&self, delta: &str) -> bool {
        let Some(last) = self.pending.chars().next_back() else { return false };
        let grows = |c: char| Kind::of(c) == Kind::of(last) && !c.is_uppercase();
        self.pending_chars > LONG_RUN_CHARS && self.clusters.held().chars().chain(delta.chars()).all(grows)
    }
}
