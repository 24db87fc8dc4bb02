//! From a checkpoint to an engine that is ready: weights placed, executables built, voices encoded,
//! stages measured.
//!
//! Every stage runs here once before it is measured, so no request pays for first touches of memory,
//! and the scheduler starts from this machine's own costs, which it goes on correcting.

use std::sync::{Arc, Mutex};

use contract::{
    EngineError, EngineInfo, Lane, LaunchId, Layout, OpenContext, Partition, Sampling, Span, Stage, Tick,
    VoiceChoice,
};
use cpu::{CpuBackend, CpuOptions};
use cuda::{CudaBackend, CudaOptions, IdleBackend};
use device::{Backend, Completed, ExecutableId, Launch, PROMPTS_MAX};
use models::{Capacity, Model, PlacedModel, PlannedClip, StageFacts, StageInputs, TextLogic, VoiceFeatures};
use sched::{EncodeKey, Sched, SchedConfig};

use crate::clock::Clock;
use crate::contexts::Contexts;
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
pub(crate) const POSITIONS_MAX: u32 = 2_048;
/// Most rows of each stage, and chunks a background batch waits for.
#[derive(Clone, Copy)]
struct Batches {
    codec: u32,
    prefill: u32,
    prefill_tokens: u32,
    /// Rows of a launch in which steps ride along with prompts.
    ride: u32,
    background: u32,
    /// How long before a step's end the next one is launched; zero: once the last one's result has been read.
    ahead: Span,
}

impl Batches {
    const fn of(device: &DeviceChoice) -> Self {
        match device {
            // The urgent lane's bound, and enough for a CPU, where a batch costs what its rows cost one by one:
            // waiting for more chunks gains nothing and spends the slack that a busy machine will need.
            DeviceChoice::Cpu { .. } => {
                Self { codec: 8, prefill: 8, prefill_tokens: 512, ride: 0, background: 1, ahead: Span::ZERO }
            }
            DeviceChoice::Cuda { .. } => {
                Self {
                    codec: 64,
                    prefill: PROMPTS_MAX,
                    prefill_tokens: 1024,
                    ride: 512,
                    background: 8,
                    // The host's long rounds, and what a prediction is off by.
                    ahead: Span::from_micros(1_500),
                }
            }
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
    let profile = warming.measured_profile(text.as_ref(), &info, voice.as_deref(), &config)?;
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
        contexts: Contexts::default(),
        seat,
        flights: Flights::default(),
        encoding: None,
        priming_slot,
        encode_hits: 0,
        opened: 0,
        foreseen: Tick::ZERO,
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
    batches.prefill = batches.prefill.min(facts.prompts_max);
    // A rider is one row.
    let rides = !options.without.riders && facts.rows_per_context == 1;
    batches.ride = if rides { batches.ride.min(options.contexts_max) } else { 0 };
    let ahead = if options.without.ahead { Span::ZERO } else { options.ahead.unwrap_or(batches.ahead) };
    let config = SchedConfig {
        slots: options.contexts_max,
        open_max: options.contexts_max.saturating_mul(OPEN_PER_RUNNING),
        pages: options.contexts_max.saturating_mul(PAGES_PER_CONTEXT).max(POSITIONS_MAX / PAGE_POSITIONS),
        page_positions: PAGE_POSITIONS,
        prefill_rows_max: batches.prefill,
        prefill_tokens_max: batches.prefill_tokens,
        ride_rows_max: batches.ride,
        ttfa_target: options.ttfa_target,
        first_audio_limit: options.first_audio_limit.unwrap_or_else(|| first_audio_limit(&options.device)),
        steps_between_prefills: options
            .steps_between_prefills
            .unwrap_or_else(|| steps_between_prefills(&options.device)),
        background_batch: batches.background,
        lm_depth: 1 + u32::from(ahead > Span::ZERO),
        lm_ahead: ahead,
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
        ride: batches.ride,
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
    let ticks = Arc::new(move || clock.now());
    let notify = Arc::new(move || {
        if let Some(shared) = waker.upgrade() {
            shared.mailbox.knock();
        }
    });
    let bell: Notify = notify.clone();
    let backend: Box<dyn Backend> = match &options.device {
        _ if options.without.device => Box::new(IdleBackend::open(slots, ticks, notify)?),
        DeviceChoice::Cpu { cores } => {
            options.without.check_on_cpu()?;
            let mut cpu = CpuOptions::new(slots, ticks, notify);
            cpu.cores.clone_from(cores);
            cpu.lm_cores = options.split.map(|split| split.lm as usize);
            Box::new(CpuBackend::open(cpu)?)
        }
        DeviceChoice::Cuda { ordinal, precision, background_sms, kernels } => {
            let mut cuda = CudaOptions::new(*ordinal, slots, ticks, notify);
            cuda.precision = *precision;
            let background = options.split.map_or(*background_sms, |split| split.background);
            cuda.background_exactly = options.split.is_some();
            cuda.background_sms = if options.without.partition { 0 } else { background };
            cuda.kernel_cache.clone_from(kernels);
            Box::new(CudaBackend::open(cuda)?)
        }
    };
    let faults = &options.faults;
    let backend =
        if faults.is_empty() { backend } else { Box::new(Faulty::new(backend, faults.clone(), bell)) };
    Ok(Processor::new(backend, clock))
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
    pub(crate) fn run(
        &mut self,
        lane: Lane,
        executable: ExecutableId,
        inputs: StageInputs,
    ) -> Result<Completed, OpenError> {
        let launch = LaunchId(self.next);
        self.next += 1;
        let StageInputs { rows, tokens, inputs } = inputs;
        self.backend.launch(Launch { launch, lane, executable, rows, tokens, inputs, wanted: Vec::new() })?;
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
        DeviceChoice::Cuda { .. } => Span::from_millis(140),
    }
}

/// Steps between two prompts that may cut running speech's chunks short, when nobody says. On a GPU a chunk that is cut costs
/// little and a prompt that waits for whole chunks is refused in a burst; on a CPU in overload it is stalls that more let in cost.
const fn steps_between_prefills(device: &DeviceChoice) -> u32 {
    match device {
        DeviceChoice::Cpu { .. } => 0,
        DeviceChoice::Cuda { .. } => 2,
    }
}

/// Pages of its own for each slot, covering `positions`. Nothing has been handed out yet, and what
/// warm-up writes is never read.
pub(crate) fn pages_for(slot: u32, positions: usize) -> Vec<u32> {
    let count = u32::try_from(positions.div_ceil(PAGE_POSITIONS as usize)).unwrap_or(1);
    (0..count).map(|index| 1 + slot * count + index).collect()
}
