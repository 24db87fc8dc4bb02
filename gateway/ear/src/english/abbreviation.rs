//! Abbreviations: what their dot means is part of the reading.

use super::Form;
use super::letters::spell;
use crate::{Context, Reading, Word};

/// How an abbreviation goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Before a name; its dot never ends a sentence, and may be left out.
    Title,
    /// Only before a number.
    Number,
    /// Anywhere; its dot ends a sentence when one begins after it.
    Anywhere,
}

use Kind::{Anywhere, Number, Title};

/// Lower case without the last dot, as said, and its kind.
const TABLE: &[(&str, &str, Kind)] = &[
    ("mr", "Mister", Title),
    ("mrs", "Missus", Title),
    ("ms", "Miz", Title),
    ("mx", "Mix", Title),
    ("prof", "Professor", Title),
    ("rev", "Reverend", Title),
    ("gen", "General", Title),
    ("sen", "Senator", Title),
    ("rep", "Representative", Title),
    ("gov", "Governor", Title),
    ("capt", "Captain", Title),
    ("sgt", "Sergeant", Title),
    ("lt", "Lieutenant", Title),
    ("col", "Colonel", Title),
    ("maj", "Major", Title),
    ("hon", "Honorable", Title),
    ("mt", "Mount", Title),
    ("no", "number", Number),
    ("nos", "numbers", Number),
    ("nr", "number", Number),
    ("vol", "volume", Number),
    ("fig", "figure", Number),
    ("figs", "figures", Number),
    ("ch", "chapter", Number),
    ("sec", "section", Number),
    ("sect", "section", Number),
    ("art", "article", Number),
    ("para", "paragraph", Number),
    ("p", "page", Number),
    ("pp", "pages", Number),
    ("ca", "circa", Number),
    ("e.g", "for example", Anywhere),
    ("i.e", "that is", Anywhere),
    ("etc", "et cetera", Anywhere),
    ("vs", "versus", Anywhere),
    ("approx", "approximately", Anywhere),
    ("dept", "department", Anywhere),
    ("est", "established", Anywhere),
    ("incl", "including", Anywhere),
    ("max", "maximum", Anywhere),
    ("esp", "especially", Anywhere),
    ("cf", "compare", Anywhere),
    ("al", "al", Anywhere),
    ("inc", "Incorporated", Anywhere),
    ("ltd", "Limited", Anywhere),
    ("corp", "Corporation", Anywhere),
    ("co", "Company", Anywhere),
    ("bros", "Brothers", Anywhere),
    ("univ", "University", Anywhere),
    ("assn", "Association", Anywhere),
    ("jr", "Junior", Anywhere),
    ("sr", "Senior", Anywhere),
    ("ave", "Avenue", Anywhere),
    ("blvd", "Boulevard", Anywhere),
    ("rd", "Road", Anywhere),
    ("hwy", "Highway", Anywhere),
    ("apt", "Apartment", Anywhere),
    ("mon", "Monday", Anywhere),
    ("tue", "Tuesday", Anywhere),
    ("tues", "Tuesday", Anywhere),
    ("wed", "Wednesday", Anywhere),
    ("thu", "Thursday", Anywhere),
    ("thurs", "Thursday", Anywhere),
    ("fri", "Friday", Anywhere),
    ("sat", "Saturday", Anywhere),
    ("sun", "Sunday", Anywhere),
    ("a.m", "a m", Anywhere),
    ("p.m", "p m", Anywhere),
];

/// Titles that are known without their dot, before a name.
const DOTLESS: &[&str] = &["Mr", "Mrs", "Ms", "Dr", "Prof"];

/// Words after which "St." stands before a saint's name, not after a street's.
const PREPOSITIONS: &[&str] = &[
    "in", "at", "to", "from", "of", "near", "by", "for", "the", "and", "on", "with", "into", "via", "around",
];

pub(super) fn read(words: &[Word<'_>], context: Context<'_>, _: Form) -> Option<Reading> {
    let first = words.first()?;
    let next = words.get(1);
    let Some(rest) = first.trail.strip_prefix('.') else {
        if DOTLESS.contains(&first.core) && first.is_open() {
            let Some(next) = next else { return context.more.then_some(Reading::Wait) };
            return next.is_capitalised().then(|| whole(first, title(first.core, context, Some(next)), ""));
        }
        return None;
    };
    let lower = first.core.to_ascii_lowercase();
    if matches!(first.core, "Dr" | "St") {
        if next.is_none() && context.more && rest.is_empty() {
            return Some(Reading::Wait);
        }
        let said = title(first.core, context, next);
        // A street's name may end its sentence; a title cannot.
        let street = matches!(said, "Drive" | "Street");
        let ends = street && next.is_none_or(Word::may_begin_a_sentence);
        return Some(whole(first, said, if ends && rest.is_empty() { "." } else { rest }));
    }
    let spelled = initials(first.core);
    let (said, kind) = match TABLE.iter().find(|(written, ..)| *written == lower) {
        // "No." and "Co." are abbreviations; so is "co." in "Smith & Co."
        Some((_, said, kind)) => ((*said).to_owned(), *kind),
        None => (spelled?, Anywhere),
    };
    // What is a word of its own as well is short for something only with a capital, or before a number.
    let doubtful =
        matches!(lower.as_str(), "mon" | "sat" | "sun" | "wed" | "co" | "col" | "gen" | "rep" | "mt" | "al");
    if doubtful && !first.is_capitalised() && lower != "al" {
        return None;
    }
    match kind {
        Title => Some(whole(first, &said, rest)),
        _ if !rest.is_empty() => (kind == Anywhere).then(|| whole(first, &said, rest)),
        _ if next.is_none() && context.more => Some(Reading::Wait),
        Number => {
            let number = next.is_some_and(|next| next.core.starts_with(|c: char| c.is_ascii_digit()));
            number.then(|| whole(first, &said, ""))
        }
        Anywhere => {
            let ends = next.is_none_or(Word::may_begin_a_sentence)
                && !matches!(lower.as_str(), "e.g" | "i.e" | "vs");
            Some(whole(first, &said, if ends { "." } else { "" }))
        }
    }
}

fn whole(word: &Word<'_>, said: &str, trail: &str) -> Reading {
    Reading::Spoken { words: 1, text: format!("{}{said}{trail}", word.lead) }
}

/// What "Dr" and "St" stand for: after a street's name, or before a person's.
fn title(core: &str, context: Context<'_>, next: Option<&Word<'_>>) -> &'static str {
    let before_name = next.is_some_and(Word::is_capitalised);
    let after_name = context.before.chars().next().is_some_and(char::is_uppercase)
        && !PREPOSITIONS.contains(&context.before.to_ascii_lowercase().as_str());
    match core {
        "Mr" => "Mister",
        "Mrs" => "Missus",
        "Ms" => "Miz",
        "Prof" => "Professor",
        "Dr" if after_name && !before_name => "Drive",
        "Dr" => "Doctor",
        _ if after_name || !before_name => "Street",
        _ => "Saint",
    }
}

/// `U.S`, `Ph.D`: letters between dots, said one by one.
fn initials(core: &str) -> Option<String> {
    let mut parts = core.split('.');
    let short = |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphabetic());
    let capital = core.starts_with(|c: char| c.is_ascii_uppercase());
    (capital && core.contains('.') && parts.all(short)).then(|| spell(core))
}
