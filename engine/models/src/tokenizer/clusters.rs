//! Composition to NFC (Unicode Standard Annex 15) of text that arrives in pieces.

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::PIECE_CHARS_MAX;

/// Holds the last character that later marks could still compose with, and the marks on it.
#[derive(Clone, Debug)]
pub(crate) struct Clusters {
    composes: bool,
    held: String,
    held_chars: usize,
}

impl Clusters {
    pub(crate) fn new(composes: bool) -> Self {
        Self { composes, held: String::new(), held_chars: 0 }
    }

    /// What waits for its marks.
    pub(crate) fn held(&self) -> &str {
        &self.held
    }

    /// Takes text and appends to `out` what no later text can alter any more.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) {
        if !self.composes {
            out.push_str(text);
            return;
        }
        let mut taken = 0;
        let mut last_start = None;
        for (at, character) in text.char_indices() {
            if starts_cluster(character) {
                last_start = Some(at);
                self.held_chars = 0;
            } else if self.held_chars == PIECE_CHARS_MAX {
                self.held.push_str(&text[taken..at]);
                self.finish(out);
                taken = at;
                last_start = None;
            }
            self.held_chars += 1;
        }
        if let Some(start) = last_start {
            self.held.push_str(&text[taken..start]);
            compose(&self.held, out);
            self.held.clear();
            taken = start;
        }
        self.held.push_str(&text[taken..]);
    }

    /// Appends what is held: nothing follows, or it starts afresh.
    pub(crate) fn finish(&mut self, out: &mut String) {
        compose(&self.held, out);
        self.held.clear();
        self.held_chars = 0;
    }
}

/// Whether `character` never composes with, nor moves before, what stands before it.
fn starts_cluster(character: char) -> bool {
    character.is_ascii()
        || (canonical_combining_class(character) == 0
            && is_nfc_quick(std::iter::once(character)) == IsNormalized::Yes)
}

fn compose(text: &str, out: &mut String) {
    if is_nfc_quick(text.chars()) == IsNormalized::Yes {
        out.push_str(text);
    } else {
        out.extend(text.nfc().map(|(character, _)| character));
    }
}
