//! Encoding a clip: speaker vector, reference codes, and the codec primed with those codes.

use std::sync::Arc;

use contract::{CloneMode, EngineError};
use device::{HostTensor, StateId};

use crate::program::Reference;
use crate::{EncodeJob, EncodeProgram, EncodeWork, PlannedClip, VoiceFeatures};

/// Parts of [`EncodeProgram`].
pub(crate) const SPEAKER: u32 = 0;
pub(crate) const CODES: u32 = 1;

/// What a job must know of the model.
#[derive(Clone, Debug)]
pub(crate) struct EncodeFacts {
    pub(crate) groups: usize,
    pub(crate) codebook: usize,
    pub(crate) speaker_width: usize,
    /// Captured codec lengths, ascending.
    pub(crate) codec_lengths: Vec<u32>,
    pub(crate) codec_states: Vec<StateId>,
}

/// One clip's encoding.
pub(crate) struct ClipJob {
    facts: EncodeFacts,
    planned: PlannedClip,
    transcript_ids: Vec<u32>,
    step: Step,
    speaker: Vec<f32>,
    codes: Vec<i32>,
    image: Vec<(StateId, HostTensor)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Speaker,
    Codes,
    /// Frames primed so far.
    Prime(usize),
    Image,
    Done,
}

impl ClipJob {
    pub(crate) fn new(facts: EncodeFacts, planned: PlannedClip, transcript_ids: Vec<u32>) -> Self {
        Self {
            facts,
            planned,
            transcript_ids,
            step: Step::Speaker,
            speaker: Vec::new(),
            codes: Vec::new(),
            image: Vec::new(),
        }
    }

    fn launch(&self, part: u32) -> EncodeWork {
        let samples = self.planned.clip.samples.clone();
        let length = u32::try_from(samples.len()).unwrap_or(u32::MAX);
        EncodeWork::Launch { program: EncodeProgram { part, length }, inputs: vec![HostTensor::F32(samples)] }
    }

    /// The longest captured chunk that the frames left can fill, or the shortest that holds them.
    fn prime(&self, from: usize) -> EncodeWork {
        let left = self.frames() - from;
        let lengths = self.facts.codec_lengths.iter().map(|&length| length as usize);
        let fitting = lengths.clone().find(|&length| length >= left);
        let length = fitting.or(lengths.max()).unwrap_or(1);
        let groups = self.facts.groups;
        let codes = self.codes[from * groups..(from + left.min(length)) * groups].to_vec();
        EncodeWork::Codec { length: length as u32, start: from as u32, codes }
    }

    fn frames(&self) -> usize {
        self.codes.len() / self.facts.groups
    }

    fn features(&self) -> VoiceFeatures {
        let reference = (self.planned.mode == CloneMode::InContext).then(|| Reference {
            codes: self.codes.clone().into(),
            frames: self.frames() as u32,
            text_ids: self.transcript_ids.clone().into(),
            image: Arc::from(self.image.clone()),
        });
        VoiceFeatures { speaker: Some(self.speaker.clone().into()), reference }
    }
}

impl EncodeJob for ClipJob {
    fn next(&mut self) -> EncodeWork {
        match self.step {
            Step::Speaker => self.launch(SPEAKER),
            Step::Codes => self.launch(CODES),
            Step::Prime(from) => self.prime(from),
            Step::Image => EncodeWork::ReadStates { states: self.facts.codec_states.clone() },
            Step::Done => EncodeWork::Done(self.features()),
        }
    }

    fn outputs(&mut self, mut outputs: Vec<HostTensor>) -> Result<(), EngineError> {
        self.step = match self.step {
            Step::Speaker => {
                self.speaker = match outputs.pop() {
                    Some(HostTensor::F32(vector)) if vector.len() == self.facts.speaker_width => vector,
                    _ => return Err(unexpected("the speaker encoder")),
                };
                if self.speaker.iter().any(|value| !value.is_finite()) {
                    return Err(EngineError::NotFinite);
                }
                match self.planned.mode {
                    CloneMode::InContext => Step::Codes,
                    CloneMode::Speaker => Step::Done,
                }
            }
            Step::Codes => {
                let entries = 0..self.facts.codebook as i32;
                self.codes = match outputs.pop() {
                    Some(HostTensor::I32(codes))
                        if !codes.is_empty()
                            && codes.len().is_multiple_of(self.facts.groups)
                            && codes.iter().all(|code| entries.contains(code)) =>
                    {
                        codes
                    }
                    _ => return Err(unexpected("the code encoder")),
                };
                Step::Prime(0)
            }
            Step::Prime(from) => {
                let EncodeWork::Codec { codes, .. } = self.prime(from) else {
                    return Err(unexpected("priming"));
                };
                let primed = from + codes.len() / self.facts.groups;
                if primed < self.frames() { Step::Prime(primed) } else { Step::Image }
            }
            Step::Image => {
                if outputs.len() != self.facts.codec_states.len() {
                    return Err(unexpected("reading the primed codec"));
                }
                // Every context that speaks with the clip would start from it.
                let finite = |row: &HostTensor| match row {
                    HostTensor::F32(values) => values.iter().all(|value| value.is_finite()),
                    HostTensor::I32(_) => true,
                };
                if !outputs.iter().all(finite) {
                    return Err(EngineError::NotFinite);
                }
                self.image = self.facts.codec_states.iter().copied().zip(outputs).collect();
                Step::Done
            }
            Step::Done => return Err(unexpected("an encoding that was over")),
        };
        Ok(())
    }
}

fn unexpected(what: &str) -> EngineError {
    EngineError::Internal { what: format!("{what} gave outputs of another shape than its program's") }
}
