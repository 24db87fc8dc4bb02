//! From a checkpoint to an engine that is ready: weights placed, executables built, voices encoded,
//! stages measured.
//!
//! Every stage runs here once before it is measured, so no request pays for first touches of memory,
//! and the scheduler starts from this machine's own costs, which it goes on correcting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use contract::{
    EngineError, EngineInfo, Lane, LaunchId, Layout, OpenContext, Partition, Sampling, Span, Stage, Tick,
    VoiceChoice,
};
use cpu::{CpuBackend, CpuOptions};
use cuda::{CudaBackend, CudaOptions};
use device::{Backend, Completed, ExecutableId, Launch, row_buckets};
use models::{
    Capacity, CodecRow, DecodeRow, Model, NextText, PlacedModel, PlannedClip, PrefillRow, Prompt,
    RowSampling, SpeechPlan, StageFacts, StageInputs, TextLogic, VoiceFeatures,
};
use sched::{CostTable, EncodeKey, Profile, Sched, SchedConfig};

use crate::clock::Clock;
use crate::device_engine::{DeviceEngine, describe};
use crate::encode::{EncodeStep, next_step};
use crate::executables::{Buckets, Executables};
use crate::fault::{Faulty, Notify};
use crate::launching::Flights;
use crate::processor::Processor;
use crate::seat::Seat;
use crate::shared::{Shared, lock};
use crate::voices::VoiceCache;
use crate::watch::Watch;
use crate::{DeviceChoice, OpenError, OpenOptions};

/// Key/value positions of a page.
pub(crate) const PAGE_POSITIONS: u32 = 64;
/// Pages in the pool for each context: a prompt of 100 positions and half a minute of speech.
const PAGES_PER_CONTEXT: u32 = 8;
/// Positions one segment may take.
const POSITIONS_MAX: u32 = 2_048;
/// Most rows of each stage, and chunks a background batch waits for.
#[derive(Clone, Copy)]
struct Batches {
    codec: u32,
    prefill: u32,
    prefill_tokens: u32,
    background: u32,
}

impl Batches {
    const fn of(device: &DeviceChoice) -> Self {
        match device {
            // The urgent lane's bound, and enough for a CPU, where a batch costs what its rows cost one by one:
            // waiting for more chunks gains nothing and spends the slack that a busy machine will need.
            DeviceChoice::Cpu { .. } => Self { codec: 8, prefill: 8, prefill_tokens: 512, background: 1 },
            DeviceChoice::Cuda { .. } => Self { codec: 64, prefill: 32, prefill_tokens: 1024, background: 8 },
        }
    }
}

/// Contexts that may be open for each one that may run.
const OPEN_PER_RUNNING: u32 = 8;
/// Position at which a decode step is measured: a short prompt and half of an average utterance.
pub(crate) const MEASURED_POSITION: u32 = 100;
/// A launch that takes longer than this while warming up will not come back.
pub(crate) const LAUNCH_LIMIT: Span = Span::from_millis(30_000);

/// Loads, places, builds, encodes the model's own voices and measures.
pub(crate) fn open(
    options: OpenOptions,
    model: Box<dyn Model>,
    clock: Clock,
    shared: &Arc<Shared>,
    seat: Seat,
) -> Result<(DeviceEngine, EngineInfo, usize), OpenError> {
    let (stuck_after, faults, without) = (options.stuck_after(), options.faults.clone(), options.without);
    let Prepared { mut warming, text, info, voices, config, .. } = prepare(options, model, clock, shared)?;
    let priming_slot = warming.priming_slot;
    let voice = warming.encode_voices(text.as_ref(), &info, voices, &seat.voices)?;
    let profile = warming.profile(text.as_ref(), &info, voice.as_deref(), config.slots)?;
    let sched = Sched::new(config.clone(), profile)?;
    let Warming { backend, model, executables, facts, .. } = warming;
    faults.begin();
    let engine = DeviceEngine {
        clock,
        shared: shared.clone(),
        backend,
        watch: Watch::new(stuck_after, clock.now()),
        without,
        model,
        text,
        facts,
        sched,
        executables,
        contexts: BTreeMap::new(),
        seat,
        flights: Flights::default(),
        encoding: None,
        priming_slot,
        encode_hits: 0,
        opened: 0,
        forgotten: Vec::new(),
    };
    Ok((engine, info, config.open_max as usize))
}

/// A model on its device, ready to be warmed up or measured.
pub(crate) struct Prepared<'a> {
    pub(crate) warming: Warming<'a>,
    pub(crate) text: Arc<dyn TextLogic>,
    pub(crate) info: EngineInfo,
    /// The model's own voices.
    pub(crate) voices: Vec<VoiceChoice>,
    pub(crate) config: SchedConfig,
    pub(crate) capacity: Capacity,
}

