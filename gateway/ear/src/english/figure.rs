//! Everything else that begins with a digit: counts, ordinals, decimals, measures, ranges, fractions,
//! versions, telephone numbers.

use std::borrow::Cow;

use super::number::{Number, cardinal, decade, digits, ordinal, year};
use super::unit::{takes_dot, unit};
use super::{Form, date, one, several};
use crate::{Context, Reading, Word};

pub(super) fn read(words: &[Word<'_>], context: Context<'_>, form: Form) -> Option<Reading> {
    let first = *words.first()?;
    if let Some(reading) = telephone(words, context) {
        return Some(reading);
    }
    let (sign, core) = sign(first.core);
    let (number, rest) = Number::split(core)?;
    if rest.is_empty() {
        if first.is_open() && !number.is_code() {
            return Some(counted(words, context, form, (sign, number)));
        }
        return Some(one(first, &format!("{sign}{}", number.alone(form))));
    }
    let said = attached(number, rest, form)?;
    Some(one(first, &format!("{sign}{said}")))
}

fn sign(core: &str) -> (&'static str, &str) {
    const SIGNS: &[(char, &str)] = &[
        ('-', "minus "),
        ('\u{2212}', "minus "),
        ('\u{2013}', "minus "),
        ('+', "plus "),
        ('\u{B1}', "plus or minus "),
        ('~', "about "),
        ('\u{2248}', "about "),
        ('#', "number "),
        ('<', "less than "),
        ('>', "more than "),
    ];
    SIGNS.iter().find_map(|(sign, said)| Some((*said, core.strip_prefix(*sign)?))).unwrap_or(("", core))
}

/// A number alone in its word: what follows may be its unit.
fn counted(
    words: &[Word<'_>],
    context: Context<'_>,
    form: Form,
    (sign, number): (&str, Number<'_>),
) -> Reading {
    let alone = || several(words, 1, &format!("{sign}{}", number.alone(form)));
    let Some(next) = words.get(1) else { return if context.more { Reading::Wait } else { alone() } };
    if !next.lead.is_empty() {
        return alone();
    }
    if let Some(unit) = unit(next.core, number.is_one(), true, form) {
        let said = format!("{sign}{} {unit}", number.words(form));
        return if takes_dot(next.core) && next.trail == "." {
            dotted(words, 2, &said, context)
        } else {
            several(words, 2, &said)
        };
    }
    // "1 1/2"
    if let Some((over, under)) = next.core.split_once('/')
        && let (Some(over), Some(under)) = (Number::of(over), Number::of(under))
        && let (Some(over), Some(under)) = (over.value(), under.value())
        && over < under
        && number.fraction.is_none()
    {
        let part = if over == 1 && under == 2 { "a half".to_owned() } else { fraction(over, under, form) };
        return several(words, 2, &format!("{sign}{} and {part}", number.words(form)));
    }
    alone()
}

/// A unit's dot is the sentence's too, when one ends there.
fn dotted(words: &[Word<'_>], count: usize, said: &str, context: Context<'_>) -> Reading {
    let lead = words.first().map_or("", |word| word.lead);
    let dot = match words.get(count) {
        None if context.more => return Reading::Wait,
        Some(next) if !next.may_begin_a_sentence() => "",
        _ => ".",
    };
    Reading::Spoken { words: count, text: format!("{lead}{said}{dot}") }
}

/// A number with something at its end, in one word.
fn attached(number: Number<'_>, rest: &str, form: Form) -> Option<String> {
    let value = number.value();
    match (rest, value) {
        ("st" | "nd" | "rd" | "th", Some(value)) => return Some(ordinal(value, form)),
        ("s" | "'s" | "\u{2019}s", Some(value)) if value % 10 == 0 => {
            let written = number.whole.len();
            if written == 4 && (1_000..2_100).contains(&value) || written == 2 && value >= 20 {
                return Some(decade(value, form));
            }
        }
        ("k", _) => return Some(format!("{} thousand", number.words(form))),
        ("M", _) => return Some(format!("{} million", number.words(form))),
        ("B" | "bn", _) => return Some(format!("{} billion", number.words(form))),
        ("x" | "X" | "\u{D7}", _) => return Some(format!("{} times", number.words(form))),
        ("+", _) => return Some(format!("{} plus", number.alone(form))),
        _ => {}
    }
    if let Some(unit) = unit(rest, number.is_one(), false, form) {
        return Some(format!("{} {unit}", number.words(form)));
    }
    let mark = rest.chars().next()?;
    let after = &rest[mark.len_utf8()..];
    match mark {
        '-' | '\u{2013}' | '\u{2014}' => range(number, after, form),
        '/' => {
            let under = Number::of(after)?.value()?;
            let name = date::slashed(&format!("{}/{after}", number.whole));
            Some(name.unwrap_or_else(|| value.map_or_else(String::new, |over| fraction(over, under, form))))
                .filter(|said| !said.is_empty())
        }
        'x' | '\u{D7}' => {
            let (other, rest) = Number::split(after)?;
            let unit =
                if rest.is_empty() { Some(Cow::Borrowed("")) } else { unit(rest, false, false, form) }?;
            Some(format!("{} by {} {unit}", number.words(form), other.words(form)).trim_end().to_owned())
        }
        ':' => {
            let other = Number::of(after)?;
            Some(format!("{} to {}", number.words(form), other.words(form)))
        }
        '.' => version(number, after, form),
        _ => None,
    }
}

/// `10-20`, `10-20%`, `1999-2004`, `24-hour`.
fn range(from: Number<'_>, after: &str, form: Form) -> Option<String> {
    if !after.is_empty() && after.chars().all(char::is_alphabetic) {
        return Some(format!("{} {after}", from.words(form)));
    }
    let (to, rest) = Number::split(after)?;
    let years = |number: Number<'_>| number.whole.len() == 4 && number.fraction.is_none();
    match rest {
        "" if years(from) && years(to) => {
            Some(format!("{} to {}", year(from.value()?, form), year(to.value()?, form)))
        }
        "" if from.is_code() || to.is_code() => Some(format!("{}, {}", digits(from.whole), digits(to.whole))),
        "" => Some(format!("{} to {}", from.words(form), to.words(form))),
        "th" | "st" | "nd" | "rd" => Some(format!("{} to {}", from.words(form), ordinal(to.value()?, form))),
        _ => Some(format!("{} to {} {}", from.words(form), to.words(form), unit(rest, false, false, form)?)),
    }
}

fn fraction(over: u64, under: u64, form: Form) -> String {
    let part = match under {
        2 => "half".to_owned(),
        4 => "quarter".to_owned(),
        3..=100 if over < under => ordinal(under, form),
        _ => return format!("{} over {}", cardinal(over, form), cardinal(under, form)),
    };
    match (over, under) {
        (1, _) => format!("one {part}"),
        (_, 2) => format!("{} halves", cardinal(over, form)),
        _ => format!("{} {part}s", cardinal(over, form)),
    }
}

/// `1.2.3`, `192.168.0.1`: each part by itself.
fn version(first: Number<'_>, after: &str, form: Form) -> Option<String> {
    let mut said = Number { fraction: None, ..first }.words(form);
    for part in first.fraction.into_iter().chain(after.split('.')) {
        said = format!("{said} point {}", Number::of(part)?.words(form));
    }
    Some(said)
}

/// `555-123-4567`, `(555) 123-4567`, `+1 555 123 4567`.
fn telephone(words: &[Word<'_>], context: Context<'_>) -> Option<Reading> {
    let first = words.first()?;
    let abroad = first.core.starts_with('+');
    let bracketed = first.lead == "(" && first.trail == ")";
    let mut groups: Vec<&str> = Vec::new();
    let mut marks = false;
    for (at, word) in words.iter().enumerate() {
        let core = if at == 0 { word.core.strip_prefix('+').unwrap_or(word.core) } else { word.core };
        let numeric =
            !core.is_empty() && core.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.'));
        if !numeric || at > 0 && !matches!(word.lead, "" | "(") {
            return None;
        }
        marks |= core.contains(['-', '.']);
        groups.extend(core.split(['-', '.']));
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let total: usize = lengths.iter().sum();
        let whole = match lengths[..] {
            [3, 4] => marks && core.contains('-'),
            [3, 3, 4] | [1, 3, 3, 4] => true,
            _ => abroad && (9..=15).contains(&total) && lengths.len() >= 3 && lengths.iter().all(|l| *l >= 1),
        };
        // Abroad it may go on: it ends where the figures do.
        let goes_on = abroad && word.is_open() && total < 15;
        let next = words.get(at + 1);
        let next_is_figure =
            next.is_some_and(|next| next.core.bytes().next().is_some_and(|byte| byte.is_ascii_digit()));
        if whole && !(goes_on && (next_is_figure || next.is_none() && context.more)) {
            let said: Vec<String> = groups.iter().map(|group| digits(group)).collect();
            let text = format!("{}{}", said.join(", "), word.trail);
            return Some(Reading::Spoken { words: at + 1, text });
        }
        if whole && next.is_none() {
            return Some(Reading::Wait);
        }
        let may_be = match lengths[..] {
            [3] => bracketed || word.is_open(),
            [1..=3] | [_, _] | [_, _, _] => word.is_open() && (abroad || lengths[..] == [3, 3]),
            _ => abroad && word.is_open(),
        };
        if !may_be {
            return None;
        }
        if next.is_none() {
            return context.more.then_some(Reading::Wait);
        }
    }
    None
}
