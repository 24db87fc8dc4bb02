//! Text to ids: byte-level BPE as the checkpoints' authors run it (normalise, split by a pattern, merge
//! bytes), with one rule of our own so that streams are bounded: see [`PIECE_CHARS_MAX`].

mod bytes;
mod clusters;
mod files;
mod pieces;

use contract::ControlTokens;
use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;
use tokenizers::utils::SysRegex;

pub(crate) use clusters::Clusters;
pub(crate) use pieces::{More, settle};

use bytes::ByteAlphabet;

/// Longest window, in characters, that one piece of text and the blanks after it are looked at in.
///
/// The split pattern lets a word, a run of signs or a run of blanks be of any length, and its ids depend
/// on where it ends. A run that has not ended within this window is cut there, always at the same place
/// whatever the deltas were; shorter ones, all of real language, get exactly the checkpoint's ids. The
/// same bound holds for a base character and the combining marks on it.
pub const PIECE_CHARS_MAX: usize = 1024;

/// A tokenizer file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct TokenizerError {
    pub file: &'static str,
    pub what: String,
}

/// A string of the checkpoint's that stands for one id and steers the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlToken {
    pub content: String,
    pub id: u32,
}

/// Byte-level BPE of one checkpoint. Shared by all threads.
pub struct Tokenizer {
    model: BPE,
    split: SysRegex,
    /// Whether text is brought to NFC first.
    composes: bool,
    alphabet: ByteAlphabet,
    /// Longest first, then by content.
    control: Vec<ControlToken>,
    spellings: ControlTokens,
}

impl Tokenizer {
    /// From the text of `tokenizer.json`.
    ///
    /// # Errors
    /// Broken JSON, or a pipeline other than optional NFC, one split pattern and byte-level BPE.
    pub fn from_json(json: &str) -> Result<Self, TokenizerError> {
        Self::assemble(files::read_json(json)?)
    }

    /// From the texts of `vocab.json`, `merges.txt` and `tokenizer_config.json`, for checkpoints without
    /// a `tokenizer.json`: the Qwen2 pipeline that `tokenizer_class` names.
    ///
    /// # Errors
    /// Broken files, merges that do not fit the vocabulary, or another tokenizer class.
    pub fn from_vocab(vocab: &str, merges: &str, config: &str) -> Result<Self, TokenizerError> {
        Self::assemble(files::read_vocab(vocab, merges, config)?)
    }

    fn assemble(parts: files::Parts) -> Result<Self, TokenizerError> {
        let bad = |what: String| TokenizerError { file: parts.file, what };
        let alphabet = ByteAlphabet::new();
        let missing = alphabet.symbols().find(|symbol| !parts.vocab.contains_key(*symbol));
        if let Some(symbol) = missing {
            return Err(bad(format!("byte symbol {symbol:?} is not in the vocabulary")));
        }
        let split = SysRegex::new(&parts.pattern).map_err(|error| bad(format!("split pattern: {error}")))?;
        let mut control = parts.control;
        control.sort_by(|a, b| b.content.len().cmp(&a.content.len()).then_with(|| a.content.cmp(&b.content)));
        if control.iter().any(|token| token.content.is_empty()) {
            return Err(bad("an added token is empty".to_owned()));
        }
        let model = BPE::builder()
            .vocab_and_merges(parts.vocab, parts.merges)
            .cache_capacity(WORD_CACHE_MAX)
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let spellings = ControlTokens::new(control.iter().map(|token| token.content.clone()).collect());
        let tokenizer = Self { model, split, composes: parts.composes, alphabet, control, spellings };
        let reached = tokenizer.control.iter().find(|t| tokenizer.encode(&t.content).contains(&t.id));
        if let Some(token) = reached {
            return Err(bad(format!("plain text reaches the control token {}", token.content)));
        }
        Ok(tokenizer)
    }

    /// Ids of plain text. Control tokens in it are read as the characters they are, never obeyed; refuse
    /// them before with [`Tokenizer::control_token_in`].
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut clusters = Clusters::new(self.composes);
        let mut composed = String::with_capacity(text.len());
        clusters.push(text, &mut composed);
        clusters.finish(&mut composed);
        let mut ids = Vec::new();
        settle(&self.split, &composed, More::Never, |piece| self.merge(piece, &mut ids));
        ids
    }

    /// Ids of a string of the model's own making, in which control tokens are obeyed: the first that
    /// starts, the longest of those that start there. Never for text of others.
    #[must_use]
    pub fn encode_template(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while let Some((start, token)) = self.first_control(rest) {
            ids.extend(self.encode(&rest[..start]));
            ids.push(token.id);
            rest = &rest[start + token.content.len()..];
        }
        ids.extend(self.encode(rest));
        ids
    }

    /// The first control token in `text`.
    #[must_use]
    pub fn control_token_in(&self, text: &str) -> Option<&ControlToken> {
        self.first_control(text).map(|(_, token)| token)
    }

    /// Longest first.
    #[must_use]
    pub fn control_tokens(&self) -> &[ControlToken] {
        &self.control
    }

    /// Their spellings, for those who look for them in text.
    #[must_use]
    pub fn control_spellings(&self) -> &ControlTokens {
        &self.spellings
    }

    /// Id of a control token.
    #[must_use]
    pub fn control_id(&self, content: &str) -> Option<u32> {
        self.control.iter().find(|token| token.content == content).map(|token| token.id)
    }

    /// One more than the largest id.
    #[must_use]
    pub fn ids_end(&self) -> u32 {
        let words = self.model.get_vocab().into_values().max().map_or(0, |id| id + 1);
        self.control.iter().map(|token| token.id + 1).max().unwrap_or(0).max(words)
    }

    /// For each id the digits it spells: other scripts' digits are of several bytes, and of several ids.
    pub(crate) fn digits(&self) -> Vec<u8> {
        let mut digits = vec![0; self.ids_end() as usize];
        for (id, digits) in (0..).zip(&mut digits) {
            let spelling = self.model.id_to_token(id).unwrap_or_default();
            let count = spelling.bytes().filter(u8::is_ascii_digit).count();
            *digits = u8::try_from(count).unwrap_or(u8::MAX);
        }
        digits
    }

    pub(crate) fn composes(&self) -> bool {
        self.composes
    }

    pub(crate) fn split(&self) -> &SysRegex {
        &self.split
    }

    /// Appends the ids of one piece the split pattern gave.
    pub(crate) fn merge(&self, piece: &str, ids: &mut Vec<u32>) {
        let symbols = self.alphabet.spell(piece);
        // It fails only for an unknown-token that is not in the vocabulary, and loading admits none.
        let tokens = self.model.tokenize(&symbols).expect("byte-level BPE knows every byte");
        ids.extend(tokens.iter().map(|token| token.id));
    }

    fn first_control(&self, text: &str) -> Option<(usize, &ControlToken)> {
        let (start, found) = self.spellings.first_in(text)?;
        Some((start, self.control.iter().find(|token| token.content == found)?))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("control", &self.control.len()).finish_non_exhaustive()
    }
}

/// Words each thread remembers the merges of.
const WORD_CACHE_MAX: usize = 8192;