/// Places the model and builds the executables that will serve.
pub(crate) fn prepare(
    options: OpenOptions,
    model: Box<dyn Model>,
    clock: Clock,
    shared: &Arc<Shared>,
) -> Result<Prepared<'_>, OpenError> {
    let facts = model.facts().clone();
    let text = model.text();
    let mut batches = Batches::of(&options.device);
    batches.codec = batches.codec.min(options.contexts_max.max(1));
    let config = SchedConfig {
        slots: options.contexts_max,
        open_max: options.contexts_max.saturating_mul(OPEN_PER_RUNNING),
        pages: options.contexts_max.saturating_mul(PAGES_PER_CONTEXT).max(POSITIONS_MAX / PAGE_POSITIONS),
        page_positions: PAGE_POSITIONS,
        prefill_rows_max: batches.prefill,
        prefill_tokens_max: batches.prefill_tokens,
        ttfa_target: options.ttfa_target,
        first_audio_limit: options.first_audio_limit.unwrap_or_else(|| first_audio_limit(&options.device)),
        steps_between_prefills: options.steps_between_prefills,
        background_batch: batches.background,
        prefill_policy: options.without.prefill_policy(),
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
    let mut backend = open_backend(&options, capacity, clock, shared)?;
    let mut info =
        describe(model.as_ref(), backend.describe(), options.contexts_max, config.open_max, config.lm_lead);
    info.limits.open_max = config.open_max;
    let voices: Vec<VoiceChoice> =
        info.models[0].voices.iter().map(|v| VoiceChoice::Named(v.id.clone())).collect();
    let placed = model.place(backend.as_mut(), capacity)?;
    let buckets = Buckets {
        decode: config.slots,
        prefill: batches.prefill,
        prefill_tokens: batches.prefill_tokens.max(capacity.positions_max),
        codec: batches.codec,
    };
    let executables = Executables::build(backend.as_mut(), placed.as_ref(), &facts.codec_lengths, buckets)?;
    let warming = Warming {
        clock,
        shared,
        backend,
        model: placed,
        executables,
        facts,
        priming_slot,
        codec_rows: batches.codec,
        next: 0,
    };
    Ok(Prepared { warming, text, info, voices, config, capacity })
}

fn open_backend(
    options: &OpenOptions,
    capacity: Capacity,
    clock: Clock,
    shared: &Arc<Shared>,
) -> Result<Processor, OpenError> {
    let waker = Arc::downgrade(shared);
    let slots = capacity.slots as usize;
    let clock = Arc::new(move || clock.now());
    let notify = Arc::new(move || {
        if let Some(shared) = waker.upgrade() {
            shared.mailbox.knock();
        }
    });
    let bell: Notify = notify.clone();
    let backend: Box<dyn Backend> = match &options.device {
        DeviceChoice::Cpu { cores } => {
            options.without.check_on_cpu()?;
            let mut cpu = CpuOptions::new(slots, clock, notify);
            cpu.cores.clone_from(cores);
            cpu.lm_cores = options.split.map(|split| split.lm as usize);
            Box::new(CpuBackend::open(cpu)?)
        }
        DeviceChoice::Cuda { ordinal, precision, background_sms, kernels } => {
            let mut cuda = CudaOptions::new(*ordinal, slots, clock, notify);
            cuda.precision = *precision;
            let background = options.split.map_or(*background_sms, |split| split.background);
            cuda.background_sms = if options.without.partition { 0 } else { background };
            cuda.kernel_cache.clone_from(kernels);
            Box::new(CudaBackend::open(cuda)?)
        }
    };
    let faults = &options.faults;
    Ok(Processor::new(if faults.is_empty() {
        backend
    } else {
        Box::new(Faulty::new(backend, faults.clone(), bell))
    }))
}

pub(crate) struct Warming<'a> {
    pub(crate) clock: Clock,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) backend: Processor,
    pub(crate) model: Box<dyn PlacedModel>,
    pub(crate) executables: Executables,
    pub(crate) facts: StageFacts,
    pub(crate) priming_slot: u32,
    /// Most chunks of one codec launch.
    pub(crate) codec_rows: u32,
    pub(crate) next: u64,
}

