//! English, as it is said in America, or in Britain.

mod abbreviation;
mod address;
mod date;
mod emoji;
mod figure;
mod letters;
mod money;
mod number;
mod time;
mod unit;

use crate::{Context, Language, Reading, Word};

/// The built-in English.
#[derive(Clone, Copy, Debug)]
pub struct English {
    form: Form,
}

/// Whose English it is: the order of dates, "and" in numbers, a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    American,
    British,
}

impl English {
    pub(crate) const AMERICAN: Self = Self { form: Form::American };
    pub(crate) const BRITISH: Self = Self { form: Form::British };
}

/// One group of rules: a reading, if the words are of its kind.
type Rule = fn(&[Word<'_>], Context<'_>, Form) -> Option<Reading>;

/// The first rule that knows the words reads them.
const RULES: &[Rule] = &[
    emoji::read,
    address::read,
    date::read,
    time::read,
    money::read,
    figure::read,
    abbreviation::read,
    letters::read,
];

impl Language for English {
    fn tag(&self) -> &'static str {
        match self.form {
            Form::American => "en-US",
            Form::British => "en-GB",
        }
    }

    fn read(&self, words: &[Word<'_>], context: Context<'_>) -> Reading {
        let Some(first) = words.first() else { return Reading::AsIs };
        let read = RULES.iter().find_map(|rule| rule(words, context, self.form));
        let sign = !first.core.chars().any(char::is_alphanumeric);
        read.unwrap_or_else(|| if sign { symbol(*first) } else { Reading::AsIs })
    }
}

/// A sign that stands alone.
fn symbol(word: Word<'_>) -> Reading {
    let said = match word.text {
        "&" => "and",
        "+" => "plus",
        "=" => "equals",
        "@" => "at",
        "%" => "percent",
        "\u{D7}" => "times",
        "\u{F7}" => "divided by",
        "\u{2248}" => "about",
        "<" => "less than",
        ">" => "greater than",
        "\u{2192}" => "to",
        _ => return Reading::AsIs,
    };
    one(word, said)
}

/// The first word said like `said`, within its punctuation.
fn one(word: Word<'_>, said: &str) -> Reading {
    Reading::Spoken { words: 1, text: format!("{}{said}{}", word.lead, word.trail) }
}

/// The first `count` words said like `said`, within the punctuation around them all.
fn several(words: &[Word<'_>], count: usize, said: &str) -> Reading {
    let trail = words.get(count.saturating_sub(1)).map_or("", |word| word.trail);
    let lead = words.first().map_or("", |word| word.lead);
    Reading::Spoken { words: count, text: format!("{lead}{said}{trail}") }
}
