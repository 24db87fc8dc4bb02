//! Measures what stages cost on this device, in the executables that serve, for `voxlane profile`.
//!
//! Warm-up measures a few points and lets the scheduler correct the rest while it runs; a simulation
//! has nobody to correct it, so here every bucket is measured, several times, alone and beside the other
//! lane.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use contract::{Clip, Lane, LaunchId, Partition, Span, Stage, VoiceChoice};
use device::{Completed, Launch, row_buckets};
use models::{CodecRow, PlannedClip, Prompt, SpeechPlan, StageInputs, VoiceFeatures};
use sched::SchedConfig;

use crate::clock::Clock;
use crate::ride;
use crate::shared::Shared;
use crate::voices::VoiceCache;
use crate::warm::{PAGE_POSITIONS, Prepared, Warming, pages_for, prepare, warm_request};
use crate::{OpenError, OpenOptions};

/// Launches of which the quickest counts: whatever disturbs a launch only makes it longer. One more
/// before them warms up.
const REPEATS: usize = 9;
/// Positions at which decode is measured, as far as the pages allow.
const POSITIONS: [u32; 4] = [32, 128, 384, 1_024];
/// Clips that are encoded, and how often beside the first time.
const CLIP_SECONDS: [u32; 3] = [1, 3, 10];
const ENCODE_REPEATS: usize = 3;
/// A launch that takes longer than this will not come back. Serving is stricter; here, and where a split is
/// measured at the first start, a lane of low priority may get a few hundredths of its core beside other work.
const LAUNCH_LIMIT: Span = Span::from_millis(300_000);
/// Time after which a point is not measured once more, however few launches it had.
const POINT_LIMIT: Span = Span::from_millis(3_000);
/// Rows of decode, and chunks, with which lanes are measured beside each other: about as many as a launch has near capacity
/// on two cores, and on one GPU.
const BESIDE_ROWS_CPU: (u32, u32) = (8, 1);
const BESIDE_ROWS_GPU: (u32, u32) = (256, 16);

/// What of a device is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileScope {
    /// Every stage on every partition.
    All,
    /// What depends on how the device is split: stages on the lanes' own partitions.
    Partitions,
}

/// Plain figures of one model on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub model: String,
    /// As the device describes itself.
    pub device: String,
    pub frame: Span,
    pub decode_buckets: Vec<u32>,
    pub codec_buckets: Vec<u32>,
    pub codec_lengths: Vec<u32>,
    pub look_ahead: u32,
    pub rows_per_context: u32,
    pub state_grows: bool,
    /// A launch costs what its live rows do, rather than its bucket.
    pub live_rows: bool,
    pub stages: Vec<MeasuredStage>,
    pub sharing: MeasuredSharing,
    /// Processor parts of the whole, the lm and the background partition, as launches reported them.
    pub parts: [u32; 3],
    /// Positions of a prompt beside its text, and text ids of an average word.
    pub prompt_positions: u32,
    pub ids_per_word: f64,
    /// What the engine would serve with.
    pub config: SchedConfig,
}

/// One stage on one partition, over rows and lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredStage {
    pub stage: Stage,
    pub partition: Partition,
    pub rows: Vec<u32>,
    /// Decode: positions. Codec: frames. Encode: samples. Prefill: positions in all.
    pub lengths: Vec<u32>,
    /// Microseconds of the quickest of several launches, row by row.
    pub micros: Vec<u32>,
}

/// What is left of a lane's speed beside another, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredSharing {
    pub lm_beside_background: u32,
    pub background_beside_lm: u32,
    /// Of the lm lane while the background lane is busy and urgent work always under way.
    pub lm_beside_urgent: u32,
    /// Of urgent work that finds both other lanes busy.
    pub urgent_beside_lanes: u32,
}

const TEXT: &str = "The harbour was quiet, and the first boats came home before the rain.";

