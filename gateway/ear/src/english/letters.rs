//! Words that are no plain words: acronyms, letters and digits together, signs inside.

use super::number::{Number, below_hundred, digits};
use super::{Form, one};
use crate::{Context, Reading, Word};

/// Initialisms with a vowel, which could be taken for words.
const SPELLED: &[&str] = &[
    "AI", "API", "ATM", "BA", "CEO", "CFO", "CIA", "CIO", "COO", "CPU", "CTO", "DIY", "DNA", "EEG", "ETA",
    "EU", "EV", "FAQ", "FBI", "FDA", "FOMC", "GPU", "HIV", "HR", "IBM", "ICU", "ID", "IEEE", "IMF", "IOS",
    "IP", "IPO", "IQ", "IRS", "ISO", "IT", "IV", "MA", "MBA", "MIT", "MRI", "MVP", "NBA", "OECD", "OK",
    "PIN", "PA", "QA", "RNA", "SEO", "SUV", "TSA", "UAE", "UCLA", "UFO", "UI", "UK", "UN", "URL", "USA",
    "USB", "UV", "UX", "VIP", "US", "WHO", "WWI", "WWII",
];

/// Of these, the ones that are words in a headline: spelled out only where nothing around says otherwise.
const WORDS_TOO: &[&str] = &["IT", "ID", "WHO", "PIN", "MA", "PA", "OK", "BA", "US"];

const ROMAN: &[(&str, u64)] = &[
    ("II", 2),
    ("III", 3),
    ("IV", 4),
    ("VI", 6),
    ("VII", 7),
    ("VIII", 8),
    ("IX", 9),
    ("XI", 11),
    ("XII", 12),
    ("XIII", 13),
    ("XIV", 14),
    ("XV", 15),
    ("XVI", 16),
];

pub(super) fn read(words: &[Word<'_>], context: Context<'_>, form: Form) -> Option<Reading> {
    let first = *words.first()?;
    let core = first.core;
    let whole = match core.to_ascii_lowercase().as_str() {
        "w/" => Some("with"),
        "w/o" => Some("without"),
        "and/or" => Some("and or"),
        "n/a" => Some("not applicable"),
        _ => None,
    };
    if let Some(said) = whole {
        return Some(one(first, said));
    }
    if let Some(tag) = core.strip_prefix('#').filter(|tag| tag.starts_with(char::is_alphabetic)) {
        return Some(one(first, &format!("hashtag {}", mixed(tag, form))));
    }
    if let Some(name) = core.strip_prefix('@').filter(|name| name.starts_with(char::is_alphanumeric)) {
        return Some(one(first, &format!("at {}", mixed(name, form))));
    }
    if core.len() >= 3 && core.contains('&') && core.starts_with(char::is_alphanumeric) {
        let parts: Vec<String> = core.split('&').map(between_and).collect();
        return Some(one(first, &parts.join(" and ")));
    }
    if let Some((_, value)) = ROMAN.iter().find(|(roman, _)| *roman == core)
        && context.before.chars().next().is_some_and(char::is_uppercase)
        && context.before.chars().any(char::is_lowercase)
    {
        return Some(one(first, &below_hundred(*value)));
    }
    if core.bytes().any(|byte| byte.is_ascii_digit()) {
        return Some(one(first, &mixed(core, form)));
    }
    let loud = |word: &&str| word.chars().count() > 1 && word.chars().all(char::is_uppercase);
    if WORDS_TOO.contains(&core) {
        let next = words.get(1);
        if next.is_none() && context.more {
            return Some(Reading::Wait);
        }
        if loud(&context.before) || next.is_some_and(|next| loud(&next.core)) {
            return None;
        }
    }
    acronym(core).map(|said| one(first, &said))
}

/// A side of `AT&T`: two or three capitals are never a word there.
fn between_and(part: &str) -> String {
    let short = part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_uppercase());
    if short { spell(part) } else { acronym(part).unwrap_or_else(|| part.to_owned()) }
}

/// An initialism letter by letter; words in capitals that can be pronounced are read as they stand.
fn acronym(core: &str) -> Option<String> {
    let (stem, plural) = match core.strip_suffix('s').filter(|stem| stem.len() >= 2) {
        Some(stem) => (stem, "'s"),
        None => match core.strip_suffix("'s").or_else(|| core.strip_suffix("\u{2019}s")) {
            Some(stem) => (stem, "'s"),
            None => (core, ""),
        },
    };
    let letters = (2..=5).contains(&stem.len()) && stem.bytes().all(|byte| byte.is_ascii_uppercase());
    let vowels = stem.bytes().any(|byte| matches!(byte, b'A' | b'E' | b'I' | b'O' | b'U' | b'Y'));
    (letters && (!vowels || SPELLED.contains(&stem))).then(|| format!("{}{plural}", spell(stem)))
}

/// The letters of a word one by one.
pub(super) fn spell(letters: &str) -> String {
    let mut said = String::new();
    for c in letters.chars().filter(|c| c.is_alphanumeric()) {
        if !said.is_empty() {
            said.push(' ');
        }
        said.push(c);
    }
    said
}

/// Letters and digits together: the digits in words, what joins them dropped.
pub(super) fn mixed(text: &str, form: Form) -> String {
    let mut said = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let digit = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != digit).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        let words = match (digit, Number::of(run)) {
            (true, Some(number)) if run.len() <= 4 && !number.is_code() => number.alone(form),
            (true, _) => digits(run),
            // A joint between a letter and a digit is not said.
            _ => {
                let inner = run.trim_matches(['-', '_', '\u{2013}']);
                acronym(inner).unwrap_or_else(|| inner.to_owned())
            }
        };
        if !said.is_empty() && !words.is_empty() && !words.starts_with(['\'', '\u{2019}', ',', ';', ':']) {
            said.push(' ');
        }
        said.push_str(&words);
    }
    said
}
