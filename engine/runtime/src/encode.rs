//! Drives a clip's encoding: one scheduler launch, several device launches one after the other in the
//! lm lane, at the end the features in the cache and with every context that waited for them.

use std::sync::Arc;

use contract::{ContextId, EngineError, Lane, LaunchId, LaunchSpan, Partition, Stage, Tick};
use device::{Backend, Completed, ExecutableId, Launch};
use models::{CodecRow, EncodeJob, EncodeWork, PlacedModel, StageInputs, VoiceFeatures};
use sched::{Command, Completion, EncodeKey, LaunchResult, Why};

use crate::device_engine::DeviceEngine;
use crate::executables::Executables;
use crate::launching::internal;

/// Device launches that are steps of an encode have ids of their own, above every scheduler's.
const STEP_BASE: u64 = 1 << 63;

pub(crate) struct Encoding {
    launch: LaunchId,
    key: EncodeKey,
    job: Box<dyn EncodeJob>,
    step: u64,
    started: Tick,
    cores: Vec<u32>,
    why: Why,
}

/// What an encoding needs next.
pub(crate) enum EncodeStep {
    Done(Box<VoiceFeatures>),
    /// One launch in the lm lane, whose outputs the job is then given.
    Launch {
        executable: ExecutableId,
        inputs: StageInputs,
    },
}

/// Goes on with a job until it needs a launch or is done; what needs no launch is done here.
///
/// # Errors
/// What the job or the device refuses.
pub(crate) fn next_step(
    job: &mut dyn EncodeJob,
    backend: &mut dyn Backend,
    model: &dyn PlacedModel,
    executables: &mut Executables,
    priming_slot: u32,
) -> Result<EncodeStep, EngineError> {
    loop {
        match job.next() {
            EncodeWork::Done(features) => return Ok(EncodeStep::Done(Box::new(features))),
            EncodeWork::ReadStates { states } => {
                let rows: Result<Vec<_>, _> =
                    states.into_iter().map(|state| backend.read_state(state, priming_slot)).collect();
                job.outputs(rows.map_err(internal)?)?;
            }
            EncodeWork::Launch { program, inputs } => {
                let built = executables.encode(backend, model, program);
                let executable = built.map_err(|error| EngineError::Internal { what: error.to_string() })?;
                let inputs = StageInputs { rows: 1, tokens: 0, inputs };
                return Ok(EncodeStep::Launch { executable, inputs });
            }
            EncodeWork::Codec { length, start, codes } => {
                let row = CodecRow { slot: priming_slot, start, codes: &codes };
                let inputs = model.codec_inputs(&[row], length);
                let missing =
                    || EngineError::Internal { what: "no codec executable to prime with".to_owned() };
                let executable =
                    executables.find(Stage::Codec, length, Partition::Whole).ok_or_else(missing)?;
                return Ok(EncodeStep::Launch { executable, inputs });
            }
        }
    }
}

impl DeviceEngine {
    pub(crate) fn start_encode(&mut self, now: Tick, launch: LaunchId, key: EncodeKey, why: Why) {
        let planned = self
            .contexts
            .values()
            .filter(|speaking| speaking.key == Some(key))
            .find_map(|speaking| speaking.plan.clip.clone());
        let gone = || EngineError::Internal { what: "nobody waits for this clip".to_owned() };
        let job = planned.ok_or_else(gone).and_then(|planned| self.model.encode(&planned));
        match job {
            Err(error) => self.finish_encode(now, launch, now, Err(error)),
            Ok(job) => {
                let step = STEP_BASE + launch.0;
                self.encoding =
                    Some(Encoding { launch, key, job, step, started: now, cores: Vec::new(), why });
                self.step_encode(now);
            }
        }
    }

    pub(crate) const fn is_encode_step(&self, launch: LaunchId) -> bool {
        launch.0 >= STEP_BASE
    }

