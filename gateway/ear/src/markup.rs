//! Pauses: `<break time="500ms"/>` (SSML 1.1 section 3.2.3) and blank lines.

/// Longest pause between two words, in milliseconds; breaks that follow each other add up to it.
pub const PAUSE_MS_MAX: u32 = 3_000;

/// Pause of a blank line, in milliseconds, beside the silence a model ends its sentence with.
pub const PARAGRAPH_MS: u32 = 250;

/// Pause of `<break/>` without a time: SSML's medium strength.
const BREAK_MS: u32 = 500;

/// Longest tag, in bytes.
const TAG_BYTES_MAX: usize = 48;

/// What begins with `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// A break of this many bytes and milliseconds.
    Break { bytes: usize, ms: u32 },
    /// Text like any other.
    None,
    /// What follows decides.
    Unfinished,
}

/// Reads a tag at the beginning of `text`, which begins with `<`.
pub(crate) fn tag(text: &str) -> Tag {
    const NAME: &str = "<break";
    let head = &text.as_bytes()[..text.len().min(NAME.len())];
    if !head.eq_ignore_ascii_case(&NAME.as_bytes()[..head.len()]) {
        return Tag::None;
    }
    let whole = &text.as_bytes()[..text.len().min(TAG_BYTES_MAX)];
    let Some(end) = whole.iter().position(|byte| *byte == b'>') else {
        // A line's end or another tag cannot be inside.
        let broken = whole.iter().skip(1).any(|byte| matches!(byte, b'<' | b'\n' | b'\r'));
        return if broken || whole.len() == TAG_BYTES_MAX { Tag::None } else { Tag::Unfinished };
    };
    // Between ASCII bytes, so at character borders.
    match milliseconds(text[NAME.len()..end].trim_end_matches('/')) {
        Some(ms) => Tag::Break { bytes: end + 1, ms: ms.min(PAUSE_MS_MAX) },
        None => Tag::None,
    }
}

fn milliseconds(attributes: &str) -> Option<u32> {
    if !attributes.is_empty() && !attributes.starts_with([' ', '\t']) {
        return None;
    }
    let attributes = attributes.trim();
    if attributes.is_empty() {
        return Some(BREAK_MS);
    }
    let (name, value) = attributes.split_once('=')?;
    let value = value.trim();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let value = value.strip_prefix(quote)?.strip_suffix(quote)?.trim().to_ascii_lowercase();
    match name.trim().to_ascii_lowercase().as_str() {
        "time" => {
            let (number, scale) = match value.strip_suffix("ms") {
                Some(number) => (number, 1.0),
                None => (value.strip_suffix('s')?, 1_000.0),
            };
            let number: f64 = number.trim().parse().ok()?;
            // Also false for what is no number.
            (number >= 0.0).then(|| (number * scale).min(f64::from(PAUSE_MS_MAX)).round() as u32)
        }
        "strength" => match value.as_str() {
            "none" => Some(0),
            "x-weak" => Some(100),
            "weak" => Some(250),
            "medium" => Some(BREAK_MS),
            "strong" => Some(1_000),
            "x-strong" => Some(2_000),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_are_read_and_bounded() {
        let ms = |text: &str| match tag(text) {
            Tag::Break { ms, bytes } if bytes == text.len() => Some(ms),
            _ => None,
        };
        assert_eq!(ms("<break time=\"500ms\"/>"), Some(500));
        assert_eq!(ms("<break time='1.5s' />"), Some(1_500));
        assert_eq!(ms("<BREAK time=\"2s\">"), Some(2_000));
        assert_eq!(ms("<break/>"), Some(500));
        assert_eq!(ms("<break strength=\"strong\"/>"), Some(1_000));
        assert_eq!(ms("<break time=\"1e9s\"/>"), Some(PAUSE_MS_MAX));
        for bad in ["<break time=\"-1s\"/>", "<break time=\"NaNs\"/>", "<breakfast>", "<break time=5s/>"] {
            assert_eq!(tag(bad), Tag::None, "{bad}");
        }
    }

    #[test]
    fn a_tag_waits_only_while_it_can_still_become_one() {
        assert_eq!(tag("<"), Tag::Unfinished);
        assert_eq!(tag("<bre"), Tag::Unfinished);
        assert_eq!(tag("<break time=\"5"), Tag::Unfinished);
        for text in ["< 5", "<b>", "<break \n", "<break <", &format!("<break {}", " ".repeat(60))] {
            assert_eq!(tag(text), Tag::None, "{text:?}");
        }
    }
}
