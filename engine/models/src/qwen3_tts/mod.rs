//! Qwen3-TTS: Base, CustomVoice and VoiceDesign checkpoints of any size.
//!
//! Facts: the published configs and the reference package (PyPI qwen-tts 0.1.1). A talker (Qwen3
//! decoder) draws the first code of each frame, a depth transformer the others; the next input is the sum
//! of the frame's embeddings and the next text id's.

mod class_defaults;
mod codec;
mod config;
mod encode;
mod placed;
mod predictor;
mod prompt;
mod reference_codes;
mod sampling;
mod sizes;
mod speaker;
mod talker;
mod text;
mod voices;

use std::sync::Arc;

use contract::{Layout, ModelInfo};
use device::Backend;

use crate::json::Document;
use crate::{
    Capacity, Inspection, MemoryNeed, Model, ModelError, ModelSource, Part, PlacedModel, StageFacts,
    TextLogic, guard, licence,
};
use config::{CODEC_FOLDER, Config, Variant};
use placed::Placed;
use text::Text;
use voices::Voices;

/// `model_type` of these checkpoints.
pub const MODEL_TYPE: &str = "qwen3_tts";

/// Chunk lengths that are captured; shorter chunks are padded (DESIGN.md section 4).
const CODEC_LENGTHS: [u32; 3] = [2, 4, 10];
/// Frames in which end-of-speech is never drawn; fixed in the reference's generation.
const FRAMES_MIN: u32 = 2;

/// A checkpoint, opened.
pub struct Qwen3Tts {
    source: ModelSource,
    text: Arc<Text>,
    info: ModelInfo,
    facts: StageFacts,
    memory: MemoryNeed,
}

impl Qwen3Tts {
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor at fault.
    pub(crate) fn open(source: ModelSource, file: &Document, name: &str) -> Result<Self, ModelError> {
        let config = Arc::new(Config::read(&source, file)?);
        config::check_variant(&source, file, config.variant)?;
        let memory = placed::need(&source, &config)?;
        let voices = Voices::read(&source, &config)?;
        let text = Text::open(&source, name, config, voices)?;
        let facts = facts(&text.config);
        let info = info(&source, &text, &facts);
        Ok(Self { source, text: Arc::new(text), info, facts, memory })
    }
}

impl Model for Qwen3Tts {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn facts(&self) -> &StageFacts {
        &self.facts
    }

    fn text(&self) -> Arc<dyn TextLogic> {
        Arc::clone(&self.text) as Arc<dyn TextLogic>
    }

    fn inspect(&self) -> Result<Inspection, ModelError> {
        let files = self.source.weights("")?;
        let codec = self.source.weights(CODEC_FOLDER)?;
        let part = |name: &str, files: &device::Checkpoint, prefix: &str| {
            let mut part = Part { name: name.to_owned(), tensors: 0, parameters: 0 };
            for tensor in files.names().filter(|tensor| tensor.starts_with(prefix)) {
                part.tensors += 1;
                part.parameters += files.shape(tensor)?.iter().map(|&axis| axis as u64).product::<u64>();
            }
            Ok::<_, ModelError>(part)
        };
        let parts = [
            part("talker and code predictor", &files, "talker.")?,
            part("speaker encoder", &files, "speaker_encoder.")?,
            part("codec decoder", &codec, "decoder.")?,
            part("codec encoder", &codec, "encoder.")?,
        ];
        Ok(Inspection {
            info: self.info.clone(),
            variant: match self.text.config.variant {
                Variant::Base => "base",
                Variant::CustomVoice => "custom_voice",
                Variant::VoiceDesign => "voice_design",
            }
            .to_owned(),
            parts: parts.into_iter().filter(|part| part.tensors > 0).collect(),
            memory: self.memory,
            positions_max: self.facts.positions_max,
        })
    }

    fn memory(&self) -> MemoryNeed {
        self.memory
    }

    fn place(
        self: Box<Self>,
        backend: &mut dyn Backend,
        capacity: Capacity,
    ) -> Result<Box<dyn PlacedModel>, ModelError> {
        Ok(Box::new(Placed::new(&self.source, self.text, backend, capacity)?))
    }
}

fn facts(config: &Config) -> StageFacts {
    let bounded = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    StageFacts {
        codec_lengths: CODEC_LENGTHS.to_vec(),
        look_ahead: 0,
        sample_rate: bounded(config.codec.sample_rate),
        samples_per_frame: bounded(config.codec.samples_per_frame),
        code_groups: bounded(config.talker.groups),
        prompts_max: bounded(talker::PROMPTS_MAX),
        rows_per_context: 1,
        state_grows: false,
        positions_max: bounded(config.talker.positions_max),
        frames_max: text::frames_max(config),
    }
}

fn info(source: &ModelSource, text: &Text, facts: &StageFacts) -> ModelInfo {
    let config = &text.config;
    ModelInfo {
        name: text.name.clone(),
        family: MODEL_TYPE.to_owned(),
        licence: licence::of(source),
        sample_rate: facts.sample_rate,
        samples_per_frame: facts.samples_per_frame,
        layouts: vec![Layout::Streamed, Layout::Whole],
        languages: text::languages(config),
        voices: text.voices.list.iter().map(|voice| voice.info.clone()).collect(),
        default_voice: text.voices.default,
        takes_instructions: config.takes_instructions,
        takes_reference: config.encoders.is_some(),
        sampling: sampling::defaults(&config.generation),
        segment_characters_max: guard::segment_characters_max(facts.frames_max, facts.positions_max),
    }
}
