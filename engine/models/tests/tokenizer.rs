//! Text to ids: both kinds of tokenizer files, the library's own pipeline as the oracle, streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use models::{PIECE_CHARS_MAX, TextStream, Tokenizer};
use safetensors::SafeTensors;

fn tiny(name: &str) -> String {
    let path = format!("{}/../../config/models/tiny/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("a file of the embedded checkpoint")
}

fn from_json() -> Tokenizer {
    Tokenizer::from_json(&tiny("tokenizer.json")).expect("opens")
}

fn from_vocab() -> Tokenizer {
    Tokenizer::from_vocab(&tiny("vocab.json"), &tiny("merges.txt"), &tiny("tokenizer_config.json"))
        .expect("opens")
}

fn library() -> tokenizers::Tokenizer {
    tiny("tokenizer.json").parse().expect("opens")
}

fn library_ids(library: &tokenizers::Tokenizer, text: &str) -> Vec<u32> {
    library.encode(text, false).expect("encodes").get_ids().to_vec()
}

/// A counter-based generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn text(&mut self) -> String {
        let parts = self.below(24);
        (0..parts).map(|_| self.part()).collect()
    }

    fn part(&mut self) -> String {
        match self.below(8) {
            0 | 1 => self.pick(WORDS).to_owned(),
            2 | 3 => self.pick(BORDERS).to_owned(),
            4 => self.pick(COMPOSING).to_owned(),
            5 => (0..self.below(6)).map(|_| char::from(32 + self.below(95) as u8)).collect(),
            6 => self.pick(&[" ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", " \n ", "\n\n"]).to_owned(),
            _ => char::from_u32(self.below(0x11_0000) as u32).unwrap_or(' ').to_string(),
        }
    }
}

/// What a call gives that settles nothing.
const NO_IDS: [u32; 0] = [];

const WORDS: &[&str] = &[
    "the",
    " quick",
    "Hello",
    " don",
    "we",
    " river",
    "I",
    "s",
    "re",
    "ll",
    "really",
    "日本語",
    "привет",
    "ß",
    "İ",
];
const BORDERS: &[&str] = &[
    "'",
    "'s",
    "'re",
    "'S",
    "’",
    ".",
    "...",
    "?!",
    " -",
    "(",
    "/",
    "1",
    "42",
    " 7",
    "½",
    "🙂",
    "👩‍🚀",
    "<",
    "|>",
];
const COMPOSING: &[&str] = &[
    "e\u{301}",
    "\u{301}",
    "\u{327}\u{301}",
    "a\u{323}\u{302}",
    "\u{338}",
    "=\u{338}",
    "\u{1100}\u{1161}\u{11a8}",
    "\u{212b}",
    "\u{958}",
    "\u{344}",
    "ﬁ",
    "\u{f71}\u{f72}",
    "\u{5d0}\u{5b7}",
    " \u{308}",
];

#[test]
fn both_kinds_of_files_and_the_library_give_equal_ids_on_ten_thousand_random_strings() {
    let (json, vocab, library) = (from_json(), from_vocab(), library());
    let mut random = Random(1);
    let mut ids_seen = 0;
    for _ in 0..10_000 {
        let text = random.text();
        let ids = json.encode(&text);
        assert_eq!(ids, vocab.encode(&text), "{text:?}");
        assert_eq!(ids, library_ids(&library, &text), "{text:?}");
        ids_seen += ids.len();
    }
    assert!(ids_seen > 100_000, "the strings were too short to say anything: {ids_seen} ids");
}

#[test]
fn both_kinds_of_files_give_the_reference_packages_ids_on_ten_thousand_strings() {
    let path =
        format!("{}/../../tests/golden/parity/tokenizer_10000.safetensors", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).expect("the fixture of tests/parity");
    let fixture = SafeTensors::deserialize(&file).expect("safetensors");
    let data = |name: &str| fixture.tensor(name).expect(name).data();
    let ends = |name: &str| {
        data(name)
            .chunks_exact(4)
            .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
            .collect::<Vec<_>>()
    };
    let ids: Vec<u32> =
        data("ids").chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect();
    let (text_ends, ids_ends) = (ends("text.ends"), ends("ids.ends"));
    assert_eq!(text_ends.len(), 10_000);
    let tokenizers = [from_json(), from_vocab()];
    let (mut text_start, mut ids_start, mut with_control) = (0, 0, 0);
    for (text_end, ids_end) in text_ends.into_iter().zip(ids_ends) {
        let text = std::str::from_utf8(&data("text.bytes")[text_start..text_end]).expect("UTF-8");
        for tokenizer in &tokenizers {
            assert_eq!(tokenizer.encode_template(text), ids[ids_start..ids_end], "{text:?}");
            if tokenizer.control_token_in(text).is_some() {
                with_control += 1;
            } else {
                assert_eq!(tokenizer.encode(text), ids[ids_start..ids_end], "{text:?}");
            }
        }
        (text_start, ids_start) = (text_end, ids_end);
    }
    assert_eq!(ids_start, ids.len());
    assert!(with_control >= 8, "no string with control tokens: {with_control}");
}