impl Warming<'_> {
    /// Encodes the voices the model brings, so that naming one never waits for an encode; what another
    /// device has encoded meanwhile is taken. Gives the first voice's features.
    pub(crate) fn encode_voices(
        &mut self,
        text: &dyn TextLogic,
        info: &EngineInfo,
        voices: Vec<VoiceChoice>,
        cache: &Mutex<VoiceCache>,
    ) -> Result<Option<Arc<VoiceFeatures>>, OpenError> {
        let mut first = None;
        for voice in voices {
            let plan = text.plan(&warm_request(info, voice)).map_err(OpenError::Warming)?;
            let Some(planned) = plan.clip.as_ref() else { continue };
            let key = EncodeKey { hash: planned.clip.hash, mode: planned.mode };
            let known = lock(cache).get(key);
            let features = match known {
                Some(features) => features,
                None => self.encode(planned)?,
            };
            first.get_or_insert_with(|| features.clone());
            lock(cache).put(key, features);
        }
        Ok(first)
    }

    pub(crate) fn encode(&mut self, planned: &PlannedClip) -> Result<Arc<VoiceFeatures>, OpenError> {
        let mut job = self.model.encode(planned).map_err(OpenError::Warming)?;
        loop {
            let Self { backend, model, executables, priming_slot, .. } = self;
            let step = next_step(job.as_mut(), backend.as_mut(), model.as_ref(), executables, *priming_slot);
            match step.map_err(OpenError::Warming)? {
                EncodeStep::Done(features) => return Ok(Arc::new(*features)),
                EncodeStep::Launch { executable, inputs } => {
                    let done = self.run(Lane::Lm, executable, inputs)?;
                    job.outputs(done.result?).map_err(OpenError::Warming)?;
                }
            }
        }
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
        // Recorded shapes are measured one by one; elsewhere a step grows by what a row costs.
        let rows: Vec<u32> = if self.backend.costs_by_bucket() {
            row_buckets(1, slots)
        } else {
            [1, 4].into_iter().filter(|rows| *rows <= slots).collect()
        };
        let mut decode = Vec::new();
        for &count in &rows {
            decode.push(self.measure_decode(&plan, count)?);
        }
        let decode = CostTable::new(rows, vec![MEASURED_POSITION], decode)?;
        let frame_span = Span::of_samples(u64::from(self.facts.samples_per_frame), self.facts.sample_rate);
        let buckets = row_buckets(1, slots);
        let codec_buckets = row_buckets(1, self.codec_rows);
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

    /// Every recorded bucket at each length. Where live rows count, one row at each: a batch costs what its rows
    /// cost one after the other, and what that leaves wrong the scheduler corrects from its first launches on.
    fn measure_codec(&mut self, partition: Partition) -> Result<CostTable, OpenError> {
        let lane = if partition == Partition::Whole { Lane::Urgent } else { Lane::Background };
        let lengths = self.facts.codec_lengths.clone();
        let by_bucket = self.backend.costs_by_bucket();
        let measured = if by_bucket { row_buckets(1, self.codec_rows) } else { vec![1] };
        let mut micros = Vec::new();
        for &count in &measured {
            for &length in &lengths {
                let codes = vec![0; (length * self.facts.code_groups) as usize];
                let rows: Vec<_> =
                    (0..count).map(|slot| CodecRow { slot, start: 0, codes: &codes }).collect();
                let executable = self.built(Stage::Codec, length, partition)?;
                let inputs = || self_inputs(|model| model.codec_inputs(&rows, length));
                micros.push(self.measure(lane, executable, inputs)?);
            }
        }
        // A server of one context has batches of one row, and nothing to extrapolate to.
        if by_bucket || self.codec_rows == 1 {
            return Ok(CostTable::new(measured, lengths, micros)?);
        }
        let all_rows: Vec<u32> = micros.iter().map(|one| one.saturating_mul(self.codec_rows)).collect();
        micros.extend(all_rows);
        Ok(CostTable::new(vec![1, self.codec_rows], lengths, micros)?)
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

    pub(crate) fn built(
        &self,
        stage: Stage,
        length: u32,
        partition: Partition,
    ) -> Result<ExecutableId, OpenError> {
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
                self.backend.abandon();
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

pub(crate) fn warm_request(info: &EngineInfo, voice: VoiceChoice) -> OpenContext {
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

/// Past which predicted first audio a request is refused, when nobody says. A GPU that is not overloaded starts
/// everybody well within it, and in overload those who are let in are heard in time (docs/performance.md,
/// "Simulated"); a CPU takes that long for a few who come at once.
const fn first_audio_limit(device: &DeviceChoice) -> Span {
    match device {
        DeviceChoice::Cpu { .. } => Span::from_millis(2_000),
        DeviceChoice::Cuda { .. } => Span::from_millis(150),
    }
}

/// Pages of its own for each slot, covering `positions`. Nothing has been handed out yet, and what
/// warm-up writes is never read.
pub(crate) fn pages_for(slot: u32, positions: usize) -> Vec<u32> {
    let count = u32::try_from(positions.div_ceil(PAGE_POSITIONS as usize)).unwrap_or(1);
    (0..count).map(|index| 1 + slot * count + index).collect()
}