pub(crate) fn measure(options: OpenOptions, scope: ProfileScope) -> Result<Measured, OpenError> {
    let clock = Clock::since(options.start);
    let model = models::open(options.source.clone(), &options.name)?;
    let shared = Arc::new(Shared::new(options.stuck_after()));
    let budget = options.voice_cache_bytes;
    let prepared = prepare(options, model, clock, &shared)?;
    let Prepared { mut warming, text, info, voices, config, capacity } = prepared;
    let cache = Mutex::new(VoiceCache::new(budget));
    let voice = warming.encode_voices(text.as_ref(), &info, voices, &cache)?;
    let plan = text.plan(&warm_request(&info, VoiceChoice::Default)).map_err(OpenError::Warming)?;
    let mut segment = text.segment();
    let mut ids = segment.push(TEXT).map_err(OpenError::Warming)?;
    ids.extend(segment.release());
    let measured = |partition: &Partition| scope == ProfileScope::All || *partition != Partition::Whole;
    if measured(&Partition::Whole) {
        // Nothing serves with it; `plan` asks what a device that only decodes would carry.
        let Warming { executables, backend, model, .. } = &mut warming;
        let whole = (Stage::Decode, 1, config.slots, Partition::Whole);
        executables.add(backend.as_mut(), model.as_ref(), whole)?;
    }
    let mut bench = Bench {
        warming,
        plan,
        voice,
        ids,
        slots: config.slots,
        ride_rows_max: config.ride_rows_max,
        pages: capacity.pages,
    };
    let prompt_positions = bench.prompt(1)?.positions();
    let words = TEXT.split_whitespace().count();
    let mut stages = Vec::new();
    for partition in [Partition::Lm, Partition::Whole].into_iter().filter(measured) {
        stages.push(bench.decode(partition)?);
    }
    for partition in [Partition::Whole, Partition::Lm].into_iter().filter(measured) {
        stages.push(bench.prefill(partition)?);
    }
    for partition in [Partition::Background, Partition::Whole].into_iter().filter(measured) {
        stages.push(bench.codec(partition)?);
    }
    if measured(&Partition::Whole) {
        stages.extend(bench.encode()?);
    }
    let sharing = bench.sharing()?;
    let parts = bench.parts()?;
    let facts = &bench.warming.facts;
    Ok(Measured {
        model: info.models[0].name.clone(),
        device: bench.warming.backend.describe(),
        frame: Span::of_samples(u64::from(facts.samples_per_frame), facts.sample_rate),
        decode_buckets: row_buckets(1, config.slots),
        codec_buckets: row_buckets(1, bench.warming.codec_rows),
        codec_lengths: facts.codec_lengths.clone(),
        look_ahead: facts.look_ahead,
        rows_per_context: facts.rows_per_context,
        state_grows: facts.state_grows,
        live_rows: !bench.warming.backend.costs_by_bucket(),
        stages,
        sharing,
        parts,
        prompt_positions: u32::try_from(prompt_positions.saturating_sub(bench.ids.len())).unwrap_or(1).max(1),
        ids_per_word: bench.ids.len() as f64 / words as f64,
        config,
    })
}

/// A placed model and what to feed it.
struct Bench<'a> {
    warming: Warming<'a>,
    plan: SpeechPlan,
    voice: Option<Arc<VoiceFeatures>>,
    ids: Vec<u32>,
    slots: u32,
    ride_rows_max: u32,
    pages: u32,
}

/// Makes one launch more of a kind.
type Launching<'a> = dyn Fn(&mut Bench<'a>) -> Result<Launch, OpenError>;

impl<'a> Bench<'a> {
    /// A prompt with the text said so many times.
    fn prompt(&self, times: usize) -> Result<Prompt, OpenError> {
        let ids = self.ids.repeat(times);
        self.warming.model.prompt(&self.plan, self.voice.as_deref(), &ids, true).map_err(OpenError::Warming)
    }

    fn decode(&mut self, partition: Partition) -> Result<MeasuredStage, OpenError> {
        let rows = row_buckets(1, self.slots);
        let most = self.slots.max(1);
        let fits = |position: &u32| most * (*position + 1).div_ceil(PAGE_POSITIONS) < self.pages;
        let lengths: Vec<u32> = POSITIONS.into_iter().filter(fits).collect();
        let lengths = if lengths.is_empty() { vec![POSITIONS[0]] } else { lengths };
        let mut micros = Vec::new();
        for &count in &rows {
            for &position in &lengths {
                micros.push(self.quickest(|bench| bench.decode_launch(partition, count, position))?);
            }
        }
        Ok(MeasuredStage { stage: Stage::Decode, partition, rows, lengths, micros })
    }

