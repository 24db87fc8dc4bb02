//! The segmenter's rules, as sentences, and its three laws on random text: nothing lost or doubled,
//! nothing longer than the maximum, no influence of how the text is split.

use proptest::prelude::*;
use proto::segmenter::{Piece, Segmenter, Zones};
use unicode_segmentation::UnicodeSegmentation;

const SHORT: Zones = Zones { first: 1, target: 1, clause: 60, word: 80, max: 100 };

fn pieces(zones: Zones, deltas: &[&str]) -> Vec<Piece> {
    let mut segmenter = Segmenter::new(zones);
    let mut out = Vec::new();
    for delta in deltas {
        segmenter.push(delta, &mut out);
    }
    segmenter.flush(&mut out);
    out
}

/// The spoken text of each segment.
fn segments(pieces: &[Piece]) -> Vec<String> {
    let mut segments = Vec::new();
    let mut current = String::new();
    for piece in pieces {
        match piece {
            Piece::Cut => segments.push(std::mem::take(&mut current)),
            Piece::Speak(text) => current.push_str(text),
            Piece::Skip(_) => {}
        }
    }
    assert_eq!(current, "", "a flush ends the last segment");
    segments
}

fn cut(zones: Zones, text: &str) -> Vec<String> {
    segments(&pieces(zones, &[text]))
}

fn all_text(pieces: &[Piece]) -> String {
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Cut => "",
            Piece::Skip(text) | Piece::Speak(text) => text.as_str(),
        })
        .collect()
}

/// One mark per character, so that how pieces are broken up does not matter.
fn shape(pieces: &[Piece]) -> Vec<(char, char)> {
    let mut shape = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Cut => shape.push(('|', '|')),
            Piece::Skip(text) => shape.extend(text.chars().map(|c| ('-', c))),
            Piece::Speak(text) => shape.extend(text.chars().map(|c| ('+', c))),
        }
    }
    shape
}

#[test]
fn sentences_end_at_stops_with_their_quotes_and_brackets() {
    assert_eq!(
        cut(SHORT, "He said \"Stop.\" (Really!) Then? He left."),
        ["He said \"Stop.\"", "(Really!)", "Then?", "He left."]
    );
}

#[test]
fn dots_of_abbreviations_initials_decimals_and_lists_end_nothing() {
    for whole in [
        "Dr. Smith met J. R. Jones at 3.5 p.m. on Jan. 5 at No. 7.",
        "Costs rose 1,000.50 dollars, e.g. Monday.",
        "1. First item",
        "Apples, pears, etc. and so on.",
        "\"Wait!\" she cried.",
        "www.example.com is up.",
        "Well... maybe.",
    ] {
        assert_eq!(cut(SHORT, whole), [whole]);
    }
    assert_eq!(cut(SHORT, "He said no. Then he left."), ["He said no.", "Then he left."]);
    assert_eq!(cut(SHORT, "Wait... Then go."), ["Wait...", "Then go."]);
}

#[test]
fn cjk_stops_need_no_space() {
    assert_eq!(cut(SHORT, "你好。今天「很好！」再见"), ["你好。", "今天「很好！」", "再见"]);
}

#[test]
fn a_blank_line_ends_a_segment_and_a_single_line_break_does_not() {
    let zones = Zones { first: 50, target: 50, ..SHORT };
    assert_eq!(cut(zones, "Title\n\nBody of\nit"), ["Title", "Body of\nit"]);
    assert_eq!(cut(zones, "Title\r\n\r\nBody"), ["Title", "Body"]);
}

#[test]
fn short_sentences_are_packed_up_to_the_target() {
    let zones = Zones { first: 8, target: 30, ..SHORT };
    assert_eq!(
        cut(zones, "One two. Three. Four five. Six seven. Eight nine ten. Eleven."),
        ["One two.", "Three. Four five. Six seven. Eight nine ten.", "Eleven."]
    );
}

#[test]
fn a_long_sentence_is_cut_at_a_clause_then_at_a_space_then_at_a_grapheme() {
    let clause = format!("{}, {}", "word ".repeat(13).trim_end(), "more ".repeat(5).trim_end());
    assert_eq!(cut(SHORT, &clause)[0], format!("{},", "word ".repeat(13).trim_end()));
    let spaces = "word ".repeat(40);
    assert!(
        cut(SHORT, &spaces)
            .iter()
            .all(|segment| segment.len() >= 80 && segment.len() <= 100 || segment.len() < 80)
    );
    assert_eq!(cut(SHORT, &"e\u{301}".repeat(60))[0], "e\u{301}".repeat(50));
}

#[test]
fn a_word_of_100_000_characters_is_cut_at_grapheme_borders() {
    let family = "👩\u{200d}👩\u{200d}👧a";
    let word = family.repeat(100_000 / family.chars().count());
    let cut = cut(Zones::streamed(300), &word);
    assert!(cut.len() > 300);
    for segment in &cut {
        assert!(segment.chars().count() <= 300);
        assert!(segment.graphemes(true).all(|cluster| cluster == "a" || cluster.chars().count() == 5));
    }
    // Emoji alone are not spoken, so a cut before one starts a segment at the next letter; none is lost.
    assert_eq!(all_text(&pieces(Zones::streamed(300), &[&word])), word);
}

