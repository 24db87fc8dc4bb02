//! The model on a device: rows to launch inputs, outputs to frames and samples.

use std::sync::Arc;

use contract::{CloneMode, EngineError, Stage};
use device::{Backend, HostTensor, Program};

use super::codec::Codec;
use super::config::{CODEC_FOLDER, Config};
use super::encode::{CODES, ClipJob, EncodeFacts, SPEAKER};
use super::reference_codes::{self, ReferenceCodesWeights};
use super::speaker::{self, SpeakerWeights};
use super::talker::{self, Talker};
use super::text::Text;
use super::{CODEC_LENGTHS, FRAMES_MIN, prompt};
use crate::weights::Loader;
use crate::{
    Capacity, CodecRow, DecodeRow, EncodeJob, EncodeProgram, FrameOutcome, MemoryNeed, ModelError,
    ModelSource, NextText, PlacedModel, PlannedClip, PrefillRow, Prompt, RowSampling, SpeechPlan,
    StageInputs, VoiceFeatures,
};

/// A checkpoint whose weights are on a device.
pub(crate) struct Placed {
    config: Arc<Config>,
    text: Arc<Text>,
    talker: Talker,
    codec: Codec,
    encoders: Option<Encoders>,
    positions_max: usize,
}

struct Encoders {
    speaker: SpeakerWeights,
    codes: ReferenceCodesWeights,
}

/// Loads everything; with `None` for the backend only checks and adds up.
fn load(
    source: &ModelSource,
    config: &Config,
    capacity: &Capacity,
    mut backend: Option<&mut dyn Backend>,
) -> Result<(Talker, Codec, Option<Encoders>, MemoryNeed), ModelError> {
    let files = source.weights("")?;
    let mut loader = match backend.as_deref_mut() {
        Some(backend) => Loader::new(&files, backend),
        None => Loader::dry(&files),
    };
    let talker = Talker::load(&mut loader, config, capacity)?;
    let speaker = match &config.encoders {
        Some(encoders) => Some(SpeakerWeights::load(&mut loader, &encoders.speaker)?),
        None => None,
    };
    let mut need = loader.need();

    let files = source.weights(CODEC_FOLDER)?;
    let mut loader = match backend {
        Some(backend) => Loader::new(&files, backend),
        None => Loader::dry(&files),
    };
    let codec = Codec::load(&mut loader, config)?;
    let encoders = match (&config.encoders, speaker) {
        (Some(encoders), Some(speaker)) => {
            Some(Encoders { speaker, codes: ReferenceCodesWeights::load(&mut loader, &encoders.codes)? })
        }
        _ => None,
    };
    need.weights_bytes += loader.need().weights_bytes;
    need.slot_bytes += loader.need().slot_bytes;
    Ok((talker, codec, encoders, need))
}

/// Checks that every tensor is there in its shape, and adds up.
pub(crate) fn need(source: &ModelSource, config: &Config) -> Result<MemoryNeed, ModelError> {
    let capacity = Capacity { slots: 1, pages: 2, page_len: 1, positions_max: 1 };
    Ok(load(source, config, &capacity, None)?.3)
}

impl Placed {
    pub(crate) fn new(
        source: &ModelSource,
        text: Arc<Text>,
        backend: &mut dyn Backend,
        capacity: Capacity,
    ) -> Result<Self, ModelError> {
        let config = Arc::clone(&text.config);
        let (talker, codec, encoders, _) = load(source, &config, &capacity, Some(backend))?;
        let positions_max = talker::positions_max(&config, &capacity);
        Ok(Self { config, text, talker, codec, encoders, positions_max })
    }

    fn next_id(&self, text: NextText) -> i32 {
        match text {
            NextText::Id(id) => id as i32,
            NextText::End => self.config.text.end as i32,
            NextText::Padding => self.config.text.pad as i32,
        }
    }

    fn page_line(&self, pages: &[u32], table: &mut Vec<i32>) {
        let end = table.len() + self.talker.pages_max();
        table.extend(pages.iter().take(self.talker.pages_max()).map(|&page| page as i32));
        table.resize(end, 0);
    }
}

/// Inputs every frame needs, in the order both programs declare them.
struct FrameRows {
    slots: Vec<i32>,
    step: Vec<i32>,
    allow_end: Vec<i32>,
    head: Vec<f32>,
    sub: Vec<f32>,
    seeds: Vec<i32>,
    page_table: Vec<i32>,
}

impl FrameRows {
    /// With room for so many rows.
    fn of(rows: usize, pages_max: usize) -> Self {
        let column = |cols: usize| Vec::with_capacity(rows * cols);
        Self {
            slots: column(1),
            step: column(1),
            allow_end: column(1),
            head: Vec::with_capacity(rows * 4),
            sub: Vec::with_capacity(rows * 4),
            seeds: column(2),
            page_table: column(pages_max),
        }
    }

