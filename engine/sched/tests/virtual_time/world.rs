//! A processor on virtual time: runs what the scheduler launches at the profile's costs.

use std::collections::BTreeMap;

use contract::{ContextId, Lane, Partition, Playback, Span, Stage, Tick};
use sched::{
    ChunkResult, Command, Completion, CostTable, Decision, DecodeRow, FrameOutcome, FrameResult,
    LaunchResult, Profile, Sched, SchedConfig, SchedOutput,
};

use crate::model::Model;

/// How one segment's rows behave.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The first step at which the model says end-of-speech, if it may.
    pub(crate) eos_at: u32,
    /// Codes repeat with this period; 0 for never.
    pub(crate) period: u64,
    pub(crate) peak: f32,
    /// Chunks that come out as not-a-number, counted from the segment's first.
    pub(crate) not_finite_at: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Flying {
    pub(crate) decision: Decision,
    pub(crate) finish: Tick,
    pub(crate) took: Span,
}

/// What the device knows of one segment.
#[derive(Clone, Debug, Default)]
struct Rows {
    made: u32,
    done: bool,
    chunks: u32,
}

pub(crate) struct World {
    pub(crate) sched: Sched,
    pub(crate) now: Tick,
    pub(crate) flying: Vec<Flying>,
    pub(crate) decisions: Vec<(Tick, Decision)>,
    pub(crate) outputs: Vec<(Tick, SchedOutput)>,
    pub(crate) scripts: BTreeMap<(ContextId, u32), Script>,
    pub(crate) script: Script,
    pub(crate) model: Option<Model>,
    /// Every launch takes this many thousandths of its predicted time.
    pub(crate) pace_permille: i64,
    pub(crate) losing: Option<Lane>,
    pub(crate) encode_error: Option<contract::EngineError>,
    pub(crate) events: u64,
    rows: BTreeMap<(ContextId, u32), Rows>,
    free_at: [Tick; 3],
}

impl Default for Script {
    fn default() -> Self {
        Self { eos_at: 20, period: 0, peak: 0.5, not_finite_at: None }
    }
}

pub(crate) fn id(number: u64) -> ContextId {
    ContextId(number)
}

pub(crate) fn ms(millis: i64) -> Span {
    Span::from_millis(millis)
}

pub(crate) fn at(millis: u64) -> Tick {
    Tick::from_millis(millis)
}

/// Frames of 80 ms; a step takes 5 ms + 0.5 ms a row, a prefill 10 ms, a background chunk 20 ms + 2 ms a
/// row, an urgent one 5 ms + 1 ms a row, an encode 50 ms.
pub(crate) fn profile() -> Profile {
    let flat = |base: u32, row: u32| CostTable::linear(base, row, 0, 16, 1024);
    Profile::new(ms(80), vec![1, 2, 4, 8, 16], vec![1, 2, 4, 8, 16], vec![2, 4, 10])
        .with_cost(Stage::Decode, Partition::Lm, flat(5_000, 500))
        .with_cost(Stage::Prefill, Partition::Whole, flat(10_000, 0))
        .with_cost(Stage::Prefill, Partition::Lm, flat(14_000, 0))
        .with_cost(Stage::Encode, Partition::Whole, flat(50_000, 0))
        .with_cost(Stage::Codec, Partition::Background, flat(20_000, 2_000))
        .with_cost(Stage::Codec, Partition::Whole, flat(5_000, 1_000))
}

impl World {
    pub(crate) fn new(config: SchedConfig, profile: Profile) -> Self {
        Self {
            sched: Sched::new(config, profile).expect("the test's own configuration"),
            now: Tick::ZERO,
            flying: Vec::new(),
            decisions: Vec::new(),
            outputs: Vec::new(),
            scripts: BTreeMap::new(),
            script: Script::default(),
            model: None,
            pace_permille: 1_000,
            losing: None,
            encode_error: None,
            events: 0,
            rows: BTreeMap::new(),
            free_at: [Tick::ZERO; 3],
        }
    }

    /// Follows every event with the reference model from here on.
    pub(crate) fn watched(mut self) -> Self {
        self.model = Some(Model::new(self.sched.config().clone()));
        self
    }

    pub(crate) fn command(&mut self, command: Command) {
        if let Some(model) = &mut self.model {
            model.before_command(self.now, &command);
        }
        self.sched.handle_command(self.now, command);
        self.drain();
    }

    pub(crate) fn open(&mut self, number: u64) {
        self.command(Command::Open {
            context: id(number),
            arrival: self.now,
            tenant: 0,
            exact_frames: None,
            voice_encode: None,
            encode_samples: 0,
        });
    }

