//! Emoji by their names (Unicode CLDR's, through the crate `emojis`).

use unicode_segmentation::UnicodeSegmentation;

use super::{English, Form};
use crate::{Context, Language, Reading, Word};

/// A word with emoji in it; one that is repeated is said once.
pub(super) fn read(words: &[Word<'_>], context: Context<'_>, form: Form) -> Option<Reading> {
    let first = words.first()?;
    if first.text.is_ascii() {
        return None;
    }
    let mut parts: Vec<String> = Vec::new();
    let mut plain = String::new();
    let mut found = false;
    for cluster in first.text.graphemes(true) {
        match name(cluster) {
            None => plain.push_str(cluster),
            Some(name) => {
                found = true;
                end_plain(&mut plain, &mut parts, context.before, form);
                if parts.last() != Some(&name) {
                    parts.push(name);
                }
            }
        }
    }
    if !found {
        return None;
    }
    end_plain(&mut plain, &mut parts, context.before, form);
    Some(Reading::Spoken { words: 1, text: parts.join(" ") })
}

/// What stands beside an emoji is read as if it stood alone; punctuation joins what is before it.
fn end_plain(plain: &mut String, parts: &mut Vec<String>, before: &str, form: Form) {
    let text = std::mem::take(plain);
    if text.is_empty() {
        return;
    }
    if !text.chars().any(char::is_alphanumeric) {
        match parts.last_mut() {
            Some(last) => last.push_str(&text),
            None => parts.push(text),
        }
        return;
    }
    match (English { form }).read(&[Word::new(&text)], Context { before, more: false }) {
        Reading::Spoken { text, .. } => parts.push(text),
        Reading::AsIs | Reading::Wait => parts.push(text),
    }
}

fn name(cluster: &str) -> Option<String> {
    if cluster.is_ascii() {
        return None;
    }
    let name = emojis::get(cluster)?.name();
    // "thumbs up: medium skin tone" is thumbs up; "flag: Japan" is a flag.
    let name = match name.split_once(": ") {
        Some((name, detail)) if detail.contains("skin tone") => name.to_owned(),
        Some((kind, detail)) => format!("{kind} {detail}"),
        None => name.to_owned(),
    };
    Some(name)
}