    fn push(&mut self, slot: u32, step: u32, allow_end: bool, sampling: &RowSampling, seed: u64) {
        self.slots.push(slot as i32);
        self.step.push(step as i32);
        self.allow_end.push(i32::from(allow_end && step >= FRAMES_MIN));
        self.head.extend(sampling.head);
        self.sub.extend(sampling.sub);
        self.seeds.extend([seed as u32 as i32, (seed >> u32::BITS) as u32 as i32]);
    }

    fn into_inputs(self) -> Vec<HostTensor> {
        vec![
            HostTensor::I32(self.slots),
            HostTensor::I32(self.step),
            HostTensor::I32(self.allow_end),
            HostTensor::F32(self.head),
            HostTensor::F32(self.sub),
            HostTensor::I32(self.seeds),
            HostTensor::I32(self.page_table),
        ]
    }
}

impl PlacedModel for Placed {
    fn program(&self, stage: Stage, length: u32) -> Result<Program, ModelError> {
        match stage {
            Stage::Codec if length > 0 => Ok(self.codec.program(&self.config, length as usize)),
            Stage::Decode => Ok(self.talker.decode_program(&self.config)),
            Stage::Prefill => Ok(self.talker.prefill_program(&self.config)),
            Stage::Codec | Stage::Encode => Err(no_program(stage, length)),
        }
    }

    fn text_ids_needed(&self, plan: &SpeechPlan, voice: Option<&VoiceFeatures>) -> Option<usize> {
        prompt::text_ids_needed(plan, voice)
    }

    fn prompt(
        &self,
        plan: &SpeechPlan,
        voice: Option<&VoiceFeatures>,
        text_ids: &[u32],
        over: bool,
    ) -> Result<Prompt, EngineError> {
        let prompt = prompt::lay_out(&self.config, &self.text.role, plan, voice, text_ids, over)?;
        if prompt.positions() + FRAMES_MIN as usize >= self.positions_max {
            return Err(EngineError::FieldOutOfRange {
                field: "text",
                value: format!("{} prompt positions with its reference", prompt.positions()),
                bound: "short enough to leave room for speech",
            });
        }
        Ok(prompt)
    }

    fn prefill_inputs(&self, prompts: &[PrefillRow<'_>], riders: &[DecodeRow<'_>]) -> StageInputs {
        let groups = self.config.talker.groups;
        let width = self.config.talker.shape.hidden;
        let batch = prompts.len() + riders.len();
        let positions: usize = prompts.iter().map(|row| row.prompt.positions()).sum();
        let tokens = positions + riders.len();
        let mut frame = FrameRows::of(batch, self.talker.pages_max());
        let (mut last, mut speakers) = (Vec::with_capacity(batch), Vec::new());
        let column = || Vec::with_capacity(tokens);
        let (mut text_ids, mut speaker_rows, mut positions, mut owner) =
            (column(), column(), column(), column());
        let mut codes = Vec::with_capacity(tokens * groups);
        for (index, row) in prompts.iter().enumerate() {
            frame.push(row.slot, 0, row.allow_end, &row.sampling, row.seed);
            self.page_line(row.pages, &mut frame.page_table);
            // Only those that speak in what is computed bring a line.
            let spoken = row.prompt.speaker_at.filter(|&at| at >= row.from);
            let speaker = row.prompt.speaker.as_ref().filter(|_| spoken.is_some());
            let line = speaker.map_or(-1, |vector| {
                speakers.extend_from_slice(&vector[..width.min(vector.len())]);
                speakers.resize(speakers.len().next_multiple_of(width), 0.0);
                (speakers.len() / width) as i32 - 1
            });
            let from = row.from.min(row.prompt.positions().saturating_sub(1));
            text_ids.extend_from_slice(&row.prompt.text_ids[from..]);
            codes.extend_from_slice(&row.prompt.codes[from * groups..]);
            for position in from..row.prompt.positions() {
                speaker_rows.push(if spoken == Some(position) { line } else { -1 });
                positions.push(position as i32);
                owner.push(index as i32);
            }
            last.push(positions.len() as i32 - 1);
        }
        let mut newest_rows = vec![-1; positions.len()];
        newest_rows.reserve(riders.len());
        for (index, row) in (prompts.len()..).zip(riders) {
            frame.push(row.slot, row.step, row.allow_end, &row.sampling, row.seed);
            self.page_line(row.pages, &mut frame.page_table);
            text_ids.push(self.next_id(row.text));
            newest_rows.push(index as i32);
            speaker_rows.push(-1);
            positions.push(row.position as i32);
            owner.push(index as i32);
            last.push(positions.len() as i32 - 1);
        }
        let tokens = positions.len();
        codes.resize(tokens * groups, -1);
        let mut inputs = frame.into_inputs();
        inputs.extend([HostTensor::I32(last), HostTensor::F32(speakers)]);
        inputs.extend([text_ids, codes, newest_rows, speaker_rows, positions, owner].map(HostTensor::I32));
        StageInputs { rows: batch, tokens, inputs }
    }

