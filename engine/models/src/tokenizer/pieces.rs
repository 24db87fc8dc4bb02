//! Where text may be cut into pieces that are tokenized each by itself.

use tokenizers::utils::SysRegex;

use super::PIECE_CHARS_MAX;

/// What may follow the text at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// Anything, from byte `known` on; what stands there already is a glimpse of what follows.
    After { known: usize },
    /// Nothing.
    Never,
}

/// Gives every piece of `text`, in order, that no further text can change; returns where they end.
/// `text` begins at a border of pieces. With [`More::Never`] all of it is given.
///
/// A match of the split pattern is settled once the character after it is known, and, where the match
/// ends in a blank, once a character that is no blank is known behind it: patterns of the GPT family
/// look ahead no further than the end of a run of blanks. The decision reads a window of
/// [`PIECE_CHARS_MAX`] characters only; a window in which nothing is settled is given as it is.
pub(crate) fn settle(split: &SysRegex, text: &str, more: More, mut piece: impl FnMut(&str)) -> usize {
    let known = match more {
        More::After { known } => known,
        More::Never => text.len(),
    };
    let mut start = 0;
    let mut window = Window { text, end: 0, chars: 0 };
    while start < known {
        window.extend();
        let view = &text[start..window.end];
        let end = first_end(split, view);
        if is_settled(view, end) && start + end <= known {
            piece(&view[..end]);
            window.chars -= view[..end].chars().count();
            start += end;
        } else if window.is_full() && window.end <= known || more == More::Never {
            each(split, view, &mut piece);
            start = window.end;
            window.chars = 0;
        } else {
            break;
        }
    }
    start
}

struct Window<'a> {
    text: &'a str,
    /// Byte offset.
    end: usize,
    chars: usize,
}

impl Window<'_> {
    fn extend(&mut self) {
        let missing = PIECE_CHARS_MAX - self.chars;
        for character in self.text[self.end..].chars().take(missing) {
            self.end += character.len_utf8();
            self.chars += 1;
        }
    }

    fn is_full(&self) -> bool {
        self.chars == PIECE_CHARS_MAX
    }
}

/// Where the first piece of `view` ends: at the first match's end, or at its start if it starts later.
fn first_end(split: &SysRegex, view: &str) -> usize {
    match split.find_iter(view).next() {
        Some((0, end)) if end > 0 => end,
        Some((start, _)) if start > 0 => start,
        _ => view.len(),
    }
}

fn is_settled(view: &str, end: usize) -> bool {
    let (piece, after) = view.split_at(end);
    let ends_in_blank = piece.chars().next_back().is_none_or(char::is_whitespace);
    if ends_in_blank { after.chars().any(|c| !c.is_whitespace()) } else { !after.is_empty() }
}

/// All pieces of `view`, as if nothing followed it.
fn each(split: &SysRegex, view: &str, piece: &mut impl FnMut(&str)) {
    let mut rest = view;
    while !rest.is_empty() {
        let (first, after) = rest.split_at(first_end(split, rest));
        piece(first);
        rest = after;
    }
}
