//! Every constant of a checkpoint comes from its files: no number of a published config, and none of the
//! embedded one's, may stand in a model's code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Small numbers are structure (kernel 7, dilation 9, halves); larger ones must be explained.
const SMALL: f64 = 16.0;

/// File below the models' folders, number, why it is not in any config.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("qwen3_tts/speaker/mel.rs", "1024", FRONT_END),
    ("qwen3_tts/speaker/mel.rs", "256", FRONT_END),
    ("qwen3_tts/speaker/mel.rs", "12_000.0", FRONT_END),
    ("qwen3_tts/speaker/mel.rs", "200.0", MEL_SCALE),
    ("qwen3_tts/speaker/mel.rs", "1000.0", MEL_SCALE),
    ("qwen3_tts/speaker/mel.rs", "27.0", MEL_SCALE),
];
const FRONT_END: &str = "the reference fixes its mel front end in code; no config names it";
const MEL_SCALE: &str = "the definition of Slaney's mel scale";

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Code without comments, strings and tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut code = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                while chars.peek().is_some_and(|&c| c != '\n') {
                    chars.next();
                }
            }
            '"' => {
                while let Some(c) = chars.next() {
                    match c {
                        '\\' => drop(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                code.push(' ');
            }
            _ => code.push(c),
        }
    }
    code
}

/// Number literals above [`SMALL`], as written.
fn large_numbers(code: &str) -> Vec<String> {
    let mut numbers = Vec::new();
    let bytes = code.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !word(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && (word(bytes[at]) || follows_number(bytes, start, at)) {
            at += 1;
        }
        let literal = &code[start..at];
        if literal.as_bytes()[0].is_ascii_digit() && value(literal) > SMALL {
            numbers.push(literal.to_owned());
        }
    }
    numbers
}

/// Whether the sign at `at` belongs to the number before it: a decimal point between digits, not a range
/// or a field; or the sign of an exponent.
fn follows_number(bytes: &[u8], start: usize, at: usize) -> bool {
    let before = &bytes[start..at];
    let digit_behind = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
    match bytes[at] {
        b'.' => digit_behind && before.iter().all(|b| b.is_ascii_digit() || *b == b'_'),
        b'-' | b'+' => digit_behind && before[0].is_ascii_digit() && before.ends_with(b"e"),
        _ => false,
    }
}

fn value(literal: &str) -> f64 {
    let plain = literal.replace('_', "");
    let unsuffixed = ["usize", "isize", "u8", "u16", "u32", "u64", "u128", "i32", "i64", "f32", "f64"]
        .iter()
        .find_map(|suffix| plain.strip_suffix(suffix))
        .unwrap_or(&plain);
    if let Some(hex) = unsuffixed.strip_prefix("0x") {
        return u128::from_str_radix(hex, 16).expect("a hexadecimal number") as f64;
    }
    unsuffixed.parse().unwrap_or_else(|error| panic!("number {literal}: {error}"))
}

#[test]
fn no_number_of_a_checkpoint_stands_in_a_models_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root.join("qwen3_tts"), &mut files);
    sources(&root.join("blocks"), &mut files);
    assert!(files.len() > 10, "the models' folders have moved");
    let mut unused: BTreeSet<_> = ALLOWED.iter().map(|(file, number, _)| (*file, *number)).collect();
    let mut found = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).expect("below the root").display().to_string();
        let text = std::fs::read_to_string(file).expect("readable source");
        if text.contains("#![cfg(test)]") {
            continue;
        }
        for number in large_numbers(&code(&text)) {
            let allowed = ALLOWED.iter().find(|(known, value, _)| *known == name && *value == number);
            match allowed {
                Some((known, value, _)) => drop(unused.remove(&(*known, *value))),
                None => found.push(format!("{name}: {number}")),
            }
        }
    }
    assert!(
        found.is_empty(),
        "take these from config.json, or allow them with a reason:\n{}",
        found.join("\n")
    );
    assert!(unused.is_empty(), "allowed but not there any more: {unused:?}");
}

#[test]
fn the_scan_sees_numbers_and_nothing_else() {
    let text = r#"
        // 2150 in a comment
        let a: u32 = 2150; let b = f(x32, 1.5, 1e-6, 24_000.0); let c = "151671"; let d = 0..72;
        let e = [1, 16, 0x40]; let t = tuple.17;
"#;
    let text = format!("{text}#[cfg(test)]\nmod tests {{ const X: u32 = 999; }}");
    assert_eq!(large_numbers(&code(&text)), ["2150", "24_000.0", "72", "0x40", "17"]);
}
