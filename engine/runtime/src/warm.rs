//! From a checkpoint to an engine that is ready: weights placed, executables built, voices encoded,
//! stages measured.
//!
//! Every stage runs here once before it is measured, so no request pays for first touches of memory,
//! and the scheduler starts from this machine's own costs, which it goes on correcting.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{
    EngineError, EngineInfo, Lane, LaunchId, Layout, OpenContext, Partition, Sampling, Span, Stage, Tick,
    VoiceChoice,
};
use cpu::{CpuBackend, CpuOptions};
use device::{Backend, Completed, ExecutableId, Launch};
use models::{
    Capacity, CodecRow, DecodeRow, EncodeWork, Model, NextText, PlacedModel, PrefillRow, Prompt, RowSampling,
    SpeechPlan, StageFacts, StageInputs, TextLogic, VoiceFeatures,
};
use sched::{CostTable, EncodeKey, Profile, Sched, SchedConfig};

use crate::clock::Clock;
use crate::device_engine::{DeviceEngine, describe};
use crate::executables::{Buckets, Executables};
use crate::kept::Kept;
use crate::launching::Flights;
use crate::shared::Shared;
use crate::voices::VoiceCache;
use crate::{OpenError, OpenOptions};

/// Key/value positions of a page.
const PAGE_POSITIONS: u32 = 64;
/// Pages in the pool for each context: a prompt of 100 positions and half a minute of speech.
const PAGES_PER_CONTEXT: u32 = 8;
/// Positions one segment may take.
const POSITIONS_MAX: u32 = 2_048;
/// Chunks in one codec batch: the urgent lane's bound, and enough for a CPU, where a batch saves little.
const CODEC_ROWS: u32 = 8;
const PREFILL_ROWS: u32 = 8;
const PREFILL_TOKENS: u32 = 512;
/// Contexts that may be open for each one that may run.
const OPEN_PER_RUNNING: u32 = 8;
/// Position at which a decode step is measured: a short prompt and half of an average utterance.
const MEASURED_POSITION: u32 = 100;
/// A launch that takes longer than this while warming up will not come back.
const LAUNCH_LIMIT: Span = Span::from_millis(30_000);

/// Loads, places, builds, encodes the model's own voices and measures.
pub(crate) fn open(
    options: OpenOptions,
    model: Box<dyn Model>,
    clock: Clock,
    shared: &Arc<Shared>,
    kept: Option<Arc<Kept>>,
) -> Result<(DeviceEngine, EngineInfo, usize), OpenError> {
    let facts = model.facts().clone();
    let text = model.text();
    let config = SchedConfig {
        slots: options.contexts_max,
        open_max: options.contexts_max.saturating_mul(OPEN_PER_RUNNING),
        pages: options.contexts_max.saturating_mul(PAGES_PER_CONTEXT).max(POSITIONS_MAX / PAGE_POSITIONS),
        page_positions: PAGE_POSITIONS,
        prefill_rows_max: PREFILL_ROWS,
        prefill_tokens_max: PREFILL_TOKENS,
        ttfa_target: options.ttfa_target,
        // A batch on a CPU costs what its rows cost one by one: waiting for more chunks gains nothing and
        // spends the slack that a busy machine will need.
        background_batch: 1,
        ..SchedConfig::default()
    };
    // One slot more than contexts: codec priming has its own.
    let priming_slot = config.slots;
    let capacity = Capacity {
        slots: config.slots + 1,
        pages: config.pages + 1,
        page_len: PAGE_POSITIONS,
        positions_max: POSITIONS_MAX.min(facts.positions_max),
    };
    let mut backend = cpu_backend(&options, capacity, clock, shared)?;
    let mut info =
        describe(model.as_ref(), backend.describe(), options.contexts_max, config.open_max, config.lm_lead);
    info.limits.open_max = config.open_max;
    let voices: Vec<VoiceChoice> =
        info.models[0].voices.iter().map(|v| VoiceChoice::Named(v.id.clone())).collect();
    let placed = model.place(backend.as_mut(), capacity)?;
    let buckets = Buckets {
        decode: config.slots,
        prefill: PREFILL_ROWS,
        prefill_tokens: PREFILL_TOKENS.max(capacity.positions_max),
        codec: CODEC_ROWS,
    };
    let executables = Executables::build(backend.as_mut(), placed.as_ref(), &facts.codec_lengths, buckets)?;
    let mut warming = Warming {
        clock,
        shared,
        backend,
        model: placed,
        executables,
        facts: facts.clone(),
        priming_slot,
        next: 0,
    };
    let cache = warming.encode_voices(text.as_ref(), &info, voices, options.voice_cache_bytes)?;
    let profile = warming.profile(text.as_ref(), &info, cache.1.as_deref(), config.slots)?;
    let sched = Sched::new(config.clone(), profile)?;
    let Warming { backend, model, executables, .. } = warming;
    let engine = DeviceEngine {
        clock,
        shared: shared.clone(),
        backend,
        model,
        text,
        facts,
        sched,
        executables,
        contexts: BTreeMap::new(),
        voices: cache.0,
        flights: Flights::default(),
        encoding: None,
        priming_slot,
        kept,
        encode_hits: 0,
    };
    Ok((engine, info, config.open_max as usize))
}

