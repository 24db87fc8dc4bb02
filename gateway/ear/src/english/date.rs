//! Dates: ISO 8601, in figures as the form orders them, and with a month's name.

use super::number::{Number, ordinal, year};
use super::{Form, one, several};
use crate::{Context, Reading, Word};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(super) fn read(words: &[Word<'_>], context: Context<'_>, form: Form) -> Option<Reading> {
    let said = Said { form, article: !context.before.eq_ignore_ascii_case("the") };
    let first = *words.first()?;
    let digit = first.core.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    if digit {
        if let Some(date) = in_figures(first.core, said) {
            return Some(one(first, &date));
        }
        return day_first(words, context, said);
    }
    month_first(words, context, said)
}

/// `2024-05-03`, `5/3/2024`.
fn in_figures(core: &str, said: Said) -> Option<String> {
    let mark = if core.contains('-') { '-' } else { '/' };
    let mut parts = core.split(mark);
    let (a, b, c) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || ![a, b, c].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return None;
    }
    let (a, b, c) = match (mark, a.len(), b.len(), c.len()) {
        ('-' | '/', 4, 1..=2, 1..=2) => (a, b, c),
        ('/', 1..=2, 1..=2, 4) => {
            // The month stands first in America and second in Britain, but is never above 12.
            let first = match said.form {
                Form::American => a.parse::<u64>().ok()? <= 12,
                Form::British => b.parse::<u64>().ok()? > 12,
            };
            if first { (c, a, b) } else { (c, b, a) }
        }
        _ => return None,
    };
    said.date(b.parse().ok()?, c.parse().ok()?, Some(a.parse().ok()?), Order::DayFirst)
}

/// How a date is said here.
#[derive(Clone, Copy)]
struct Said {
    form: Form,
    /// No "the" stands before it.
    article: bool,
}

/// How it is written. In Britain it is said so too; in America the month always comes first.
#[derive(Clone, Copy)]
enum Order {
    DayFirst,
    MonthFirst,
}

impl Said {
    fn date(self, month: usize, day: u64, written_year: Option<u64>, order: Order) -> Option<String> {
        let month = MONTHS.get(month.checked_sub(1)?)?;
        if !(1..=31).contains(&day) {
            return None;
        }
        let day = ordinal(day, self.form);
        let date = match (self.form, order) {
            (Form::American, _) => format!("{month} {day}"),
            (Form::British, Order::DayFirst) => {
                format!("{}{day} of {month}", if self.article { "the " } else { "" })
            }
            (Form::British, Order::MonthFirst) => format!("{month} the {day}"),
        };
        Some(match written_year {
            None => date,
            Some(written) => format!("{date}, {}", year(written, self.form)),
        })
    }
}

/// `3 May 2024`, `3rd of May`.
fn day_first(words: &[Word<'_>], context: Context<'_>, said: Said) -> Option<Reading> {
    let date = |month, day, year| said.date(month, day, year, Order::DayFirst);
    let (first, number) = (*words.first()?, day(words.first()?.core)?);
    if !first.is_open() || !first.lead.is_empty() && first.lead != "(" {
        return None;
    }
    let Some(second) = words.get(1) else { return context.more.then_some(Reading::Wait) };
    let of = second.text == "of" && !first.core.bytes().all(|byte| byte.is_ascii_digit());
    let at = if of { 2 } else { 1 };
    let Some(name) = words.get(at) else { return context.more.then_some(Reading::Wait) };
    let (month, dotted) = month(name)?;
    let open = name.trail.is_empty() || name.trail == "," || dotted && name.trail == ".";
    if !open {
        return Some(several(words, at + 1, &date(month, number, None)?));
    }
    match words.get(at + 1) {
        None if context.more => Some(Reading::Wait),
        Some(word) if year_of(word.core).is_some() => {
            Some(several(words, at + 2, &date(month, number, year_of(word.core))?))
        }
        _ if dotted => {
            let date = date(month, number, None)?;
            Some(Reading::Spoken { words: at + 1, text: format!("{}{date}", first.lead) })
        }
        _ => Some(several(words, at + 1, &date(month, number, None)?)),
    }
}

/// `May 3, 2024`, `May 2024`, `Jan. 5`.
fn month_first(words: &[Word<'_>], context: Context<'_>, said: Said) -> Option<Reading> {
    let date = |month, day, year| said.date(month, day, year, Order::MonthFirst);
    let first = *words.first()?;
    let (month, dotted) = month(&first)?;
    let name = MONTHS.get(month.checked_sub(1)?)?;
    let alone = || {
        // A dot of an abbreviation ends a sentence only with the text, or before one.
        let ends = match words.get(1) {
            Some(next) => next.may_begin_a_sentence() && !starts_with_digit(next.core),
            None => true,
        };
        dotted.then(|| {
            let dot = if ends { "." } else { "" };
            Reading::Spoken { words: 1, text: format!("{}{name}{dot}", first.lead) }
        })
    };
    if !(first.trail.is_empty() || dotted && first.trail == ".") {
        return None;
    }
    let Some(second) = words.get(1) else { return if context.more { Some(Reading::Wait) } else { alone() } };
    if second.lead.is_empty() && second.core.len() == 4 && year_of(second.core).is_some() {
        let date = format!("{name} {}", year(year_of(second.core)?, said.form));
        return Some(several(words, 2, &date));
    }
    let Some(number) = day(second.core).filter(|_| second.lead.is_empty()) else { return alone() };
    if second.is_open() || second.trail == "," {
        match words.get(2) {
            None if context.more => return Some(Reading::Wait),
            Some(word) if word.lead.is_empty() && year_of(word.core).is_some() => {
                return Some(several(words, 3, &date(month, number, year_of(word.core))?));
            }
            _ => {}
        }
    }
    Some(several(words, 2, &date(month, number, None)?))
}

/// The month a word names, from 1, and whether it is an abbreviation with a dot.
fn month(word: &Word<'_>) -> Option<(usize, bool)> {
    if !word.is_capitalised() {
        return None;
    }
    let at = MONTHS.iter().position(|name| {
        let short = word.core.len() == 3 && name.starts_with(word.core);
        word.core == *name || short || word.core == "Sept" && *name == "September"
    })?;
    Some((at + 1, word.trail.starts_with('.') && word.core != MONTHS[at]))
}

/// `3`, `03`, `3rd` as a day.
fn day(core: &str) -> Option<u64> {
    let digits = core.bytes().take_while(u8::is_ascii_digit).count();
    let suffix = &core[digits..];
    if !(1..=2).contains(&digits) || !matches!(suffix, "" | "st" | "nd" | "rd" | "th") {
        return None;
    }
    core[..digits].parse().ok().filter(|day| (1..=31).contains(day))
}

fn year_of(core: &str) -> Option<u64> {
    let number = Number::of(core).filter(|_| core.len() == 4)?;
    number.value().filter(|year| (1_000..2_200).contains(year))
}

fn starts_with_digit(core: &str) -> bool {
    core.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
}

/// The day of a month as a count, where nothing says that it is a date.
pub(super) fn slashed(core: &str) -> Option<String> {
    // "9/11" and "24/7" are names by now.
    match core {
        "9/11" => Some("nine eleven".to_owned()),
        "24/7" => Some("twenty-four seven".to_owned()),
        _ => None,
    }
}