    fn prefill(&mut self, partition: Partition) -> Result<MeasuredStage, OpenError> {
        if partition == Partition::Lm && self.ride_rows_max > 0 {
            return self.rides();
        }
        let mut points: Vec<(u32, u32)> = Vec::new();
        for (rows, times) in [(1, 1), (1, 3), (4, 1), (8, 1)] {
            if rows > self.slots as usize {
                continue;
            }
            let prompt = self.prompt(times)?;
            let positions = u32::try_from(prompt.positions() * rows).unwrap_or(u32::MAX);
            let took = self.quickest(|bench| bench.prefill_launch(partition, &prompt, rows))?;
            points.push((positions, took));
        }
        points.sort_unstable();
        points.dedup_by_key(|(positions, _)| *positions);
        let (lengths, micros) = points.into_iter().unzip();
        Ok(MeasuredStage { stage: Stage::Prefill, partition, rows: vec![1], lengths, micros })
    }

    /// Prompts with riders.
    fn rides(&mut self) -> Result<MeasuredStage, OpenError> {
        let prompt = self.prompt(1)?;
        let (rows, lengths) = (ride::rows(self.ride_rows_max), ride::lengths(&prompt));
        let mut micros = Vec::new();
        for &count in &rows {
            for &length in &lengths {
                micros.push(self.quickest(|bench| {
                    let model = bench.warming.model.as_ref();
                    let inputs = ride::inputs(model, &bench.plan, &prompt, count, length);
                    bench.launch(Lane::Lm, Stage::Prefill, 0, Partition::Lm, inputs)
                })?);
            }
        }
        Ok(MeasuredStage { stage: Stage::Prefill, partition: Partition::Lm, rows, lengths, micros })
    }

    /// A clip's whole encoding, the host's part between its launches included. `None` for a model whose
    /// default voice is no clip.
    fn encode(&mut self) -> Result<Option<MeasuredStage>, OpenError> {
        let Some(planned) = self.plan.clip.clone() else { return Ok(None) };
        let lengths: Vec<u32> = CLIP_SECONDS.map(|seconds| seconds * planned.clip.sample_rate).to_vec();
        let mut micros = Vec::new();
        for &samples in &lengths {
            let own = planned.clip.samples.iter().copied().cycle().take(samples as usize).collect();
            let clip = Arc::new(Clip { samples: own, ..planned.clip.as_ref().clone() });
            let planned = PlannedClip { clip, mode: planned.mode };
            let mut least = u32::MAX;
            for turn in 0..=ENCODE_REPEATS {
                let begun = self.warming.clock.now();
                self.warming.encode(&planned)?;
                let took = self.warming.clock.now().since(begun).as_micros();
                if turn > 0 {
                    least = least.min(u32::try_from(took).unwrap_or(u32::MAX).max(1));
                }
            }
            micros.push(least);
        }
        let (stage, partition) = (Stage::Encode, Partition::Whole);
        Ok(Some(MeasuredStage { stage, partition, rows: vec![1], lengths, micros }))
    }

    fn codec(&mut self, partition: Partition) -> Result<MeasuredStage, OpenError> {
        let rows = row_buckets(1, self.warming.codec_rows.min(self.slots));
        let lengths = self.warming.facts.codec_lengths.clone();
        let mut micros = Vec::new();
        for &count in &rows {
            for &length in &lengths {
                micros.push(self.quickest(|bench| bench.codec_launch(partition, 0..count, length))?);
            }
        }
        Ok(MeasuredStage { stage: Stage::Codec, partition, rows, lengths, micros })
    }