    /// A whole-text segment of 30 prompt positions.
    pub(crate) fn whole(&mut self, number: u64, segment: u32, eos_at: u32) {
        let script = Script { eos_at, ..self.script.clone() };
        self.scripts.insert((id(number), segment), script);
        self.command(Command::SegmentReady {
            context: id(number),
            segment,
            prompt_tokens: 30,
            ids: 12,
            closed: true,
            streamed: false,
            frames_predicted: eos_at,
            frames_max: eos_at.saturating_mul(3).max(3),
        });
    }

    /// Opens a context that says `frames` frames and finishes.
    pub(crate) fn speak(&mut self, number: u64, frames: u32) {
        self.open(number);
        self.whole(number, 0, frames);
        self.command(Command::Finish { context: id(number) });
    }

    /// A streamed segment with these ids known.
    pub(crate) fn streamed(&mut self, number: u64, segment: u32, ids: u32, closed: bool, eos_at: u32) {
        let script = Script { eos_at, ..self.script.clone() };
        self.scripts.insert((id(number), segment), script);
        self.command(Command::SegmentReady {
            context: id(number),
            segment,
            prompt_tokens: 10,
            ids,
            closed,
            streamed: true,
            frames_predicted: ids * 3,
            frames_max: ids * 6 + 20,
        });
    }

    pub(crate) fn ids(&mut self, number: u64, segment: u32, total: u32, closed: bool) {
        self.command(Command::Ids {
            context: id(number),
            segment,
            total,
            closed,
            frames_predicted: total * 3,
            frames_max: total * 6 + 20,
        });
    }

    pub(crate) fn playback(&mut self, number: u64, playback: Playback) {
        self.command(Command::Playback { context: id(number), playback });
    }

    /// The listener hears position 0 from now on.
    pub(crate) fn plays(&mut self, number: u64) {
        self.playback(number, Playback::Playing { zero: self.now });
    }

    /// Runs until `until`, handing in every completion and timeout on the way.
    pub(crate) fn run_until(&mut self, until: Tick) {
        while let Some(next) = self.next_event().filter(|&next| next <= until) {
            self.step_to(next);
        }
        self.now = self.now.max(until);
    }

    pub(crate) fn run_for(&mut self, span: Span) {
        self.run_until(self.now + span);
    }

    /// Runs until nothing is due any more; false when that takes more than `events` events.
    pub(crate) fn run_dry(&mut self, events: u64) -> bool {
        let most = self.events + events;
        while let Some(next) = self.next_event() {
            if self.events >= most {
                return false;
            }
            self.step_to(next);
        }
        true
    }

    pub(crate) fn next_event(&self) -> Option<Tick> {
        let landing = self.flying.iter().map(|flight| flight.finish).min();
        let (wake, _) = self.sched.poll_timeout();
        let wake = (wake != Tick::NEVER).then_some(wake);
        landing.into_iter().chain(wake).min()
    }

    /// Hands in what happens at `tick`: one completion if one is due, else the timeout.
    pub(crate) fn step_to(&mut self, tick: Tick) {
        self.events += 1;
        self.now = self.now.max(tick);
        match self.flying.iter().position(|flight| flight.finish <= self.now) {
            Some(_) => {
                let first = (0..self.flying.len())
                    .min_by_key(|&at| (self.flying[at].finish, self.flying[at].decision.launch()));
                let flight = self.flying.remove(first.expect("one is due"));
                let completion = self.land(&flight);
                self.complete(&flight.decision, completion);
            }
            None => self.sched.handle_timeout(self.now),
        }
        self.drain();
    }

    pub(crate) fn complete(&mut self, decision: &Decision, completion: Completion) {
        if let Some(model) = &mut self.model {
            model.before_completion(decision, &completion);
        }
        self.sched.handle_completion(self.now, completion);
    }

    pub(crate) fn finished(&self, number: u64) -> Option<contract::FinishReason> {
        self.outputs.iter().find_map(|(_, output)| match output {
            SchedOutput::Finished { context, reason, .. } if *context == id(number) => Some(*reason),
            _ => None,
        })
    }

    pub(crate) fn chunks(&self, number: u64) -> Vec<sched::CommittedChunk> {
        let chunks = self.outputs.iter().filter_map(|(_, output)| match output {
            SchedOutput::ChunkCommitted(chunk) if chunk.context == id(number) => Some(chunk.clone()),
            _ => None,
        });
        chunks.collect()
    }

    pub(crate) fn launched(&self, stage: Stage) -> Vec<(Tick, Decision)> {
        self.decisions.iter().filter(|(_, decision)| decision.stage() == stage).cloned().collect()
    }

    pub(crate) fn codec_in(&self, lane: Lane) -> Vec<(Tick, Decision)> {
        let in_lane =
            |(_, decision): &&(Tick, Decision)| decision.stage() == Stage::Codec && decision.lane() == lane;
        self.decisions.iter().filter(in_lane).cloned().collect()
    }

