//! Requests and text, on the caller's thread.

use std::sync::Arc;

use contract::{CloneMode, EngineError, OpenContext, VoiceChoice};

use super::config::{Config, Speaker};
use super::sampling;
use super::voices::{VoiceSource, Voices};
use crate::{
    ModelError, ModelSource, PlannedClip, SegmentText, SpeechPlan, TextLogic, TextStream, Tokenizer, guard,
};

/// Before every text, as the model was trained.
const ROLE: &str = "<|im_start|>assistant\n";
const ROLE_END: &str = "<|im_end|>\n";
const INSTRUCTION: &str = "<|im_start|>user\n";
const AUTOMATIC: &str = "auto";
/// The language a dialect's speaker is asked for in.
const DIALECTS_OF: &str = "chinese";

/// Longest instruction, in bytes: it is prompt positions of every segment.
const INSTRUCTION_BYTES_MAX: usize = 4 << 10;
/// Longest transcript of a reference, in bytes.
const TRANSCRIPT_BYTES_MAX: usize = 4 << 10;

/// Tokenizer, voices and names of one checkpoint.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) name: String,
    pub(crate) config: Arc<Config>,
    pub(crate) voices: Voices,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Ids of [`ROLE`].
    pub(crate) role: Vec<u32>,
    role_end: Vec<u32>,
    /// Digits that each id spells.
    digits: Vec<u8>,
}

impl Text {
    pub(crate) fn open(
        source: &ModelSource,
        name: &str,
        config: Arc<Config>,
        voices: Voices,
    ) -> Result<Self, ModelError> {
        let tokenizer = Arc::new(open_tokenizer(source)?);
        let bad = |what: String| ModelError::Tokenizer { file: source.label("config.json"), what };
        if tokenizer.ids_end() as usize > config.talker.text_vocab {
            return Err(bad(format!(
                "text_vocab_size is {}, but the tokenizer has ids up to {}",
                config.talker.text_vocab,
                tokenizer.ids_end() - 1
            )));
        }
        let role = tokenizer.encode_template(ROLE);
        let role_end = tokenizer.encode_template(ROLE_END);
        for (ids, id, key) in [
            (&role, config.text.im_start, "im_start_token_id"),
            (&role_end, config.text.im_end, "im_end_token_id"),
        ] {
            let spelt = ids.first().map_or_else(|| "nothing".to_owned(), u32::to_string);
            if ids.first() != Some(&id) {
                return Err(bad(format!("{key} is {id}, but the tokenizer has {spelt} for it")));
            }
        }
        let digits = tokenizer.digits();
        Ok(Self { name: name.to_owned(), config, voices, tokenizer, role, role_end, digits })
    }

    /// Ids of the words spoken in a reference, as they stand in the prompt.
    ///
    /// # Errors
    /// A control token, or no words at all.
    pub(crate) fn transcript_ids(&self, transcript: &str) -> Result<Vec<u32>, EngineError> {
        if transcript.len() > TRANSCRIPT_BYTES_MAX {
            return Err(bad_reference(format!("its transcript is longer than {TRANSCRIPT_BYTES_MAX} bytes")));
        }
        if transcript.trim().is_empty() {
            return Err(bad_reference("its transcript is empty; give the words spoken in it".to_owned()));
        }
        self.refuse_control_tokens(transcript)?;
        // The whole string is tokenized at once, then cut: leading blanks may merge with the role's
        // line break, and the model was trained on what is left then.
        let ids = self.tokenizer.encode_template(&format!("{ROLE}{transcript}{ROLE_END}"));
        let end = ids.len().saturating_sub(self.role_end.len());
        Ok(ids.get(self.role.len()..end).unwrap_or_default().to_vec())
    }

    fn voice(&self, choice: &VoiceChoice) -> Result<(Option<PlannedClip>, Option<&Speaker>), EngineError> {
        let unknown =
            |voice: &str| EngineError::UnknownVoice { voice: voice.to_owned(), known: self.voices.names() };
        let voice = match choice {
            VoiceChoice::Default => {
                let default =
                    self.voices.default.ok_or_else(|| self.unsupported("voice", "give a reference clip"))?;
                &self.voices.list[default]
            }
            VoiceChoice::Named(name) => self.voices.find(name).ok_or_else(|| unknown(name))?,
            VoiceChoice::Reference { clip, mode } => return Ok((Some(self.reference(clip, *mode)?), None)),
        };
        Ok(match &voice.source {
            VoiceSource::Clip(clip) => (Some(self.reference(clip, CloneMode::Speaker)?), None),
            VoiceSource::Described => (None, None),
            VoiceSource::Speaker(index) => (None, self.config.talker.speakers.get(*index)),
        })
    }

    fn reference(&self, clip: &Arc<contract::Clip>, mode: CloneMode) -> Result<PlannedClip, EngineError> {
        let Some(encoders) = &self.config.encoders else {
            return Err(
                self.unsupported("reference", "this checkpoint has no encoder; name one of its voices")
            );
        };
        let rate = encoders.speaker.sample_rate;
        if clip.sample_rate as usize != rate {
            return Err(bad_reference(format!("it has {} Hz; resample it to {rate}", clip.sample_rate)));
        }
        let samples_max = guard::reference_samples_max(clip.sample_rate);
        if clip.samples.len() > samples_max {
            let seconds = samples_max / rate;
            return Err(bad_reference(format!("it is longer than {seconds} s; cut it")));
        }
        let samples_min = super::speaker::samples_min(&encoders.speaker);
        if clip.samples.len() < samples_min {
            return Err(bad_reference(format!(
                "it has {} samples; at least {samples_min} are needed",
                clip.samples.len()
            )));
        }
        if clip.samples.iter().any(|sample| !sample.is_finite()) {
            return Err(bad_reference("it holds a sample that is not a number".to_owned()));
        }
        if mode == CloneMode::InContext {
            let transcript = clip.transcript.as_deref().ok_or_else(|| {
                bad_reference(
                    "in-context cloning needs its transcript; give it, or clone the speaker only".to_owned(),
                )
            })?;
            self.transcript_ids(transcript)?;
        }
        Ok(PlannedClip { clip: Arc::clone(clip), mode })
    }

