//! Reading tokenizer files. Whatever the pipeline cannot do exactly is refused by name.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokenizers::models::bpe::{Merges, Vocab};

use super::{ControlToken, TokenizerError};

/// What both kinds of files hold.
pub(super) struct Parts {
    pub(super) file: &'static str,
    pub(super) vocab: Vocab,
    pub(super) merges: Merges,
    pub(super) pattern: String,
    pub(super) composes: bool,
    pub(super) control: Vec<ControlToken>,
}

/// Split pattern of the Qwen2 tokenizer class, which its files do not repeat.
const QWEN2_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const JSON: &str = "tokenizer.json";
const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const CONFIG: &str = "tokenizer_config.json";

pub(super) fn read_json(text: &str) -> Result<Parts, TokenizerError> {
    let file: TokenizerFile = parse(JSON, text)?;
    let model = file.model;
    let plain = model.kind.as_deref().is_none_or(|kind| kind == "BPE")
        && model.dropout.is_none_or(|p| p == 0.0)
        && model.unk_token.is_none()
        && !model.byte_fallback
        && !model.ignore_merges
        && model.continuing_subword_prefix.as_deref().unwrap_or_default().is_empty()
        && model.end_of_word_suffix.as_deref().unwrap_or_default().is_empty();
    if !plain {
        return Err(bad(JSON, "model is not plain byte-level BPE"));
    }
    let composes = match file.normalizer.as_ref().map(|step| step.kind.as_str()) {
        None => false,
        Some("NFC") => true,
        Some(other) => return Err(bad(JSON, format!("normalizer {other} is not supported; NFC or none is"))),
    };
    let pattern = split_pattern(file.pre_tokenizer)?;
    let merges = model.merges.into_iter().map(Merge::pair).collect::<Option<Merges>>();
    let merges = merges.ok_or_else(|| bad(JSON, "a merge is not two symbols"))?;
    check_merges(JSON, &model.vocab, &merges)?;
    let control = control_tokens(JSON, file.added_tokens.into_iter().map(|t| (t.id, t.token)))?;
    Ok(Parts { file: JSON, vocab: model.vocab.into_iter().collect(), merges, pattern, composes, control })
}

pub(super) fn read_vocab(vocab: &str, merges: &str, config: &str) -> Result<Parts, TokenizerError> {
    let config: ConfigFile = parse(CONFIG, config)?;
    let class = config.tokenizer_class.unwrap_or_default();
    if !matches!(class.as_str(), "Qwen2Tokenizer" | "Qwen2TokenizerFast") {
        return Err(bad(CONFIG, format!("tokenizer_class {class:?} is not known; Qwen2Tokenizer is")));
    }
    if config.add_prefix_space {
        return Err(bad(CONFIG, "add_prefix_space is not supported"));
    }
    let vocab: BTreeMap<String, u32> = parse(VOCAB, vocab)?;
    let lines = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    let pairs = lines.map(|line| Merge::Line(line.to_owned()).pair()).collect::<Option<Merges>>();
    let merges = pairs.ok_or_else(|| bad(MERGES, "a line is not two symbols"))?;
    check_merges(MERGES, &vocab, &merges)?;
    let mut added = Vec::new();
    for (id, token) in config.added_tokens_decoder {
        let id = id.parse().map_err(|_| bad(CONFIG, format!("added_tokens_decoder: {id:?} is no id")))?;
        added.push((id, token));
    }
    let control = control_tokens(CONFIG, added.into_iter())?;
    let pattern = QWEN2_PATTERN.to_owned();
    Ok(Parts { file: VOCAB, vocab: vocab.into_iter().collect(), merges, pattern, composes: true, control })
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, text: &'a str) -> Result<T, TokenizerError> {
    serde_json::from_str(text).map_err(|error| bad(file, error.to_string()))
}

fn bad(file: &'static str, what: impl Into<String>) -> TokenizerError {
    TokenizerError { file, what: what.into() }
}

fn check_merges(
    file: &'static str,
    vocab: &BTreeMap<String, u32>,
    merges: &Merges,
) -> Result<(), TokenizerError> {
    for (left, right) in merges {
        if let Some(missing) =
            [left, right, &format!("{left}{right}")].into_iter().find(|s| !vocab.contains_key(*s))
        {
            return Err(bad(file, format!("merge {left:?} {right:?}: {missing:?} is not in the vocabulary")));
        }
    }
    Ok(())
}

fn control_tokens(
    file: &'static str,
    added: impl Iterator<Item = (u32, AddedToken)>,
) -> Result<Vec<ControlToken>, TokenizerError> {
    added
        .map(|(id, token)| {
            if token.lstrip || token.rstrip || token.single_word {
                return Err(bad(
                    file,
                    format!(
                        "added token {}: lstrip, rstrip and single_word are not supported",
                        token.content
                    ),
                ));
            }
            Ok(ControlToken { content: token.content, id })
        })
        .collect()
}

/// The one pattern of `Sequence[Split(pattern, isolated), ByteLevel(without its own pattern)]`.
fn split_pattern(step: Option<PreTokenizer>) -> Result<String, TokenizerError> {
    let wanted = "pre_tokenizer is not a Split by pattern (isolated) followed by ByteLevel";
    let Some(PreTokenizer::Sequence { pretokenizers }) = step else { return Err(bad(JSON, wanted)) };
    match <[PreTokenizer; 2]>::try_from(pretokenizers) {
        Ok(
            [
                PreTokenizer::Split { pattern: Pattern::Regex(pattern), behavior, invert: false },
                PreTokenizer::ByteLevel { add_prefix_space: false, use_regex: false },
            ],
        ) if behavior == "Isolated" => Ok(pattern),
        _ => Err(bad(JSON, wanted)),
    }
}

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<NumberedToken>,
    normalizer: Option<Step>,
    pre_tokenizer: Option<PreTokenizer>,
    model: BpeModel,
}

#[derive(Deserialize)]
struct Step {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    Split {
        pattern: Pattern,
        behavior: String,
        #[serde(default)]
        invert: bool,
    },
    ByteLevel {
        #[serde(default = "on")]
        add_prefix_space: bool,
        #[serde(default = "on")]
        use_regex: bool,
    },
    #[serde(other)]
    Unsupported,
}

const fn on() -> bool {
    true
}

#[derive(Deserialize)]
enum Pattern {
    Regex(String),
    String(#[expect(dead_code, reason = "read so that it can be refused by name")] String),
}

#[derive(Deserialize)]
struct BpeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Older files write a merge as one line, newer ones as a pair.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

impl Merge {
    fn pair(self) -> Option<(String, String)> {
        match self {
            Self::Pair(left, right) => Some((left, right)),
            Self::Line(line) => {
                let (left, right) = line.split_once(' ')?;
                (!right.contains(' ')).then(|| (left.to_owned(), right.to_owned()))
            }
        }
    }
}

#[derive(Deserialize)]
struct NumberedToken {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(Deserialize)]
struct ConfigFile {
    tokenizer_class: Option<String>,
    #[serde(default)]
    add_prefix_space: bool,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, AddedToken>,
}