#[test]
fn text_without_a_letter_or_digit_is_not_spoken() {
    for silent in
        ["", "   ", "...", "?!\n\n", "👍", "\u{0}\u{1}", "— \" —", &" \n".repeat(50_000), &"!".repeat(5_000)]
    {
        let pieces = pieces(SHORT, &[silent]);
        assert!(segments(&pieces).is_empty());
        assert_eq!(all_text(&pieces), silent);
    }
}

#[test]
fn control_characters_never_reach_a_segment() {
    assert_eq!(cut(SHORT, "a\u{0}b \u{7}c\u{1b}[0m"), ["ab c[0m"]);
}

#[test]
fn text_goes_through_before_its_segment_ends() {
    let mut segmenter = Segmenter::new(Zones::streamed(300));
    let mut out = Vec::new();
    segmenter.push("Hello wor", &mut out);
    assert_eq!(out, [Piece::Speak("Hello wo".to_owned())]);
    assert_eq!(segmenter.held(), 1);
    segmenter.release(&mut out);
    assert_eq!(out, [Piece::Speak("Hello wor".to_owned())]);
    assert!(segmenter.is_speaking());
}

#[test]
fn what_is_held_back_stays_bounded() {
    let mut segmenter = Segmenter::new(Zones::streamed(300));
    let mut out = Vec::new();
    segmenter.push("a", &mut out);
    for c in ["\u{301}", " ", "\u{0}", "(", "\u{200d}", "\n"] {
        segmenter.push(&c.repeat(20_000), &mut out);
        assert!(segmenter.held() <= 64 + 32, "{c:?}: {}", segmenter.held());
    }
}

fn text() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        4 => "[a-zA-Z]{1,9}",
        3 => Just(" ".to_owned()),
        2 => prop::sample::select(vec![". ", "? ", "! ", ", ", "; ", "... ", "\n", "\n\n", "\r\n", ".\" ", "Dr. ", "3.5", "1. "])
            .prop_map(str::to_owned),
        1 => prop::sample::select(vec!["。", "！」", "，", "你好", "é", "e\u{301}", "👩\u{200d}👧", "🇩🇪🇫🇷", "\u{0}", "\u{7}", "न\u{94d}", "שלום", "\u{200f}"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    prop::collection::vec(atom, 0..120).prop_map(|atoms| atoms.concat())
}

fn zones() -> impl Strategy<Value = Zones> {
    prop_oneof![
        (8_u32..400).prop_map(Zones::streamed),
        (8_u32..400).prop_map(Zones::whole),
        (1_u32..50, 1_u32..50, 1_u32..50, 1_u32..50, 8_u32..60)
            .prop_map(|(first, target, clause, word, max)| Zones { first, target, clause, word, max }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_lost_or_doubled_and_no_segment_is_too_long(text in text(), zones in zones()) {
        let pieces = pieces(zones, &[&text]);
        prop_assert_eq!(all_text(&pieces), text);
        for segment in segments(&pieces) {
            prop_assert!(segment.chars().count() <= zones.max as usize);
            prop_assert!(segment.chars().any(char::is_alphanumeric));
            prop_assert!(!segment.chars().any(|c| c.is_control() && !c.is_whitespace()));
            prop_assert!(!segment.starts_with(char::is_whitespace) && !segment.ends_with(char::is_whitespace));
        }
    }

    #[test]
    fn how_the_text_is_split_changes_nothing(
        text in text(), zones in zones(), splits in prop::collection::vec(any::<prop::sample::Index>(), 0..20)
    ) {
        let characters: Vec<char> = text.chars().collect();
        let mut at: Vec<usize> = splits.iter().map(|index| index.index(characters.len() + 1)).collect();
        at.sort_unstable();
        let mut deltas = Vec::new();
        let mut from = 0;
        for to in at.into_iter().chain([characters.len()]) {
            deltas.push(characters[from..to].iter().collect::<String>());
            from = to;
        }
        let deltas: Vec<&str> = deltas.iter().map(String::as_str).collect();
        prop_assert_eq!(shape(&pieces(zones, &deltas)), shape(&pieces(zones, &[&text])));
    }
}

#[test]
fn a_blank_after_a_prepended_mark_is_not_spoken() {
    // Unicode Annex 29 (GB9b) puts both into one cluster; found by the property above.
    assert_eq!(cut(Zones::streamed(8), "\u{11941}  "), ["\u{11941}"]);
}

#[test]
fn a_digit_counts_for_the_word_it_is_read_as() {
    let number = "77777 ".repeat(24);
    let segments = cut(SHORT, number.trim_end());
    assert!(segments.len() > 5 && segments.iter().all(|segment| segment.len() <= 25), "{segments:?}");
    // Words and numbers share a segment by what they take to speak, not by what they take to write.
    let mixed = cut(SHORT, &format!("{} {}", "a".repeat(59), "1".repeat(11)));
    assert_eq!(mixed.len(), 2, "{mixed:?}");
    let mixed = cut(SHORT, &format!("{} {}", "a".repeat(59), "1".repeat(10)));
    assert_eq!(mixed.len(), 1, "{mixed:?}");
}

#[test]
fn digits_without_end_are_spoken_in_parts_and_none_is_lost() {
    let zones = Zones::streamed(680);
    let number = "31415926535897932384".repeat(10);
    let segments = cut(zones, &number);
    assert_eq!(segments.len(), 10, "{segments:?}");
    assert_eq!(segments.concat(), number);
    assert_eq!(
        cut(zones, "Call 31415926535897932384 or 2, please"),
        ["Call 31415926535897932384 or 2, please"]
    );
}
