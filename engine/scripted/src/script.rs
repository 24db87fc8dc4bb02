//! What a scripted engine does, read from TOML.

use serde::Deserialize;

/// Behaviour of the whole engine. Every key has a default; unknown keys are refused.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// Model name on the wire.
    pub model: String,
    /// Hertz of the samples it makes, 8,000 to 48,000.
    pub sample_rate: u32,
    /// Samples in one frame, 1 to 48,000.
    pub samples_per_frame: u32,
    /// Frames spoken for one character of text, above 0 and at most 100.
    pub frames_per_character: f64,
    /// Contexts that may be open at once, 1 to 100,000.
    pub open_max: u32,
    /// Text one context may hold unspoken, in characters.
    pub text_max: u64,
    /// Frames in the first, second... chunk; the last one repeats. Each 1 to 100.
    pub chunks: Vec<u32>,
    /// Audio made ahead of the listener's clock before the context rests, in milliseconds.
    pub lead_max_ms: u64,
    /// Milliseconds until the engine counts as ready.
    pub warm_up_ms: u64,
    /// What the model would obey, and text must not spell.
    pub control_tokens: Vec<String>,
    /// The voices and what happens to those who choose them. The first is the default.
    pub voices: Vec<VoiceScript>,
}

/// What one voice does.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct VoiceScript {
    pub name: String,
    /// Milliseconds from the first character to the first chunk.
    #[serde(default)]
    pub first_audio_ms: u64,
    /// Milliseconds it takes to make one frame; 0 makes all audio at once.
    #[serde(default)]
    pub frame_ms: f64,
    /// `open` answers with this error.
    #[serde(default)]
    pub refuse: Option<Refusal>,
    /// Retry hint of `refuse`, in milliseconds.
    #[serde(default)]
    pub retry_after_ms: u32,
    /// The context fails once this many frames have left.
    #[serde(default)]
    pub fail_after_frames: Option<u32>,
    /// The context rests once, for `stall_ms`, when this many frames have left.
    #[serde(default)]
    pub stall_after_frames: Option<u32>,
    #[serde(default)]
    pub stall_ms: u64,
    /// The context ends as capped once this many frames have left.
    #[serde(default)]
    pub cap_frames: Option<u32>,
}

/// Why `open` refuses.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    OutOfMemory,
    Overloaded,
    TooManyContexts,
    Unavailable,
}

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("script is not valid: {0}")]
    Parse(#[from] toml::de::Error),
    #[error("script key {key} must be {bound}")]
    Bound { key: &'static str, bound: &'static str },
}

impl Default for Script {
    fn default() -> Self {
        let voice = |name: &str| VoiceScript {
            name: name.to_owned(),
            first_audio_ms: 40,
            frame_ms: 8.0,
            refuse: None,
            retry_after_ms: 0,
            fail_after_frames: None,
            stall_after_frames: None,
            stall_ms: 0,
            cap_frames: None,
        };
        let steady = voice("steady");
        let instant = VoiceScript { first_audio_ms: 0, frame_ms: 0.0, ..voice("instant") };
        let failing = VoiceScript { fail_after_frames: Some(6), ..voice("failing") };
        let stalling = VoiceScript { stall_after_frames: Some(6), stall_ms: 800, ..voice("stalling") };
        let capped = VoiceScript { cap_frames: Some(10), ..voice("capped") };
        let overloaded =
            VoiceScript { refuse: Some(Refusal::Overloaded), retry_after_ms: 1_500, ..voice("overloaded") };
        Self {
            model: "tts-scripted".to_owned(),
            sample_rate: 24_000,
            samples_per_frame: 1_920,
            frames_per_character: 0.8,
            open_max: 4_096,
            text_max: 200_000,
            chunks: vec![2, 4, 10],
            lead_max_ms: 6_000,
            warm_up_ms: 0,
            control_tokens: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned).to_vec(),
            voices: vec![steady, instant, failing, stalling, capped, overloaded],
        }
    }
}

impl Script {
    /// Parses and checks a script.
    ///
    /// # Errors
    /// [`ScriptError`] naming the key at fault.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let script: Self = toml::from_str(text)?;
        script.check()?;
        Ok(script)
    }

    pub(crate) fn voice(&self, name: &str) -> Option<usize> {
        self.voices.iter().position(|v| v.name == name)
    }

    /// Frames of the chunk with this index.
    pub(crate) fn chunk_frames(&self, index: usize) -> u32 {
        let last = self.chunks.last().copied().unwrap_or(1);
        self.chunks.get(index).copied().unwrap_or(last)
    }

    fn check(&self) -> Result<(), ScriptError> {
        let bounds = [
            ("sample_rate", (8_000..=48_000).contains(&self.sample_rate), "8000 to 48000"),
            ("samples_per_frame", (1..=48_000).contains(&self.samples_per_frame), "1 to 48000"),
            (
                "frames_per_character",
                self.frames_per_character > 0.0 && self.frames_per_character <= 100.0,
                "above 0, at most 100",
            ),
            ("open_max", (1..=100_000).contains(&self.open_max), "1 to 100000"),
            ("chunks", !self.chunks.is_empty(), "at least one length"),
            ("chunks", self.chunks.iter().all(|c| (1..=100).contains(c)), "lengths of 1 to 100 frames"),
            ("voices", !self.voices.is_empty(), "at least one voice"),
            (
                "voices.frame_ms",
                self.voices.iter().all(|v| (0.0..=60_000.0).contains(&v.frame_ms)),
                "0 to 60000",
            ),
        ];
        match bounds.into_iter().find(|(_, holds, _)| !holds) {
            Some((key, _, bound)) => Err(ScriptError::Bound { key, bound }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_script_is_the_default() {
        assert_eq!(Script::parse("").expect("empty is valid"), Script::default());
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = Script::parse("first_audio = 3").expect_err("unknown key");
        assert!(error.to_string().contains("first_audio"), "{error}");
    }

    #[test]
    fn bounds_are_checked() {
        let error = Script::parse("chunks = []").expect_err("no chunk length");
        assert!(error.to_string().contains("chunks"), "{error}");
    }
}