    pub(crate) fn drain(&mut self) {
        loop {
            self.take_outputs();
            let Some(decision) = self.sched.poll_decision(self.now) else { break };
            if let Some(model) = &mut self.model {
                model.decision(self.now, &self.sched, &decision);
            }
            self.launch(decision);
        }
        self.take_outputs();
        if let Err(broken) = self.sched.check_invariants() {
            panic!("at {}: {broken}", self.now);
        }
        let (wake, reason) = self.sched.poll_timeout();
        assert!(wake > self.now, "a timeout ({reason:?}) at {wake} is not later than {}", self.now);
        if let Some(model) = &mut self.model {
            model.settled(self.now, &self.sched);
        }
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.sched.poll_output() {
            if let Some(model) = &mut self.model {
                model.output(&output);
            }
            self.outputs.push((self.now, output));
        }
    }

    fn launch(&mut self, decision: Decision) {
        let lane = match decision.lane() {
            Lane::Background => 0,
            Lane::Lm => 1,
            Lane::Urgent => 2,
        };
        let start = self.free_at[lane].max(self.now);
        let took =
            Span::from_micros((decision.why().expected.as_micros() * self.pace_permille / 1_000).max(1));
        self.free_at[lane] = start + took;
        self.flying.push(Flying { decision: decision.clone(), finish: start + took, took });
        self.decisions.push((self.now, decision));
    }

    fn land(&mut self, flight: &Flying) -> Completion {
        let result = if self.losing == Some(flight.decision.lane()) {
            self.losing = None;
            self.forget(&flight.decision);
            LaunchResult::Lost { what: "the test pulled it".to_owned() }
        } else {
            match &flight.decision {
                Decision::Encode { .. } => match self.encode_error.take() {
                    Some(error) => LaunchResult::EncodeFailed { error },
                    None => LaunchResult::Encoded,
                },
                Decision::Prefill { .. } | Decision::Decode { .. } => LaunchResult::Frames(
                    frames_of(&flight.decision)
                        .into_iter()
                        .map(|(context, segment, step, eos_allowed)| {
                            self.frame(context, segment, step, eos_allowed)
                        })
                        .collect(),
                ),
                Decision::Codec { rows, .. } => LaunchResult::Chunks(
                    rows.iter().map(|row| self.chunk(row.context, row.segment)).collect(),
                ),
            }
        };
        Completion { launch: flight.decision.launch(), at: flight.finish, took: flight.took, result }
    }

    /// Rows of a lost launch are over on the device too.
    fn forget(&mut self, decision: &Decision) {
        for (context, segment, ..) in frames_of(decision) {
            self.rows.entry((context, segment)).or_default().done = true;
        }
    }

    fn frame(&mut self, context: ContextId, segment: u32, step: u32, eos_allowed: bool) -> FrameResult {
        let script = self.scripts.get(&(context, segment)).unwrap_or(&self.script);
        let rows = self.rows.entry((context, segment)).or_default();
        let hash = match script.period {
            0 => u64::from(step) | 1 << 40,
            period => u64::from(step) % period,
        };
        let outcome = if rows.done {
            FrameOutcome::NoOp
        } else if eos_allowed && step >= script.eos_at {
            rows.done = true;
            FrameOutcome::EndOfSpeech
        } else {
            assert_eq!(rows.made, step, "{context} segment {segment}: the device is at another step");
            rows.made += 1;
            FrameOutcome::Made
        };
        FrameResult { outcome, code_hash: hash }
    }

    fn chunk(&mut self, context: ContextId, segment: u32) -> ChunkResult {
        let script = self.scripts.get(&(context, segment)).unwrap_or(&self.script);
        let rows = self.rows.entry((context, segment)).or_default();
        rows.chunks += 1;
        if script.not_finite_at == Some(rows.chunks - 1) {
            ChunkResult::NotFinite
        } else {
            ChunkResult::Made { peak: script.peak }
        }
    }
}

/// Context, segment, step and whether it may end, of each frame a launch makes, in order.
pub(crate) fn frames_of(decision: &Decision) -> Vec<(ContextId, u32, u32, bool)> {
    let steps = |rows: &[DecodeRow]| -> Vec<_> {
        rows.iter().map(|row| (row.context, row.segment, row.step, row.eos_allowed)).collect()
    };
    match decision {
        Decision::Prefill { rows, riders, .. } => {
            let first = rows.iter().map(|row| (row.context, row.segment, 0, row.eos_allowed));
            first.chain(steps(riders)).collect()
        }
        Decision::Decode { rows, .. } => steps(rows),
        Decision::Codec { .. } | Decision::Encode { .. } => Vec::new(),
    }
}