#[test]
fn any_split_of_a_text_gives_the_ids_of_the_whole() {
    let tokenizer = Arc::new(from_json());
    let mut random = Random(2);
    for _ in 0..10_000 {
        let text: String = (0..3).map(|_| random.text()).collect();
        let characters: Vec<char> = text.chars().collect();
        let mut stream = TextStream::new(Arc::clone(&tokenizer));
        let mut ids = Vec::new();
        let longest = [1, 2, 5, 40][random.below(4)];
        let mut rest = &characters[..];
        while !rest.is_empty() {
            let (delta, after) = rest.split_at(1 + random.below(longest.min(rest.len())));
            ids.extend(stream.push(&delta.iter().collect::<String>()).expect("no control token"));
            rest = after;
        }
        ids.extend(stream.end());
        assert_eq!(ids, tokenizer.encode(&text), "{text:?}");
        assert_eq!(stream.held_bytes(), 0);
    }
}

#[test]
fn runs_longer_than_a_window_split_anywhere_give_the_ids_of_the_whole() {
    let tokenizer = Arc::new(from_json());
    let mut random = Random(3);
    let runs =
        ["a", "A", "日", "!", " ", "\n", "\u{301}", "\u{958}", "7", "a\u{301}", "\u{1100}", "' ", "\t x"];
    for round in 0..200 {
        let mut text = random.text();
        for _ in 0..2 {
            text.push_str(
                &random.pick(&runs).repeat(PIECE_CHARS_MAX - 3 + random.below(2 * PIECE_CHARS_MAX)),
            );
            text.push_str(&random.text());
        }
        let characters: Vec<char> = text.chars().collect();
        let mut stream = TextStream::new(Arc::clone(&tokenizer));
        let mut ids = Vec::new();
        for delta in characters.chunks([1, 7, 300, 5000][round % 4]) {
            ids.extend(stream.push(&delta.iter().collect::<String>()).expect("no control token"));
            assert!(stream.held_bytes() <= 8 * PIECE_CHARS_MAX, "held {}", stream.held_bytes());
        }
        ids.extend(stream.end());
        assert_eq!(ids, tokenizer.encode(&text), "{text:?}");
    }
}

#[test]
fn a_word_is_released_as_soon_as_its_end_is_certain() {
    let tokenizer = Arc::new(from_json());
    let mut stream = TextStream::new(Arc::clone(&tokenizer));
    let mut push = |delta: &str| stream.push(delta).expect("no control token");
    assert_eq!(push("Hel"), NO_IDS);
    assert_eq!(push("lo"), NO_IDS);
    assert_eq!(push(" "), tokenizer.encode("Hello"));
    assert_eq!(push("there"), NO_IDS);
    assert_eq!(push("."), tokenizer.encode(" there"));
    assert_eq!(push(" It"), tokenizer.encode("."));
    assert_eq!(push("'"), tokenizer.encode(" It"));
    assert_eq!(push("s"), NO_IDS);
    assert_eq!(push(" 5"), tokenizer.encode("'s "), "a blank before a digit is a piece of its own");
    assert_eq!(push("\u{301}"), NO_IDS, "the digit may take more marks");
    assert_eq!(stream.end(), tokenizer.encode("5\u{301}"));
}

#[test]
fn a_mark_in_a_later_delta_composes_with_the_letter_before_it() {
    let tokenizer = Arc::new(from_json());
    let mut stream = TextStream::new(Arc::clone(&tokenizer));
    let mut ids = stream.push("cafe").expect("no control token");
    ids.extend(stream.push("\u{301} noir").expect("no control token"));
    ids.extend(stream.end());
    assert_eq!(ids, tokenizer.encode("caf\u{e9} noir"));
}

#[test]
fn a_release_gives_the_word_held_back_and_keeps_the_blank_for_the_next() {
    let tokenizer = Arc::new(from_json());
    let mut stream = TextStream::new(Arc::clone(&tokenizer));
    assert_eq!(stream.push("good morning").expect("no control token"), tokenizer.encode("good"));
    assert_eq!(stream.release(), tokenizer.encode(" morning"));
    assert_eq!(stream.release(), NO_IDS);
    assert_eq!(stream.push(" ").expect("no control token"), NO_IDS);
    assert_eq!(stream.release(), NO_IDS);
    assert_eq!(stream.held_bytes(), 1);
    assert_eq!(stream.push("all").expect("no control token"), NO_IDS);
    assert_eq!(stream.end(), tokenizer.encode(" all"));
}

