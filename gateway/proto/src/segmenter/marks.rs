//! What a character means for cutting: stops, clause marks, closers, abbreviations.

/// What stands at the end of the text so far, spaces aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Inside a sentence.
    None,
    /// A comma, semicolon, colon or dash; a border when a space follows.
    Clause,
    /// The same in CJK text, where no space follows.
    ClauseCjk,
    /// A dot after an abbreviation or a list number: ends nothing.
    Abbreviation,
    /// A dot after a word that is an abbreviation only before a number (`No. 5`).
    BeforeNumber,
    /// A dot, question or exclamation mark, ellipsis; a border when a space follows.
    Sentence,
    /// The same in CJK text, where no space follows.
    SentenceCjk,
}

/// Words whose dot ends no sentence. Lower case, without the last dot.
const ABBREVIATIONS: &[&str] = &[
    "a.m", "al", "approx", "apr", "assn", "aug", "ave", "blvd", "bzw", "ca", "capt", "cf", "col", "corp",
    "cpl", "d.h", "dec", "dept", "dr", "drs", "e.g", "ed", "eds", "esp", "est", "etc", "feb", "ff", "fr",
    "ft", "gen", "gov", "hon", "hr", "hrs", "i.e", "inc", "incl", "jan", "jr", "jul", "jun", "lt", "ltd",
    "maj", "max", "messrs", "mfg", "min", "mlle", "mme", "mr", "mrs", "ms", "mt", "mx", "nov", "oct", "orig",
    "p.m", "ph.d", "prof", "pt", "rd", "rep", "rev", "sen", "sep", "sept", "sgt", "sr", "st", "str", "tel",
    "u.k", "u.s", "u.s.a", "univ", "usw", "viz", "vs", "z.b",
];

/// Words that abbreviate only before a number.
const BEFORE_NUMBER: &[&str] =
    &["art", "ch", "fig", "figs", "no", "nos", "nr", "p", "para", "pp", "sec", "sect", "vol"];

/// Longest word kept for comparison with [`ABBREVIATIONS`].
pub(super) const WORD_CHARACTERS_MAX: usize = 12;

/// The stop after a character that is no space; `before` stood before it, `word` is the word it follows
/// (lower case, dots inside kept), `line_start` whether that word began a line.
pub(super) fn stop_after(c: char, before: Stop, word: &str, line_start: bool) -> Stop {
    match c {
        '.' => dot(before, word, line_start),
        '!' | '?' | '\u{2026}' | '\u{203C}'..='\u{2049}' | '\u{61F}' | '\u{6D4}' | '\u{964}' | '\u{965}' => {
            Stop::Sentence
        }
        '\u{3002}' | '\u{FF01}' | '\u{FF1F}' | '\u{FF61}' | '\u{FF0E}' => Stop::SentenceCjk,
        ',' | ';' | ':' | '\u{2013}' | '\u{2014}' | '\u{60C}' | '\u{61B}' => Stop::Clause,
        '\u{FF0C}' | '\u{3001}' | '\u{FF1B}' | '\u{FF1A}' => Stop::ClauseCjk,
        _ if is_closer(c) => before,
        _ => Stop::None,
    }
}

fn dot(before: Stop, word: &str, line_start: bool) -> Stop {
    // A second dot in a row is an ellipsis, whatever the word before it was.
    if matches!(before, Stop::Sentence | Stop::Abbreviation | Stop::BeforeNumber) {
        return Stop::Sentence;
    }
    let mut characters = word.chars();
    let single = characters.next().is_some_and(char::is_alphabetic) && characters.next().is_none();
    if single && word != "i" || ABBREVIATIONS.contains(&word) {
        return Stop::Abbreviation;
    }
    if line_start && !word.is_empty() && word.len() <= 3 && word.bytes().all(|byte| byte.is_ascii_digit()) {
        return Stop::Abbreviation;
    }
    if BEFORE_NUMBER.contains(&word) { Stop::BeforeNumber } else { Stop::Sentence }
}

/// Quotes and brackets that belong to the sentence they follow.
fn is_closer(c: char) -> bool {
    matches!(
        c,
        '"' | '\''
            | ')'
            | ']'
            | '}'
            | '*'
            | '_'
            | '\u{BB}'
            | '\u{2019}'
            | '\u{201D}'
            | '\u{203A}'
            | '\u{3009}'
            | '\u{300B}'
            | '\u{300D}'
            | '\u{300F}'
            | '\u{3011}'
            | '\u{FF09}'
            | '\u{FF3D}'
    )
}

/// Whether a sentence ends between `stop` and `next`, the first character of what follows.
pub(super) fn ends_sentence(stop: Stop, next: char) -> bool {
    match stop {
        Stop::None | Stop::Clause | Stop::ClauseCjk | Stop::Abbreviation => false,
        Stop::BeforeNumber => !next.is_numeric() && !next.is_lowercase(),
        // A small letter goes on with the sentence: `"Stop!" he said`, `etc. and so on`.
        Stop::Sentence | Stop::SentenceCjk => !next.is_lowercase(),
    }
}

/// Whether a border needs no space after `stop`, with `next` following at once.
pub(super) fn is_border_without_space(stop: Stop, next: char) -> bool {
    let more_of_it = stop_after(next, Stop::Sentence, "", false) != Stop::None;
    matches!(stop, Stop::SentenceCjk | Stop::ClauseCjk) && !more_of_it
}