    pub(crate) fn handle_encode_step(&mut self, now: Tick, completed: Completed) {
        let Some(mut encoding) = self.encoding.take() else { return };
        encoding.cores = completed.cores;
        let outputs = completed.result.map_err(internal).and_then(|outputs| encoding.job.outputs(outputs));
        match outputs {
            Err(error) => self.finish_encode(now, encoding.launch, encoding.started, Err(error)),
            Ok(()) => {
                self.encoding = Some(encoding);
                self.step_encode(now);
            }
        }
    }

    /// Goes on until a launch is in flight or the job is over.
    fn step_encode(&mut self, now: Tick) {
        let Some(mut encoding) = self.encoding.take() else { return };
        match self.next_launch(&mut encoding) {
            Ok(None) => self.encoding = Some(encoding),
            Ok(Some(features)) => {
                let span = LaunchSpan {
                    device: self.seat.device,
                    launch: encoding.launch,
                    lane: Lane::Lm,
                    stage: Stage::Encode,
                    rows: 1,
                    started: encoding.started,
                    finished: now,
                    cores: encoding.cores.clone(),
                    reason: encoding.why.reason,
                };
                self.shared.trace(span, 0);
                let result = Ok((encoding.key, Arc::new(features)));
                self.finish_encode(now, encoding.launch, encoding.started, result);
            }
            Err(error) => self.finish_encode(now, encoding.launch, encoding.started, Err(error)),
        }
    }

    /// Makes the job's next launch, or gives its features when there is none.
    fn next_launch(&mut self, encoding: &mut Encoding) -> Result<Option<VoiceFeatures>, EngineError> {
        let Self { backend, model, executables, priming_slot, .. } = self;
        match next_step(encoding.job.as_mut(), backend.as_mut(), model.as_ref(), executables, *priming_slot)?
        {
            EncodeStep::Done(features) => Ok(Some(*features)),
            EncodeStep::Launch { executable, inputs } => {
                self.launch_step(encoding, executable, inputs)?;
                Ok(None)
            }
        }
    }

    fn launch_step(
        &mut self,
        encoding: &Encoding,
        executable: ExecutableId,
        inputs: StageInputs,
    ) -> Result<(), EngineError> {
        let StageInputs { rows, tokens, inputs } = inputs;
        let launch = LaunchId(encoding.step);
        let launch = Launch { launch, lane: Lane::Lm, executable, rows, tokens, inputs, wanted: Vec::new() };
        self.launch_watched(Stage::Encode, encoding.why.expected, launch)
    }

    fn finish_encode(
        &mut self,
        now: Tick,
        launch: LaunchId,
        started: Tick,
        result: Result<(EncodeKey, Arc<VoiceFeatures>), EngineError>,
    ) {
        self.encoding = None;
        let mut voiced = Vec::new();
        let result = match result {
            Err(error) => LaunchResult::EncodeFailed { error },
            Ok((key, features)) => {
                // A clip that was forgotten meanwhile speaks for those who had asked, and is not kept.
                let wanted =
                    self.contexts.values().any(|speaking| speaking.key == Some(key) && !speaking.forgotten);
                if wanted {
                    self.remember(key, &features);
                    if let Some(kept) = &self.seat.kept {
                        kept.keep(key, &features);
                    }
                }
                for context in self.contexts.ids() {
                    let Some(speaking) = self.contexts.get_mut(&context) else { continue };
                    if speaking.key == Some(key) && speaking.voice.is_none() {
                        speaking.voice = Some(features.clone());
                        voiced.push(context);
                    }
                }
                LaunchResult::Encoded
            }
        };
        self.sched.handle_completion(now, Completion { launch, at: now, took: now.since(started), result });
        for context in voiced {
            self.advance_all(now, context);
        }
        self.drain(now);
    }

    fn advance_all(&mut self, now: Tick, context: ContextId) {
        let Some(speaking) = self.contexts.get(&context) else { return };
        let (segments, finishing): (Vec<u32>, bool) =
            (speaking.segments.keys().copied().collect(), speaking.finishing);
        for segment in segments {
            self.advance_segment(now, context, segment);
        }
        if finishing {
            self.sched.handle_command(now, Command::Finish { context });
        }
    }
}