    fn decode_inputs(&self, rows: &[DecodeRow<'_>]) -> StageInputs {
        let mut frame = FrameRows::of(rows.len(), self.talker.pages_max());
        let column = || Vec::with_capacity(rows.len());
        let (mut positions, mut owner, mut text_ids) = (column(), column(), column());
        for (index, row) in rows.iter().enumerate() {
            frame.push(row.slot, row.step, row.allow_end, &row.sampling, row.seed);
            self.page_line(row.pages, &mut frame.page_table);
            positions.push(row.position as i32);
            owner.push(index as i32);
            text_ids.push(self.next_id(row.text));
        }
        let mut inputs = frame.into_inputs();
        inputs.extend([positions, owner, text_ids].map(HostTensor::I32));
        StageInputs { rows: rows.len(), tokens: 0, inputs }
    }

    fn codec_inputs(&self, rows: &[CodecRow<'_>], length: u32) -> StageInputs {
        let groups = self.config.talker.groups;
        let full = length as usize * groups;
        let (mut slots, mut start, mut valid) = (Vec::new(), Vec::new(), Vec::new());
        let mut codes = Vec::with_capacity(rows.len() * full);
        for (index, row) in rows.iter().enumerate() {
            let given = row.codes.len().min(full);
            slots.push(row.slot as i32);
            start.push(row.start as i32);
            valid.push((given / groups) as i32);
            codes.extend_from_slice(&row.codes[..given]);
            // Past the valid frames no code adds anything; causality keeps them out of what is valid.
            codes.resize((index + 1) * full, -1);
        }
        StageInputs {
            rows: rows.len(),
            tokens: 0,
            inputs: [slots, start, valid, codes].map(HostTensor::I32).into(),
        }
    }

    fn frames<'a>(&self, outputs: &'a [HostTensor]) -> Result<Vec<FrameOutcome<'a>>, EngineError> {
        let [HostTensor::I32(codes)] = outputs else { return Err(unexpected("a frame")) };
        let end = self.config.talker.codec.end as i32;
        let rows = codes.chunks_exact(self.config.talker.groups);
        Ok(rows.map(|row| FrameOutcome { codes: row, end: row[0] == end }).collect())
    }

    fn samples(&self, frames: u32) -> usize {
        frames as usize * self.config.codec.samples_per_frame
    }

    fn encode(&self, planned: &PlannedClip) -> Result<Box<dyn EncodeJob>, EngineError> {
        if self.encoders.is_none() {
            return Err(EngineError::BadReference { what: "this checkpoint has no encoder".to_owned() });
        }
        let transcript_ids = match (planned.mode, &planned.clip.transcript) {
            (CloneMode::InContext, Some(transcript)) => self.text.transcript_ids(transcript)?,
            (CloneMode::InContext, None) => {
                return Err(EngineError::BadReference { what: "it has no transcript".to_owned() });
            }
            (CloneMode::Speaker, _) => Vec::new(),
        };
        let facts = EncodeFacts {
            groups: self.config.talker.groups,
            codebook: self.config.codec.codebook,
            speaker_width: self.config.talker.shape.hidden,
            codec_lengths: CODEC_LENGTHS.to_vec(),
            codec_states: self.codec.states().to_vec(),
        };
        Ok(Box::new(ClipJob::new(facts, planned.clone(), transcript_ids)))
    }

    fn encode_program(&self, program: EncodeProgram) -> Result<Program, ModelError> {
        let missing = || no_program(Stage::Encode, program.length);
        let (Some(weights), Some(config)) = (&self.encoders, &self.config.encoders) else {
            return Err(missing());
        };
        let samples = program.length as usize;
        match program.part {
            SPEAKER => Ok(speaker::program(&config.speaker, &weights.speaker, samples)),
            CODES => Ok(reference_codes::program(&config.codes, &weights.codes, samples)),
            _ => Err(missing()),
        }
    }

    fn positions_max(&self) -> u32 {
        u32::try_from(self.positions_max).unwrap_or(u32::MAX)
    }
}

fn no_program(stage: Stage, length: u32) -> ModelError {
    ModelError::NoProgram { stage: stage.name(), length, captured: CODEC_LENGTHS.to_vec() }
}

fn unexpected(what: &str) -> EngineError {
    EngineError::Internal { what: format!("{what} has outputs of another shape than its program's") }
}
