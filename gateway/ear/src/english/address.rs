//! Web addresses and e-mail.

use super::number::digits;
use super::{Form, one};
use crate::{Context, Reading, Word};

/// Last labels by which a name with dots is known as a host's, where nothing else says so. Those that are
/// English words are left out: a missing space after a sentence is more frequent.
const TOP: &[&str] = &[
    "com", "org", "net", "io", "dev", "ai", "co", "uk", "de", "fr", "es", "nl", "eu", "ch", "jp", "cn", "ca",
    "au", "gov", "edu", "info", "app", "tv", "blog", "shop", "cloud", "xyz", "example",
];

pub(super) fn read(words: &[Word<'_>], _: Context<'_>, _: Form) -> Option<Reading> {
    let first = *words.first()?;
    let core = first.core;
    if !core.contains(['.', '/', ':']) || !core.is_ascii() {
        return None;
    }
    if let Some((name, host)) = core.split_once('@') {
        let name = name.strip_prefix("mailto:").unwrap_or(name);
        let valid = !name.is_empty() && !name.contains('/') && is_host(host);
        return valid.then(|| one(first, &format!("{} at {}", spoken(name), spoken(host))));
    }
    let schemes = ["https://", "http://", "ftp://"];
    let scheme = schemes.iter().find_map(|scheme| strip_prefix_any_case(core, scheme));
    let rest = scheme.unwrap_or(core);
    let host = rest.split(['/', '?', '#', ':']).next().unwrap_or_default();
    let known = host.rsplit('.').next().is_some_and(|top| TOP.contains(&top));
    let named = rest.len() > 4 && rest[..4].eq_ignore_ascii_case("www.");
    let valid = scheme.is_some() && !host.is_empty() || is_host(host) && (named || known);
    valid.then(|| one(first, &spoken(rest.strip_suffix('/').unwrap_or(rest))))
}

fn strip_prefix_any_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// Labels of letters, digits and hyphens between dots, two or more, not all of them figures.
fn is_host(host: &str) -> bool {
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    host.contains('.') && host.split('.').all(label) && host.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Letters as they stand, every sign by its name, digits one by one.
fn spoken(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let class = |c: char| (c.is_alphabetic(), c.is_ascii_digit());
        let end = match class(first) {
            (false, false) => first.len_utf8(),
            kind => rest.find(|c| class(c) != kind).unwrap_or(rest.len()),
        };
        let (run, after) = rest.split_at(end);
        rest = after;
        parts.push(match run {
            "." => "dot".to_owned(),
            "/" => "slash".to_owned(),
            "-" => "dash".to_owned(),
            "_" => "underscore".to_owned(),
            "?" => "question mark".to_owned(),
            "=" => "equals".to_owned(),
            "&" => "and".to_owned(),
            "#" => "hash".to_owned(),
            ":" => "colon".to_owned(),
            "%" => "percent".to_owned(),
            "+" => "plus".to_owned(),
            "~" => "tilde".to_owned(),
            "@" => "at".to_owned(),
            run if run.eq_ignore_ascii_case("www") => "w w w".to_owned(),
            run if run.bytes().all(|byte| byte.is_ascii_digit()) => digits(run),
            run => run.chars().filter(|c| c.is_alphanumeric()).collect(),
        });
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}