fn cpu_backend(
    options: &OpenOptions,
    capacity: Capacity,
    clock: Clock,
    shared: &Arc<Shared>,
) -> Result<Box<dyn Backend>, OpenError> {
    let waker = Arc::downgrade(shared);
    let backend = CpuBackend::open(CpuOptions {
        cores: options.cores.clone(),
        lm_cores: None,
        slots: capacity.slots as usize,
        poison: false,
        clock: Arc::new(move || clock.now()),
        notify: Arc::new(move || {
            if let Some(shared) = waker.upgrade() {
                shared.mailbox.knock();
            }
        }),
    })?;
    Ok(Box::new(backend))
}

struct Warming<'a> {
    clock: Clock,
    shared: &'a Arc<Shared>,
    backend: Box<dyn Backend>,
    model: Box<dyn PlacedModel>,
    executables: Executables,
    facts: StageFacts,
    priming_slot: u32,
    next: u64,
}

impl Warming<'_> {
    /// Encodes the voices the model brings, so that naming one never waits for an encode. Gives the
    /// cache and the first voice's features.
    fn encode_voices(
        &mut self,
        text: &dyn TextLogic,
        info: &EngineInfo,
        voices: Vec<VoiceChoice>,
        budget: usize,
    ) -> Result<(VoiceCache, Option<Arc<VoiceFeatures>>), OpenError> {
        let mut cache = VoiceCache::new(budget);
        let mut first = None;
        for voice in voices {
            let plan = text.plan(&warm_request(info, voice)).map_err(OpenError::Warming)?;
            let Some(planned) = plan.clip.as_ref() else { continue };
            let mut job = self.model.encode(planned).map_err(OpenError::Warming)?;
            let features = loop {
                match job.next() {
                    EncodeWork::Done(features) => break Arc::new(features),
                    EncodeWork::ReadStates { states } => {
                        let slot = self.priming_slot;
                        let rows: Result<Vec<_>, _> =
                            states.into_iter().map(|state| self.backend.read_state(state, slot)).collect();
                        job.outputs(rows?).map_err(OpenError::Warming)?;
                    }
                    EncodeWork::Launch { program, inputs } => {
                        let executable =
                            self.executables.encode(self.backend.as_mut(), self.model.as_ref(), program)?;
                        let done =
                            self.run(Lane::Lm, executable, StageInputs { rows: 1, tokens: 0, inputs })?;
                        job.outputs(done.result?).map_err(OpenError::Warming)?;
                    }
                    EncodeWork::Codec { length, start, codes } => {
                        let row = CodecRow { slot: self.priming_slot, start, codes: &codes };
                        let inputs = self.model.codec_inputs(&[row], length);
                        let executable = self.built(Stage::Codec, length, Partition::Whole)?;
                        self.run(Lane::Lm, executable, inputs)?.result?;
                        job.outputs(Vec::new()).map_err(OpenError::Warming)?;
                    }
                }
            };
            first.get_or_insert_with(|| features.clone());
            cache.put(EncodeKey { hash: planned.clip.hash, mode: planned.mode }, features);
        }
        Ok((cache, first))
    }

    /// Measures every stage at a few shapes.
    fn profile(
        &mut self,
        text: &dyn TextLogic,
        info: &EngineInfo,
        voice: Option<&VoiceFeatures>,
        slots: u32,
    ) -> Result<Profile, OpenError> {
        let plan = text.plan(&warm_request(info, VoiceChoice::Default)).map_err(OpenError::Warming)?;
        let mut segment = text.segment();
        let mut ids = segment.push("Warm up.").map_err(OpenError::Warming)?;
        ids.extend(segment.release());
        let prompt = self.model.prompt(&plan, voice, &ids, true).map_err(OpenError::Warming)?;

        let prefill = self.measure_prefill(&plan, &prompt)?;
        let rows: Vec<u32> = [1, 4].into_iter().filter(|rows| *rows <= slots).collect();
        let mut decode = Vec::new();
        for &count in &rows {
            decode.push(self.measure_decode(&plan, count)?);
        }
        let decode = CostTable::new(rows, vec![MEASURED_POSITION], decode)?;
        let frame_span = Span::of_samples(u64::from(self.facts.samples_per_frame), self.facts.sample_rate);
        let buckets = powers_of_two(slots);
        let codec_buckets = powers_of_two(CODEC_ROWS);
        let mut profile = Profile::new(frame_span, buckets, codec_buckets, self.facts.codec_lengths.clone())
            .with_cost(Stage::Decode, Partition::Lm, decode)
            .with_cost(Stage::Prefill, Partition::Whole, prefill.clone())
            .with_cost(Stage::Prefill, Partition::Lm, prefill)
            // An encode is rare and corrected at once; a clip costs about a hundredth of its length.
            .with_cost(
                Stage::Encode,
                Partition::Whole,
                CostTable::new(vec![1], vec![1, 240_000], vec![1_000, 100_000])?,
            );
        profile.look_ahead = self.facts.look_ahead;
        profile.rows_per_context = self.facts.rows_per_context;
        profile.state_grows = self.facts.state_grows;
        for partition in [Partition::Whole, Partition::Background] {
            let table = self.measure_codec(partition)?;
            profile = profile.with_cost(Stage::Codec, partition, table);
        }
        Ok(profile)
    }

    fn measure_prefill(&mut self, plan: &SpeechPlan, prompt: &Prompt) -> Result<CostTable, OpenError> {
        let pages = [0, 1].map(|slot| pages_for(slot, prompt.positions()));
        let mut micros = Vec::new();
        for rows in [1, 2] {
            let row = |slot| PrefillRow {
                slot,
                prompt,
                pages: &pages[slot as usize],
                from: 0,
                sampling: plan.sampling,
                seed: 0,
                allow_end: false,
            };
            let rows: Vec<_> = (0..rows).map(row).collect();
            let executable = self.built(Stage::Prefill, 0, Partition::Whole)?;
            micros.push(
                self.measure(Lane::Lm, executable, || self_inputs(|model| model.prefill_inputs(&rows)))?,
            );
        }
        let positions = u32::try_from(prompt.positions()).unwrap_or(u32::MAX).max(1);
        let per_position = (micros[1].saturating_sub(micros[0]) / positions).max(1);
        let base = micros[0].saturating_sub(per_position * positions);
        let at = |positions: u32| base + per_position * positions;
        Ok(CostTable::new(vec![1], vec![1, POSITIONS_MAX], vec![at(1), at(POSITIONS_MAX)])?)
    }

    fn measure_decode(&mut self, plan: &SpeechPlan, count: u32) -> Result<u32, OpenError> {
        let pages: Vec<_> = (0..count).map(|slot| pages_for(slot, MEASURED_POSITION as usize + 1)).collect();
        let sampling: RowSampling = plan.sampling;
        let rows: Vec<_> = (0..count)
            .map(|slot| DecodeRow {
                slot,
                position: MEASURED_POSITION,
                step: 1,
                text: NextText::Padding,
                pages: &pages[slot as usize],
                sampling,
                seed: 0,
                allow_end: false,
            })
            .collect();
        let executable = self.built(Stage::Decode, 0, Partition::Lm)?;
        self.measure(Lane::Lm, executable, || self_inputs(|model| model.decode_inputs(&rows)))
    }

    /// One row at each length; a CPU's batch costs what its rows cost one after the other, and what that
    /// leaves wrong the scheduler corrects from its first launches on.
    fn measure_codec(&mut self, partition: Partition) -> Result<CostTable, OpenError> {
        let lane = if partition == Partition::Whole { Lane::Urgent } else { Lane::Background };
        let lengths = self.facts.codec_lengths.clone();
        let mut micros = Vec::new();
        for &length in &lengths {
            let codes = vec![0; (length * self.facts.code_groups) as usize];
            let row = CodecRow { slot: 0, start: 0, codes: &codes };
            let executable = self.built(Stage::Codec, length, partition)?;
            micros.push(
                self.measure(lane, executable, || self_inputs(|model| model.codec_inputs(&[row], length)))?,
            );
        }
        let all_rows: Vec<u32> = micros.iter().map(|one: &u32| one.saturating_mul(CODEC_ROWS)).collect();
        micros.extend(all_rows);
        Ok(CostTable::new(vec![1, CODEC_ROWS], lengths, micros)?)
    }

    /// Runs a launch once to touch its memory and once to measure it.
    fn measure<F>(
        &mut self,
        lane: Lane,
        executable: ExecutableId,
        inputs: impl Fn() -> F,
    ) -> Result<u32, OpenError>
    where
        F: FnOnce(&dyn PlacedModel) -> StageInputs,
    {
        let mut took = 0;
        for _ in 0..2 {
            let made = inputs()(self.model.as_ref());
            let done = self.run(lane, executable, made)?;
            took = u32::try_from(done.finished.since(done.started).as_micros()).unwrap_or(u32::MAX);
            done.result?;
        }
        Ok(took.max(1))
    }

    fn built(&self, stage: Stage, length: u32, partition: Partition) -> Result<ExecutableId, OpenError> {
        let missing =
            || OpenError::Warming(EngineError::Internal { what: format!("no {} executable", stage.name()) });
        self.executables.find(stage, length, partition).ok_or_else(missing)
    }

    /// One launch, waited for.
    fn run(
        &mut self,
        lane: Lane,
        executable: ExecutableId,
        inputs: StageInputs,
    ) -> Result<Completed, OpenError> {
        let launch = LaunchId(self.next);
        self.next += 1;
        let StageInputs { rows, tokens, inputs } = inputs;
        self.backend.launch(Launch { launch, lane, executable, rows, tokens, inputs })?;
        let limit = self.clock.now() + LAUNCH_LIMIT;
        loop {
            if let Some(done) = self.backend.poll() {
                return Ok(done);
            }
            if self.clock.now() > limit {
                let what = "a launch did not come back while warming up".to_owned();
                return Err(OpenError::Warming(EngineError::Internal { what }));
            }
            self.shared.mailbox.collect(self.clock.until(limit, Span::from_millis(100)));
        }
    }
}

/// Names the closure's argument type where inference needs it.
fn self_inputs<F: FnOnce(&dyn PlacedModel) -> StageInputs>(make: F) -> F {
    make
}

fn warm_request(info: &EngineInfo, voice: VoiceChoice) -> OpenContext {
    OpenContext {
        model: info.models[0].name.clone(),
        voice,
        language: None,
        instructions: None,
        layout: Layout::Whole,
        sampling: Sampling { seed: Some(0), ..Sampling::default() },
        arrival: Tick::ZERO,
        tenant: 0,
        exact_frames: None,
    }
}

/// Pages of its own for each slot, covering `positions`. Nothing has been handed out yet, and what
/// warm-up writes is never read.
fn pages_for(slot: u32, positions: usize) -> Vec<u32> {
    let count = u32::try_from(positions.div_ceil(PAGE_POSITIONS as usize)).unwrap_or(1);
    (0..count).map(|index| 1 + slot * count + index).collect()
}

fn powers_of_two(up_to: u32) -> Vec<u32> {
    let mut axis: Vec<u32> = (0..32).map(|shift| 1 << shift).take_while(|power| *power < up_to).collect();
    axis.push(up_to.max(1));
    axis
}
