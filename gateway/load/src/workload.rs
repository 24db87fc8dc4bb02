//! What is said: lists of utterances, our own sentences in the shapes published benchmarks use.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

/// Utterances to draw from.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub name: String,
    pub utterances: Vec<Utterance>,
}

/// One line of a workload file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Utterance {
    pub text: String,
    /// Spoken length; what `--exact-frames` and the simulator go by. Without it, [`SECONDS_PER_WORD`].
    #[serde(default)]
    pub seconds: Option<f64>,
}

/// The published sets speak 18.7 words in 7.8 s.
pub const SECONDS_PER_WORD: f64 = 7.8 / 18.7;

/// Bytes of a file that are read.
const BYTES_MAX: u64 = 16 << 20;
/// Longest utterance taken.
const SECONDS_MAX: f64 = 600.0;

/// The workloads inside the binary.
const BUILT_IN: [(&str, &str); 4] = [
    ("agent-turns", include_str!("../../../config/workloads/agent-turns.jsonl")),
    ("libritts", include_str!("../../../config/workloads/libritts.jsonl")),
    ("read-out", include_str!("../../../config/workloads/read-out.jsonl")),
    ("seed-tts", include_str!("../../../config/workloads/seed-tts.jsonl")),
];

/// A workload that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error("{name:?} is neither a workload ({known}) nor a file: {source}", known = names().join(", "))]
    Unknown { name: String, source: std::io::Error },
    #[error("line {line} of workload {name}: {what}")]
    Line { name: String, line: usize, what: String },
    #[error("workload {0} is larger than {mib} MiB; a few hundred lines are enough", mib = BYTES_MAX >> 20)]
    Large(String),
    #[error("workload {0} holds no utterance")]
    Empty(String),
}

/// Names of the built-in workloads.
#[must_use]
pub fn names() -> Vec<&'static str> {
    BUILT_IN.iter().map(|(name, _)| *name).collect()
}

impl Workload {
    /// A built-in workload by name, or a file of one JSON object a line.
    ///
    /// # Errors
    /// [`WorkloadError`], naming the line.
    pub fn load(name: &str) -> Result<Self, WorkloadError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        let unknown = |source| WorkloadError::Unknown { name: name.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(unknown)?;
        let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unknown)?;
        if read as u64 > BYTES_MAX {
            return Err(WorkloadError::Large(name.to_owned()));
        }
        let stem = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
        Self::parse(&stem, &text)
    }

    /// Reads one JSON object a line; blank lines are passed over.
    ///
    /// # Errors
    /// As [`Workload::load`].
    pub fn parse(name: &str, text: &str) -> Result<Self, WorkloadError> {
        let mut utterances = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| WorkloadError::Line { name: name.to_owned(), line: index + 1, what };
            let utterance: Utterance =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if !utterance.text.chars().any(char::is_alphanumeric) {
                return Err(wrong("text needs a letter or a digit".to_owned()));
            }
            if utterance.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds <= SECONDS_MAX)) {
                return Err(wrong(format!("seconds must be above 0 and at most {SECONDS_MAX}")));
            }
            utterances.push(utterance);
        }
        if utterances.is_empty() {
            return Err(WorkloadError::Empty(name.to_owned()));
        }
        Ok(Self { name: name.to_owned(), utterances })
    }
}

impl Utterance {
    #[must_use]
    pub fn words(&self) -> usize {
        self.text.split_whitespace().count()
    }

    /// Spoken length in seconds.
    #[must_use]
    pub fn spoken_s(&self) -> f64 {
        self.seconds.unwrap_or(self.words().max(1) as f64 * SECONDS_PER_WORD)
    }

    /// Frames of `frame_s` seconds that hold it, at least one.
    #[must_use]
    pub fn frames(&self, frame_s: f64) -> u32 {
        (self.spoken_s() / frame_s).round().clamp(1.0, 100_000.0) as u32
    }

    /// The text as a language model writes it: pieces of about one id, which is a word or, of a long
    /// word, four characters.
    #[must_use]
    pub fn pieces(&self) -> Vec<String> {
        let mut pieces: Vec<String> = Vec::new();
        let mut length = 0;
        for (index, character) in self.text.chars().enumerate() {
            if index == 0 || character.is_whitespace() || length >= 4 {
                pieces.push(String::new());
                length = 0;
            }
            if let Some(piece) = pieces.last_mut() {
                piece.push(character);
            }
            length += usize::from(!character.is_whitespace());
        }
        pieces
    }
}