    /// Each lane's speed while the other one is busy all the time.
    fn sharing(&mut self) -> Result<MeasuredSharing, OpenError> {
        // Lanes that run at the same time never name the same slot.
        let gpu = self.warming.backend.costs_by_bucket();
        let (rows, chunks) = if gpu { BESIDE_ROWS_GPU } else { BESIDE_ROWS_CPU };
        let rows = rows.min(self.slots / 3);
        let chunks = chunks.min(rows).min(self.warming.codec_rows);
        if rows == 0 {
            return Ok(MeasuredSharing {
                lm_beside_background: 1_000,
                background_beside_lm: 1_000,
                lm_beside_urgent: 1_000,
                urgent_beside_lanes: 1_000,
            });
        }
        let steady = self.warming.facts.codec_lengths.last().copied().unwrap_or(1);
        let decode = move |bench: &mut Self| bench.decode_launch(Partition::Lm, rows, POSITIONS[0]);
        // As the background lane is used near capacity: whole steps of the ladder, one after the other.
        let codec =
            move |bench: &mut Self| bench.codec_launch(Partition::Background, rows..rows + chunks, steady);
        let urgent =
            move |bench: &mut Self| bench.codec_launch(Partition::Whole, 2 * rows..2 * rows + 1, steady);
        let alone =
            [self.together(&[&decode])?[0], self.together(&[&codec])?[0], self.together(&[&urgent])?[0]];
        let both = self.together(&[&decode, &codec])?;
        let all = self.together(&[&decode, &codec, &urgent])?;
        let left =
            |alone: u32, beside: u32| (u64::from(alone) * 1_000 / u64::from(beside.max(1))).min(1_000) as u32;
        Ok(MeasuredSharing {
            lm_beside_background: left(alone[0], both[0]),
            background_beside_lm: left(alone[1], both[1]),
            lm_beside_urgent: left(both[0], all[0]),
            urgent_beside_lanes: left(alone[2], all[2]),
        })
    }

    /// Cores of each partition.
    fn parts(&mut self) -> Result<[u32; 3], OpenError> {
        let length = self.warming.facts.codec_lengths.first().copied().unwrap_or(1);
        let mut parts = [0; 3];
        let launches = [
            self.codec_launch(Partition::Whole, 0..1, length)?,
            self.decode_launch(Partition::Lm, 1, POSITIONS[0])?,
            self.codec_launch(Partition::Background, 0..1, length)?,
        ];
        for (part, launch) in parts.iter_mut().zip(launches) {
            let done = self.wait(launch)?;
            *part = u32::try_from(done.cores.len()).unwrap_or(u32::MAX);
        }
        Ok(parts)
    }

    /// The quickest of `REPEATS` launches, one after the other; the first warms up and does not count.
    fn quickest(
        &mut self,
        launch: impl Fn(&mut Self) -> Result<Launch, OpenError>,
    ) -> Result<u32, OpenError> {
        let mut least = u32::MAX;
        let enough = self.warming.clock.now() + POINT_LIMIT;
        for turn in 0..=REPEATS {
            let launch = launch(self)?;
            let done = self.wait(launch)?;
            if turn > 0 {
                least = least.min(micros(&done));
                if self.warming.clock.now() > enough {
                    break;
                }
            }
        }
        Ok(least)
    }