#[test]
fn control_tokens_in_text_are_never_obeyed() {
    let tokenizer = from_json();
    for token in tokenizer.control_tokens() {
        let text = format!("before {} after", token.content);
        let ids = tokenizer.encode(&text);
        assert!(
            tokenizer.control_tokens().iter().all(|control| !ids.contains(&control.id)),
            "{text}: {ids:?}"
        );
        assert_eq!(tokenizer.control_token_in(&text), Some(token));
    }
    assert_eq!(tokenizer.control_token_in("a < b |> c, im_end"), None);
    assert!(tokenizer.control_tokens().len() >= 9);
}

#[test]
fn a_control_token_split_over_deltas_is_refused_by_name_and_nothing_of_that_delta_is_taken() {
    let tokenizer = Arc::new(from_json());
    for token in tokenizer.control_tokens() {
        let characters: Vec<char> = token.content.chars().collect();
        for cut in 0..characters.len() {
            let (first, second) = characters.split_at(cut);
            let mut stream = TextStream::new(Arc::clone(&tokenizer));
            let mut ids = stream.push("Say ").expect("harmless");
            ids.extend(stream.push(&first.iter().collect::<String>()).expect("not yet a control token"));
            let refused =
                stream.push(&second.iter().collect::<String>()).expect_err("spells a control token");
            assert_eq!(refused, token.content);
            ids.extend(stream.push(" now").expect("the refused delta left no trace"));
            ids.extend(stream.end());
            let taken = format!("Say {} now", first.iter().collect::<String>());
            assert_eq!(ids, tokenizer.encode(&taken));
        }
    }
}

#[test]
fn control_tokens_of_a_template_are_obeyed_as_the_library_does() {
    let (tokenizer, library) = (from_json(), library());
    let mut random = Random(4);
    let control: Vec<&str> = tokenizer.control_tokens().iter().map(|token| token.content.as_str()).collect();
    for _ in 0..1000 {
        let text = (0..4).map(|_| format!("{}{}", random.text(), random.pick(&control))).collect::<String>();
        assert_eq!(tokenizer.encode_template(&text), library_ids(&library, &text), "{text:?}");
    }
    assert_eq!(tokenizer.encode_template("<|im_start|>assistant\n"), [2033, 319, 198]);
    assert_eq!(tokenizer.control_id("<|im_end|>"), Some(2034));
    assert_eq!(tokenizer.ids_end(), 2041);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a cost is measured here, nothing is decided by it")]
fn the_cost_of_a_text_grows_with_its_length_only() {
    let tokenizer = Arc::new(from_json());
    let cost = |unit: &str, length: usize, delta_chars: usize| {
        let characters: Vec<char> = unit.chars().cycle().take(length).collect();
        let start = Instant::now();
        let mut stream = TextStream::new(Arc::clone(&tokenizer));
        for delta in characters.chunks(delta_chars) {
            let _ = stream.push(&delta.iter().collect::<String>()).expect("no control token");
        }
        let _ = stream.end();
        start.elapsed()
    };
    for unit in ["a", "!", "!?", " ", "\u{301}", "ab cd ", "Xy"] {
        for delta_chars in [1, 100_000] {
            let (short, long) = (cost(unit, 10_000, delta_chars), cost(unit, 100_000, delta_chars));
            println!("{unit:?} in deltas of {delta_chars}: 10,000 characters {short:?}, 100,000 {long:?}");
            // Ten times the text; the square of it would be a hundred. The rest is room for a busy machine.
            assert!(long < short * 40 + Duration::from_secs(2), "{unit:?}: {short:?} to {long:?}");
        }
    }
}

#[test]
fn files_of_another_pipeline_are_refused_by_what_differs() {
    let json = tiny("tokenizer.json");
    let refuse = |from: &str, to: &str| {
        assert!(json.contains(from), "{from} is not in the file");
        Tokenizer::from_json(&json.replacen(from, to, 1)).expect_err("refused").to_string()
    };
    assert!(refuse("\"NFC\"", "\"Lowercase\"").contains("normalizer Lowercase"));
    assert!(refuse("\"Isolated\"", "\"Removed\"").contains("pre_tokenizer"));
    assert!(refuse("\"ignore_merges\": false", "\"ignore_merges\": true").contains("byte-level BPE"));
    assert!(refuse("\"lstrip\": false", "\"lstrip\": true").contains("<|endoftext|>"));
    assert!(refuse("\"!\": 0,", "").contains("byte symbol"));
    assert!(
        Tokenizer::from_json(&json[..json.len() / 2])
            .expect_err("cut")
            .to_string()
            .contains("tokenizer.json")
    );
    let (vocab, merges, config) = (tiny("vocab.json"), tiny("merges.txt"), tiny("tokenizer_config.json"));
    let other = config.replace("Qwen2Tokenizer", "LlamaTokenizer");
    let error = Tokenizer::from_vocab(&vocab, &merges, &other).expect_err("refused");
    assert!(error.to_string().contains("LlamaTokenizer"));
    let error = Tokenizer::from_vocab(&vocab, &format!("{merges}\nzz qq\n"), &config).expect_err("refused");
    assert!(error.to_string().contains("merge \"zz\" \"qq\""));
}
