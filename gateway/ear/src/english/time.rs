//! Times of day.

use super::Form;
use super::number::below_hundred;
use crate::{Context, Reading, Word};

/// `3:30`, `3:30 pm`, `15:00`, `3 p.m.`, `3pm`; in Britain `3.30pm` too.
pub(super) fn read(words: &[Word<'_>], context: Context<'_>, form: Form) -> Option<Reading> {
    let first = *words.first()?;
    let digits = first.core.bytes().take_while(u8::is_ascii_digit).count();
    if !(1..=2).contains(&digits) {
        return None;
    }
    let hour: u64 = first.core[..digits].parse().ok()?;
    let after = &first.core[digits..];
    let (clock, rest) = dotted(after, words, form).map_or_else(|| clock(after), Some)?;
    if hour > 24 {
        return None;
    }
    if let Some(half) = half(rest) {
        // Here the half's last dot stands in the punctuation after the word.
        return Some(with_half(words, 1, hour, clock, half, context));
    }
    if !rest.is_empty() {
        return None;
    }
    if !first.is_open() {
        return clock.map(|clock| super::one(first, &said(hour, Some(clock), false)));
    }
    match words.get(1) {
        None if context.more => Some(Reading::Wait),
        Some(word) if word.lead.is_empty() && half(word.core).is_some() => {
            Some(with_half(words, 2, hour, clock, half(word.core)?, context))
        }
        _ => clock.map(|clock| super::one(first, &said(hour, Some(clock), false))),
    }
}

/// `.30` where half a day follows, without which it is a fraction.
fn dotted<'a>(after: &'a str, words: &[Word<'_>], form: Form) -> Option<(Option<Clock>, &'a str)> {
    let (minute, rest) = sixty(after, '.').filter(|_| form == Form::British)?;
    let follows = if rest.is_empty() {
        words.get(1).is_some_and(|next| next.lead.is_empty() && half(next.core).is_some())
    } else {
        half(rest).is_some()
    };
    follows.then_some((Some(Clock { minute, second: None }), rest))
}

/// Minutes and seconds.
#[derive(Clone, Copy)]
struct Clock {
    minute: u64,
    second: Option<u64>,
}

/// What follows the hour: `:30`, `:30:15`, or nothing of the kind; and what is left.
fn clock(rest: &str) -> Option<(Option<Clock>, &str)> {
    let Some((minute, rest)) = sixty(rest, ':') else {
        return (!rest.starts_with(':')).then_some((None, rest));
    };
    match sixty(rest, ':') {
        Some((second, rest)) => Some((Some(Clock { minute, second: Some(second) }), rest)),
        None if rest.starts_with(':') => None,
        None => Some((Some(Clock { minute, second: None }), rest)),
    }
}

/// `:07` and what follows.
fn sixty(text: &str, mark: char) -> Option<(u64, &str)> {
    let rest = text.strip_prefix(mark)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    (digits == 2).then_some(())?;
    number.parse().ok().filter(|number| *number < 60).map(|number| (number, rest))
}

fn half(text: &str) -> Option<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "am" | "a.m" | "a.m." => Some("a m"),
        "pm" | "p.m" | "p.m." => Some("p m"),
        _ => None,
    }
}

fn with_half(
    words: &[Word<'_>],
    count: usize,
    hour: u64,
    clock: Option<Clock>,
    half: &str,
    context: Context<'_>,
) -> Reading {
    let last = words.get(count - 1).map_or("", |word| word.trail);
    let lead = words.first().map_or("", |word| word.lead);
    let text = format!("{} {half}", said(hour, clock, true));
    // "p.m." at a sentence's end has one dot for both.
    let dotted = words.get(count - 1).is_some_and(|word| word.core.contains('.'));
    let Some(rest) = last.strip_prefix('.').filter(|_| dotted) else {
        return Reading::Spoken { words: count, text: format!("{lead}{text}{last}") };
    };
    if !rest.is_empty() {
        return Reading::Spoken { words: count, text: format!("{lead}{text}{rest}") };
    }
    let dot = match words.get(count) {
        None if context.more => return Reading::Wait,
        Some(next) if !next.may_begin_a_sentence() => "",
        _ => ".",
    };
    Reading::Spoken { words: count, text: format!("{lead}{text}{dot}") }
}

fn said(hour: u64, clock: Option<Clock>, half: bool) -> String {
    let hour_said = below_hundred(hour);
    let Some(Clock { minute, second }) = clock else { return hour_said };
    let time = match (minute, second) {
        (0, None) if half => hour_said,
        (0, None) => format!("{hour_said} o'clock"),
        (0, Some(_)) => format!("{hour_said} hundred"),
        (1..10, _) => format!("{hour_said} oh {}", below_hundred(minute)),
        _ => format!("{hour_said} {}", below_hundred(minute)),
    };
    match second {
        None => time,
        Some(1) => format!("{time} and one second"),
        Some(second) => format!("{time} and {} seconds", below_hundred(second)),
    }
}
