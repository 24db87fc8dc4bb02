//! Money: a sign or a code, before or after the number.

use super::number::{Number, cardinal};
use super::{Form, several};
use crate::{Context, Reading, Word};

struct Currency {
    signs: &'static [&'static str],
    code: &'static str,
    /// Singular and plural.
    whole: (&'static str, &'static str),
    /// Hundredths; where they are not used, empty.
    part: (&'static str, &'static str),
}

const CURRENCIES: &[Currency] = &[
    Currency { signs: &["US$", "$"], code: "USD", whole: ("dollar", "dollars"), part: ("cent", "cents") },
    Currency { signs: &["\u{20AC}"], code: "EUR", whole: ("euro", "euros"), part: ("cent", "cents") },
    Currency { signs: &["\u{A3}"], code: "GBP", whole: ("pound", "pounds"), part: ("penny", "pence") },
    Currency { signs: &["\u{A5}"], code: "JPY", whole: ("yen", "yen"), part: ("", "") },
    Currency { signs: &["\u{20B9}"], code: "INR", whole: ("rupee", "rupees"), part: ("paisa", "paise") },
    Currency { signs: &["\u{20A9}"], code: "KRW", whole: ("won", "won"), part: ("", "") },
    Currency {
        signs: &[],
        code: "CHF",
        whole: ("Swiss franc", "Swiss francs"),
        part: ("centime", "centimes"),
    },
    Currency {
        signs: &["C$"],
        code: "CAD",
        whole: ("Canadian dollar", "Canadian dollars"),
        part: ("cent", "cents"),
    },
    Currency {
        signs: &["A$"],
        code: "AUD",
        whole: ("Australian dollar", "Australian dollars"),
        part: ("cent", "cents"),
    },
];

/// Words and letters that multiply.
const SCALES: &[(&str, &str)] = &[
    ("k", "thousand"),
    ("K", "thousand"),
    ("m", "million"),
    ("M", "million"),
    ("mn", "million"),
    ("bn", "billion"),
    ("B", "billion"),
    ("b", "billion"),
    ("tn", "trillion"),
    ("T", "trillion"),
];
const SCALE_WORDS: &[&str] = &["hundred", "thousand", "million", "billion", "trillion"];

pub(super) fn read(words: &[Word<'_>], context: Context<'_>, form: Form) -> Option<Reading> {
    let first = *words.first()?;
    let (minus, core) = match first.core.strip_prefix(['-', '\u{2212}']) {
        Some(rest) => ("minus ", rest),
        None => ("", first.core),
    };
    let sign = CURRENCIES.iter().find_map(|currency| {
        currency.signs.iter().find_map(|sign| Some((currency, core.strip_prefix(sign)?)))
    });
    if let Some((currency, rest)) = sign {
        let (amount, rest) = Number::split(rest)?;
        return amount_after(words, context, form, (minus, currency, amount), rest);
    }
    // A number before its sign or code.
    if let Some((amount, rest)) = Number::split(core) {
        let attached =
            CURRENCIES.iter().find(|c| c.signs.contains(&rest) || !rest.is_empty() && c.code == rest);
        if let Some(currency) = attached {
            return Some(several(words, 1, &format!("{minus}{}", spoken(currency, amount, form))));
        }
        if form == Form::British && rest == "p" {
            let pence = if amount.is_one() { "penny" } else { "pence" };
            return Some(several(words, 1, &format!("{minus}{} {pence}", amount.words(form))));
        }
        if !rest.is_empty() || !first.is_open() {
            return None;
        }
        let second = words.get(1)?;
        let currency = by_name(second.core)?;
        return Some(several(words, 2, &format!("{minus}{}", spoken(currency, amount, form))));
    }
    let currency =
        CURRENCIES.iter().find(|currency| currency.code == first.core).filter(|_| first.is_open())?;
    let Some(second) = words.get(1) else { return context.more.then_some(Reading::Wait) };
    let amount = Number::of(second.core).filter(|_| second.lead.is_empty())?;
    Some(several(words, 2, &spoken(currency, amount, form)))
}

fn by_name(core: &str) -> Option<&'static Currency> {
    CURRENCIES.iter().find(|currency| currency.code == core || currency.signs.contains(&core))
}

/// An amount whose sign stood before it; `rest` follows in the same word.
fn amount_after(
    words: &[Word<'_>],
    context: Context<'_>,
    form: Form,
    (minus, currency, amount): (&str, &Currency, Number<'_>),
    rest: &str,
) -> Option<Reading> {
    let first = words.first()?;
    let scaled = |scale: &str| format!("{minus}{} {scale} {}", amount.words(form), currency.whole.1);
    if let Some((_, scale)) = SCALES.iter().find(|(letters, _)| *letters == rest) {
        return Some(several(words, 1, &scaled(scale)));
    }
    if let Some(upper) = rest.strip_prefix(['-', '\u{2013}']) {
        let upper = currency.signs.iter().find_map(|sign| upper.strip_prefix(sign)).unwrap_or(upper);
        let upper = Number::of(upper)?;
        let said = format!("{minus}{} to {} {}", amount.words(form), upper.words(form), currency.whole.1);
        return Some(several(words, 1, &said));
    }
    if !rest.is_empty() {
        return None;
    }
    if first.is_open() {
        match words.get(1) {
            None if context.more => return Some(Reading::Wait),
            Some(word) if SCALE_WORDS.contains(&word.core) => {
                return Some(several(words, 2, &scaled(word.core)));
            }
            _ => {}
        }
    }
    Some(several(words, 1, &format!("{minus}{}", spoken(currency, amount, form))))
}

fn spoken(currency: &Currency, amount: Number<'_>, form: Form) -> String {
    let counted = |count: u64, (one, many): (&str, &str)| {
        format!("{} {}", cardinal(count, form), if count == 1 { one } else { many })
    };
    let whole = Number { fraction: None, ..amount }.value();
    let parts =
        amount.fraction.filter(|digits| digits.len() == 2).and_then(|digits| digits.parse::<u64>().ok());
    match (whole, parts) {
        (Some(whole), Some(0)) => counted(whole, currency.whole),
        (Some(0), Some(parts)) if !currency.part.0.is_empty() => counted(parts, currency.part),
        (Some(whole), Some(parts)) if !currency.part.0.is_empty() => {
            format!("{} and {}", counted(whole, currency.whole), counted(parts, currency.part))
        }
        _ => format!(
            "{} {}",
            amount.words(form),
            if amount.is_one() { currency.whole.0 } else { currency.whole.1 }
        ),
    }
}
