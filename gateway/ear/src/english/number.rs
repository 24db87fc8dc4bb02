//! Numbers in words.

use super::Form;

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [&str; 6] = ["", "thousand", "million", "billion", "trillion", "quadrillion"];

/// Digits of a whole number that are still read as one; longer ones are read digit by digit.
const DIGITS_MAX: usize = 15;

/// `1234` as "one thousand two hundred thirty-four"; in Britain "...two hundred and thirty-four".
pub(super) fn cardinal(number: u64, form: Form) -> String {
    if number < 100 {
        return below_hundred(number);
    }
    let mut parts = Vec::new();
    let mut rest = number;
    for scale in SCALES {
        if rest == 0 {
            break;
        }
        let group = rest % 1_000;
        rest /= 1_000;
        match (group, scale) {
            (0, _) => {}
            // "one thousand and five": what stands before has no hundred of its own.
            (1..100, "") if form == Form::British => parts.push(format!("and {}", below_hundred(group))),
            (group, "") => parts.push(below_thousand(group, form)),
            (group, scale) => parts.push(format!("{} {scale}", below_thousand(group, form))),
        }
    }
    parts.reverse();
    parts.join(" ")
}

/// Days, hours, minutes and whatever else is said alike everywhere.
pub(super) fn below_hundred(number: u64) -> String {
    match number % 100 {
        small @ 0..20 => ONES[small as usize].to_owned(),
        round if round.is_multiple_of(10) => TENS[(round / 10) as usize].to_owned(),
        number => format!("{}-{}", TENS[(number / 10) as usize], ONES[(number % 10) as usize]),
    }
}

fn below_thousand(number: u64, form: Form) -> String {
    let and = if form == Form::British { "and " } else { "" };
    match (number / 100, number % 100) {
        (0, rest) => below_hundred(rest),
        (hundreds, 0) => format!("{} hundred", ONES[hundreds as usize]),
        (hundreds, rest) => format!("{} hundred {and}{}", ONES[hundreds as usize], below_hundred(rest)),
    }
}

/// `21` as "twenty-first".
pub(super) fn ordinal(number: u64, form: Form) -> String {
    let words = cardinal(number, form);
    let at = words.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (head, last) = words.split_at(at);
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        _ => match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        },
    };
    format!("{head}{last}")
}

/// `1984` as "nineteen eighty-four", `2024` as "twenty twenty-four".
pub(super) fn year(year: u64, form: Form) -> String {
    let (century, rest) = (year / 100, year % 100);
    match (century, rest) {
        _ if !(1_100..2_100).contains(&year) || (2_000..2_010).contains(&year) => cardinal(year, form),
        (_, 0) => format!("{} hundred", below_hundred(century)),
        (_, 1..10) => format!("{} oh {}", below_hundred(century), below_hundred(rest)),
        _ => format!("{} {}", below_hundred(century), below_hundred(rest)),
    }
}

/// `1990s` as "nineteen nineties".
pub(super) fn decade(start: u64, form: Form) -> String {
    let words = year(start, form);
    let stem = words.strip_suffix('y').map(|stem| format!("{stem}ies"));
    stem.unwrap_or_else(|| format!("{words}s"))
}

/// `5550123` as "five five five zero one two three".
pub(super) fn digits(digits: &str) -> String {
    let words: Vec<&str> =
        digits.bytes().filter(u8::is_ascii_digit).map(|byte| ONES[usize::from(byte - b'0')]).collect();
    words.join(" ")
}

/// A number as it stands at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number<'a> {
    /// Digits before the point, commas among them; may be empty before a fraction.
    pub(super) whole: &'a str,
    /// Digits after the point.
    pub(super) fraction: Option<&'a str>,
}

impl<'a> Number<'a> {
    /// The number at the beginning of `text` and what follows it. Commas count only where they part
    /// thousands.
    pub(super) fn split(text: &'a str) -> Option<(Self, &'a str)> {
        let plain = text.bytes().take_while(u8::is_ascii_digit).count();
        let mut end = plain;
        if (1..=3).contains(&plain) {
            while let Some(group) = text.as_bytes().get(end..end + 4)
                && group[0] == b','
                && group[1..].iter().all(u8::is_ascii_digit)
                && !text.as_bytes().get(end + 4).is_some_and(u8::is_ascii_digit)
            {
                end += 4;
            }
        }
        let (whole, rest) = text.split_at(end);
        let fraction = rest.strip_prefix('.').map(|rest| {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            rest.split_at(digits)
        });
        match fraction {
            Some((digits, rest)) if !digits.is_empty() => {
                Some((Self { whole, fraction: Some(digits) }, rest))
            }
            _ if whole.is_empty() => None,
            _ => Some((Self { whole, fraction: None }, rest)),
        }
    }

    /// The whole of `text` as a number.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        Self::split(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
    }

    /// Its value, when it is a whole number that is read as one.
    pub(super) fn value(self) -> Option<u64> {
        if self.fraction.is_some() || self.whole.len() > DIGITS_MAX + DIGITS_MAX / 3 {
            return None;
        }
        let digits = self.whole.bytes().filter(u8::is_ascii_digit);
        let mut value = 0_u64;
        for (count, byte) in digits.enumerate() {
            if count >= DIGITS_MAX {
                return None;
            }
            value = value * 10 + u64::from(byte - b'0');
        }
        Some(value)
    }

    /// Written without commas, with zeros before: a code, not a count.
    pub(super) fn is_code(self) -> bool {
        self.fraction.is_none() && self.whole.len() > 1 && self.whole.starts_with('0')
    }

    /// Whether what is counted stands in the singular.
    pub(super) fn is_one(self) -> bool {
        self.value() == Some(1)
    }

    /// As a quantity: "one thousand", "three point one four".
    pub(super) fn words(self, form: Form) -> String {
        let whole = Number { fraction: None, ..self };
        let words = match whole.value() {
            _ if self.whole.is_empty() => "zero".to_owned(),
            Some(value) if !self.is_code() => cardinal(value, form),
            _ => digits(self.whole),
        };
        match self.fraction {
            None => words,
            Some(fraction) => format!("{words} point {}", digits(fraction)),
        }
    }

    /// By itself, without anything counted: four digits are mostly a year, ten mostly a telephone's.
    pub(super) fn alone(self, form: Form) -> String {
        match (self.fraction, self.whole.len(), self.value()) {
            (None, 4, Some(value)) if (1_100..2_100).contains(&value) => year(value, form),
            (None, 10 | 11, Some(_)) if !self.whole.contains(',') => digits(self.whole),
            _ => self.words(form),
        }
    }
}
