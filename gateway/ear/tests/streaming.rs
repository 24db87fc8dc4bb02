//! How a text is cut into pieces changes nothing; nothing is lost; what is held back is bounded.

use std::sync::Arc;

use ear::{Ear, HELD_CHARACTERS_MAX, Lexicon, Span, language};
use proptest::prelude::*;

/// Pieces of text in which every rule of English finds something.
fn fragments() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "Dr",
        ".",
        ",",
        "St",
        "5",
        "12",
        "2024",
        "May",
        "Jan",
        " km",
        "%",
        "$",
        "3.50",
        "1/2",
        "-",
        "10-20",
        "http://",
        "www",
        "example",
        "com",
        "@",
        "/",
        "etc",
        "e.g",
        "a.m",
        "p",
        "NASA",
        "HTML",
        "'s",
        "<break time=\"1s\"/>",
        "<bre",
        "<",
        ">",
        "ak/>",
        "\u{1F44D}",
        "\u{1F3FD}",
        "\u{1F1E9}\u{1F1EA}",
        "&",
        "é",
        "e\u{301}",
        "\u{4F60}",
        "\u{597D}",
        "Nguyen",
        "hello",
        "world",
        "(",
        ")",
        "\"",
        "+1",
        "555",
        "1234",
        ":",
        "30",
        "pm",
        "million",
        "€",
        "II",
        "U.S",
        "No",
        "#",
        "\u{0}",
        "\u{200D}",
    ]);
    let text =
        prop::collection::vec(prop_oneof![9 => fixed.prop_map(str::to_owned), 1 => any::<String>()], 0..40);
    text.prop_map(|parts| parts.concat())
}

fn ear(name: &str) -> Ear {
    let lexicon = Lexicon::new([("Nguyen".to_owned(), "Win".to_owned())]).expect("a lexicon");
    Ear::new(language(name), Arc::new(if name == "bare" { Lexicon::default() } else { lexicon }))
}

/// Spans with neighbours that are said as they stand joined.
fn joined(spans: Vec<Span>) -> Vec<Span> {
    let mut all: Vec<Span> = Vec::new();
    for span in spans {
        match (all.last_mut(), span) {
            (Some(Span::AsIs(before)), Span::AsIs(text)) => before.push_str(&text),
            (_, span) => all.push(span),
        }
    }
    all
}

fn original(spans: &[Span]) -> String {
    spans
        .iter()
        .map(|span| match span {
            Span::AsIs(text) => text.as_str(),
            Span::Pause { original, .. } | Span::Said { original, .. } => original,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_split_of_any_text_is_said_the_same(
        text in fragments(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        name in prop::sample::select(vec!["english", "en-GB", "klingon", "bare"]),
    ) {
        let mut whole = Vec::new();
        let mut one = ear(name);
        one.push(&text, &mut whole);
        one.flush(&mut whole);
        let mut borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut at: Vec<usize> = cuts.iter().map(|cut| *cut.get(&borders)).collect();
        at.sort_unstable();
        let mut pieces = Vec::new();
        let mut other = ear(name);
        let mut from = 0;
        for to in at.into_iter().chain([text.len()]) {
            other.push(&text[from..to], &mut pieces);
            from = to;
        }
        other.flush(&mut pieces);
        prop_assert_eq!(joined(pieces), joined(whole));
        // And character by character.
        let mut single = Vec::new();
        let mut third = ear(name);
        borders.dedup();
        for pair in borders.windows(2) {
            third.push(&text[pair[0]..pair[1]], &mut single);
        }
        third.flush(&mut single);
        prop_assert_eq!(original(&single), text);
    }

    #[test]
    fn nothing_is_lost_whatever_is_released_or_flushed_and_little_is_held(
        parts in prop::collection::vec((fragments(), 0..3_u8), 0..6),
    ) {
        let mut ear = ear("english");
        let mut spans = Vec::new();
        let mut text = String::new();
        for (part, then) in parts {
            text.push_str(&part);
            ear.push(&part, &mut spans);
            prop_assert!(ear.held_bytes() < HELD_CHARACTERS_MAX * 4);
            match then {
                0 => {}
                1 => ear.release(&mut spans),
                _ => ear.flush(&mut spans),
            }
            if then > 0 {
                prop_assert_eq!(ear.held_bytes(), 0);
                prop_assert_eq!(original(&spans), text.clone());
            }
        }
        ear.flush(&mut spans);
        prop_assert_eq!(original(&spans), text);
        for pair in spans.windows(2) {
            prop_assert!(!matches!(pair, [Span::AsIs(_), Span::AsIs(_)]), "{pair:?}");
        }
    }
}

#[test]
fn a_word_let_go_early_goes_on_where_it_was_and_a_number_does_not() {
    let mut ear = ear("english");
    let mut spans = Vec::new();
    ear.push("Hel", &mut spans);
    ear.release(&mut spans);
    ear.push("lo 3", &mut spans);
    ear.release(&mut spans);
    ear.push("5 km", &mut spans);
    ear.flush(&mut spans);
    let said: String = spans
        .iter()
        .map(|span| match span {
            Span::AsIs(text) => text.as_str(),
            Span::Said { said, .. } => said,
            Span::Pause { .. } => "",
        })
        .collect();
    assert_eq!(said, "Hello three five kilometers");
}

#[test]
fn a_word_without_end_goes_on_as_it_stands() {
    let text = "x".repeat(10_000);
    let mut ear = ear("english");
    let mut spans = Vec::new();
    ear.push(&text, &mut spans);
    assert!(original(&spans).len() >= 10_000 - HELD_CHARACTERS_MAX);
    ear.flush(&mut spans);
    assert_eq!(spans, [Span::AsIs(text)]);
}