    /// Codec id of the language position.
    fn language(&self, asked: Option<&str>, speaker: Option<&Speaker>) -> Result<Option<u32>, EngineError> {
        let asked = asked.map(str::to_lowercase);
        let named = asked.as_deref().filter(|name| *name != AUTOMATIC);
        if named.is_none_or(|name| name == DIALECTS_OF)
            && let Some(dialect) = speaker.and_then(|speaker| speaker.dialect.as_deref())
        {
            return Ok(self.config.talker.language(dialect));
        }
        let Some(name) = named else { return Ok(None) };
        match self.config.talker.language(name) {
            Some(id) => Ok(Some(id)),
            None => Err(EngineError::UnknownLanguage {
                language: name.to_owned(),
                known: languages(&self.config),
            }),
        }
    }

    fn instructions(&self, asked: Option<&str>) -> Result<Arc<[u32]>, EngineError> {
        let asked = asked.unwrap_or_default();
        if asked.is_empty() {
            return Ok(Arc::new([]));
        }
        if !self.config.takes_instructions {
            return Err(
                self.unsupported("instructions", "leave them out, or load a checkpoint that takes them")
            );
        }
        if asked.len() > INSTRUCTION_BYTES_MAX {
            let value = format!("{} bytes long", asked.len());
            return Err(EngineError::FieldOutOfRange {
                field: "instructions",
                value,
                bound: "at most 4096 bytes",
            });
        }
        self.refuse_control_tokens(asked)?;
        Ok(self.tokenizer.encode_template(&format!("{INSTRUCTION}{asked}{ROLE_END}")).into())
    }

    fn amount(&self, ids: &[u32]) -> guard::Amount {
        let digits = |id: &u32| self.digits.get(*id as usize).map_or(0, |&digits| usize::from(digits));
        guard::Amount { ids: ids.len(), digits: ids.iter().map(digits).sum() }
    }

    fn refuse_control_tokens(&self, text: &str) -> Result<(), EngineError> {
        match self.tokenizer.control_token_in(text) {
            Some(token) => Err(EngineError::ControlToken { token: token.content.clone() }),
            None => Ok(()),
        }
    }

    fn unsupported(&self, field: &'static str, hint: &str) -> EngineError {
        EngineError::Unsupported { field, model: self.name.clone(), hint: hint.to_owned() }
    }
}

/// `tokenizer.json` where there is one, else the files it is made from.
fn open_tokenizer(source: &ModelSource) -> Result<Tokenizer, ModelError> {
    let text = |name: &str| {
        String::from_utf8(source.file(name)?.into_owned())
            .map_err(|_| ModelError::Tokenizer { file: source.label(name), what: "is not UTF-8".to_owned() })
    };
    let opened = if source.has("tokenizer.json") {
        Tokenizer::from_json(&text("tokenizer.json")?)
    } else {
        Tokenizer::from_vocab(&text("vocab.json")?, &text("merges.txt")?, &text("tokenizer_config.json")?)
    };
    opened.map_err(|error| ModelError::Tokenizer { file: source.label(error.file), what: error.what })
}

/// Names a request may give. Dialects follow from the speaker and are not offered.
pub(crate) fn languages(config: &Config) -> Vec<String> {
    let dialect = |name: &str| config.talker.speakers.iter().any(|s| s.dialect.as_deref() == Some(name));
    let named = config.talker.languages.iter().map(|(name, _)| name.clone());
    std::iter::once(AUTOMATIC.to_owned()).chain(named.filter(|name| !dialect(name))).collect()
}

/// Most frames one segment may take whatever its text.
pub(crate) fn frames_max(config: &Config) -> u32 {
    // The reference drops the frame of its last allowed token.
    u32::try_from(config.generation.tokens_max - 1).unwrap_or(u32::MAX)
}

impl TextLogic for Text {
    fn plan(&self, request: &OpenContext) -> Result<SpeechPlan, EngineError> {
        let (clip, speaker) = self.voice(&request.voice)?;
        let instructions = self.instructions(request.instructions.as_deref())?;
        Ok(SpeechPlan {
            layout: request.layout,
            sampling: sampling::resolve(&self.config.generation, &request.sampling)?,
            seed: request.sampling.seed,
            language: self.language(request.language.as_deref(), speaker)?,
            speaker: speaker.map(|speaker| speaker.id),
            clip,
            instructions,
        })
    }

    fn segment(&self) -> Box<dyn SegmentText> {
        Box::new(Segment(TextStream::new(Arc::clone(&self.tokenizer))))
    }

    fn frames_max(&self, text_ids: &[u32]) -> u32 {
        guard::frames_max(self.amount(text_ids), frames_max(&self.config))
    }

    fn frames_predicted(&self, text_ids: &[u32]) -> u32 {
        guard::frames_predicted(self.amount(text_ids), frames_max(&self.config))
    }
}

struct Segment(TextStream);

impl SegmentText for Segment {
    fn push(&mut self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.0.push(text).map_err(|token| EngineError::ControlToken { token })
    }

    fn release(&mut self) -> Vec<u32> {
        self.0.release()
    }

    fn end(&mut self) -> Vec<u32> {
        self.0.end()
    }

    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }
}

fn bad_reference(what: String) -> EngineError {
    EngineError::BadReference { what }
}