    /// Medians of `REPEATS` launches or more of each while one of every kind is always under way: what a lane loses to
    /// another is neither its best moment nor the other's pauses.
    fn together(&mut self, kinds: &[&Launching<'a>]) -> Result<Vec<u32>, OpenError> {
        let mut running: Vec<Option<LaunchId>> = vec![None; kinds.len()];
        let mut times: Vec<Vec<u32>> = vec![Vec::new(); kinds.len()];
        let enough = self.warming.clock.now() + POINT_LIMIT.times(kinds.len() as i64);
        // The first of each kind found the others still.
        while times.iter().any(|times| times.len() <= REPEATS) && self.warming.clock.now() < enough {
            self.refill(kinds, &mut running)?;
            let done = self.next()?;
            for (running, times) in running.iter_mut().zip(&mut times) {
                if *running == Some(done.launch) {
                    *running = None;
                    times.push(micros(&done));
                }
            }
        }
        while running.iter().any(Option::is_some) {
            let done = self.next()?;
            running.iter_mut().filter(|it| **it == Some(done.launch)).for_each(|it| *it = None);
        }
        Ok(times.into_iter().map(median_of_later).collect())
    }

    fn refill(
        &mut self,
        others: &[&Launching<'a>],
        running: &mut [Option<LaunchId>],
    ) -> Result<(), OpenError> {
        for (other, running) in others.iter().zip(running) {
            if running.is_none() {
                let launch = other(self)?;
                *running = Some(launch.launch);
                self.warming.backend.launch(launch)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, launch: Launch) -> Result<Completed, OpenError> {
        self.warming.backend.launch(launch)?;
        self.next()
    }

    fn next(&mut self) -> Result<Completed, OpenError> {
        let Warming { clock, backend, shared, .. } = &mut self.warming;
        let limit = clock.now() + LAUNCH_LIMIT;
        loop {
            if let Some(done) = backend.poll() {
                if let Err(error) = done.result {
                    return Err(error.into());
                }
                return Ok(done);
            }
            if clock.now() > limit {
                backend.abandon();
                let what = format!(
                    "a launch did not come back within {} s while being measured; is the machine busy with other work?",
                    LAUNCH_LIMIT.as_millis() / 1_000
                );
                return Err(OpenError::Warming(contract::EngineError::Internal { what }));
            }
            shared.mailbox.collect(clock.until(limit, Span::from_millis(100)));
        }
    }

    fn decode_launch(
        &mut self,
        partition: Partition,
        count: u32,
        position: u32,
    ) -> Result<Launch, OpenError> {
        let pages: Vec<_> = (0..count).map(|slot| pages_for(slot, position as usize + 1)).collect();
        let rows: Vec<_> =
            (0..count).map(|slot| ride::step(slot, position, &self.plan, &pages[slot as usize])).collect();
        let inputs = self.warming.model.decode_inputs(&rows);
        self.launch(Lane::Lm, Stage::Decode, 0, partition, inputs)
    }

    fn prefill_launch(
        &mut self,
        partition: Partition,
        prompt: &Prompt,
        count: usize,
    ) -> Result<Launch, OpenError> {
        let slots = 0..u32::try_from(count).unwrap_or(1);
        let pages: Vec<_> = slots.clone().map(|slot| pages_for(slot, prompt.positions())).collect();
        let rows: Vec<_> =
            slots.zip(&pages).map(|(slot, pages)| ride::begin(slot, prompt, &self.plan, pages)).collect();
        let inputs = self.warming.model.prefill_inputs(&rows, &[]);
        self.launch(Lane::Lm, Stage::Prefill, 0, partition, inputs)
    }

    fn codec_launch(
        &mut self,
        partition: Partition,
        slots: Range<u32>,
        length: u32,
    ) -> Result<Launch, OpenError> {
        let lane = if partition == Partition::Whole { Lane::Urgent } else { Lane::Background };
        let codes = vec![0; (length * self.warming.facts.code_groups) as usize];
        let rows: Vec<_> = slots.map(|slot| CodecRow { slot, start: 0, codes: &codes }).collect();
        let inputs = self.warming.model.codec_inputs(&rows, length);
        self.launch(lane, Stage::Codec, length, partition, inputs)
    }

    fn launch(
        &mut self,
        lane: Lane,
        stage: Stage,
        length: u32,
        partition: Partition,
        inputs: StageInputs,
    ) -> Result<Launch, OpenError> {
        let executable = self.warming.built(stage, length, partition)?;
        let launch = LaunchId(self.warming.next);
        self.warming.next += 1;
        let StageInputs { rows, tokens, inputs } = inputs;
        Ok(Launch { launch, lane, executable, rows, tokens, inputs, wanted: Vec::new() })
    }
}

/// The median of all but the first, where there are others.
fn median_of_later(times: Vec<u32>) -> u32 {
    let mut later = if times.len() > 1 { times[1..].to_vec() } else { times };
    later.sort_unstable();
    later.get(later.len() / 2).copied().unwrap_or(0)
}

fn micros(done: &Completed) -> u32 {
    u32::try_from(done.finished.since(done.started).as_micros()).unwrap_or(u32::MAX).max(1)
}
