//! The scheduler: a pure state machine that decides what runs in which lane, and when.
//!
//! It does no IO, reads no clock and starts no thread. Time is an argument of every verb, so the
//! same commands and completions at the same ticks always give the same decisions: the engine loop,
//! the simulator and the tests all drive it alike. The rules are those of DESIGN.md section 5, the
//! words those of section 1.
//!
//! After every mutation (`handle_*`) the caller drains [`Sched::poll_decision`] and
//! [`Sched::poll_output`] until both are empty, then sleeps until [`Sched::poll_timeout`] or the next
//! command or completion.

mod admission;
mod beat;
mod codec;
mod codec_costs;
mod command;
mod commands;
mod completion;
mod completions;
mod config;
mod context;
mod contexts;
mod decision;
mod encode;
mod finish;
mod flight;
mod guard;
mod index;
mod invariants;
mod ladder;
mod lm;
mod order;
mod output;
mod pages;
mod placement;
mod policy;
mod prefill;
mod prefix;
mod profile;
mod record;
mod ride;
mod slack;
mod slots;
mod split;
mod stats;
mod timers;

use std::collections::{BTreeMap, VecDeque};

use contract::{ContextId, EngineStats, LaunchId, Span, Tick};

use beat::{Beat, Steady};
use codec_costs::CodecCosts;
use contexts::Contexts;
use encode::Encode;
use flight::Flight;
use index::{Entry, Index};
use ladder::Ladder;
use pages::PagePool;
use policy::Policy;
use prefix::Prefix;
use record::Records;
use slack::{Pace, View};
use slots::SlotPool;

pub use command::{Command, EncodeKey};
pub use completion::{ChunkResult, Completion, FrameOutcome, FrameResult, LaunchResult};
pub use config::{ConfigError, GuardConfig, PrefillPolicy, SchedConfig};
pub use decision::{CodecRow, Counterfactual, Decision, DecodeRow, PrefillRow, TextInput, Why, reason};
pub use invariants::InvariantBroken;
pub use output::{CommittedChunk, RefusalCause, SchedOutput, SchedUsage};
pub use placement::{Forecast, place};
pub use profile::{CostTable, Profile};
pub use record::Record;
pub use split::{SplitCandidate, choose_split};
pub use stats::{Counters, Snapshot};
pub use timers::WakeReason;

/// The scheduler of one model on one device.
#[derive(Clone, Debug)]
pub struct Sched {
    config: SchedConfig,
    profile: Profile,
    costs: CodecCosts,
    /// The latest tick handed in. Time never goes backwards.
    now: Tick,
    contexts: Contexts,
    /// What follows from the contexts, brought up to date by [`Sched::reindex`].
    index: Index,
    /// Nothing more follows at this tick from what was known when all was last brought up to date.
    settled: bool,
    /// Contexts indexed anew and not marked since.
    unmarked: Vec<ContextId>,
    encodes: BTreeMap<EncodeKey, Encode>,
    prefixes: BTreeMap<EncodeKey, Prefix>,
    /// Launches whose fence has not passed.
    flights: BTreeMap<LaunchId, Flight>,
    next_launch: LaunchId,
    pages: PagePool,
    slots: SlotPool,
    pace: Pace,
    /// The profile has been corrected since the pace was measured.
    repriced: bool,
    beat: Beat,
    ladder: Ladder,
    policy: Policy,
    /// Since when a due prefill has been held back in a row.
    deferring_since: Option<Tick>,
    /// Decode steps launched since the last prefill.
    steps_since_prefill: u32,
    outputs: VecDeque<SchedOutput>,
    records: Records,
    counters: Counters,
}

impl Sched {
    /// # Errors
    /// A bound of the configuration or a shape of the profile that cannot be run.
    pub fn new(config: SchedConfig, profile: Profile) -> Result<Self, ConfigError> {
        config.validate()?;
        profile.validate()?;
        Ok(Self {
            now: Tick::ZERO,
            contexts: Contexts::default(),
            index: Index::default(),
            settled: false,
            unmarked: Vec::new(),
            encodes: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_launch: LaunchId(1),
            pages: PagePool::new(config.pages, config.page_positions),
            slots: SlotPool::new(config.slots),
            pace: Pace::default(),
            repriced: true,
            beat: Beat::default(),
            ladder: Ladder::default(),
            policy: Policy::default(),
            deferring_since: None,
            steps_since_prefill: 0,
            outputs: VecDeque::new(),
            records: Records::default(),
            counters: Counters::default(),
            config,
            costs: CodecCosts::of(&profile),
            profile,
        })
    }

    /// Takes one command in.
    pub fn handle_command(&mut self, now: Tick, command: Command) {
        self.advance(now);
        self.apply_command(command);
        self.refresh();
    }

    /// Takes one launch's end in.
    pub fn handle_completion(&mut self, now: Tick, completion: Completion) {
        self.advance(now);
        self.apply_completion(completion);
        self.refresh();
    }

    /// Lets time pass: what was due by `now` happens.
    pub fn handle_timeout(&mut self, now: Tick) {
        self.advance(now);
    }

    /// The next launch, if one is due. Call until `None`.
    pub fn poll_decision(&mut self, now: Tick) -> Option<Decision> {
        if now > self.now {
            self.advance(now);
        }
        let Some(decision) = self.decide() else {
            // Looking for one may have stalled a context or made a chunk urgent.
            self.reindex();
            return None;
        };
        self.records.push(self.now, &decision, self.config.records_max);
        self.refresh();
        Some(decision)
    }

    /// The next event, in order. Call until `None`.
    pub fn poll_output(&mut self) -> Option<SchedOutput> {
        self.outputs.pop_front()
    }

    /// The bounds and targets it was made with.
    #[must_use]
    pub fn config(&self) -> &SchedConfig {
        &self.config
    }

    /// The profile as corrected by the launches measured so far.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let counters = self.counters;
        Snapshot {
            engine: EngineStats {
                open: self.contexts.len() as u32,
                running: self.slots.used(),
                pages_used: self.pages.used(),
                pages_total: self.pages.total(),
                ready_chunks: self.index.heads as u32,
                background: counters.background,
                lm: counters.lm,
                urgent: counters.urgent,
                refused: counters.refused,
                finished_done: counters.finished_done,
                finished_capped: counters.finished_capped,
                finished_cancelled: counters.finished_cancelled,
                finished_failed: counters.finished_failed,
                encodes: counters.encodes,
                frames: counters.frames,
                chunks_late: counters.chunks_late,
                cancelled_lm_freed: counters.cancelled_lm_freed,
                cancelled_freed: counters.cancelled_freed,
                // The rest is the runtime's to know.
                ..EngineStats::default()
            },
            counters,
            slots_free: self.slots.free(),
            pages_reserved: self.pages.reserved(),
            rung: self.ladder.rung() as u32,
            prefill_first: self.prefill_first(),
            prefills_waiting: self.index.waiting.len() as u32,
        }
    }

    /// Urgent first: it is never held up by what the other lanes could do.
    fn decide(&mut self) -> Option<Decision> {
        let urgent = self.urgent_decision().or_else(|| self.lm_decision());
        if urgent.is_some() {
            return urgent;
        }
        // A member that a background batch would make late goes urgent instead, at once.
        self.background_decision().or_else(|| self.urgent_decision())
    }

    /// Moves time on and lets what fell due happen.
    fn advance(&mut self, now: Tick) {
        let settled = self.settled && self.unmarked.is_empty() && self.contexts.is_untouched();
        if now > self.now || !settled {
            self.now = self.now.max(now);
            self.refresh();
        }
    }

    /// Brings all that follows from the state up to date.
    fn refresh(&mut self) {
        let Self { contexts, index, now, .. } = self;
        index.due(*now).for_each(|id| contexts.touch(id));
        self.reindex();
        self.expire();
        self.reindex();
        self.measure_pace();
        let Self { config, profile, costs, contexts, index, pace, beat, now, .. } = self;
        let view = View { config, profile, costs, pace: *pace, beat: *beat, now: *now };
        index.restless(&view).for_each(|id| contexts.touch(id));
        self.reindex();
        self.mark_contexts();
        self.reindex();
        self.settled = !self.follow_policy();
    }

    /// Brings the index up to date with what has been touched.
    fn reindex(&mut self) {
        if self.contexts.is_untouched() {
            return;
        }
        let from = self.unmarked.len();
        self.contexts.take_touched(&mut self.unmarked);
        let Self { config, profile, costs, contexts, index, unmarked, pace, beat, now, .. } = self;
        let view = View { config, profile, costs, pace: *pace, beat: *beat, now: *now };
        for (id, mut entry) in contexts.take_gone() {
            index.put(id, &mut entry, &Entry::default());
        }
        for id in contexts.take_stepped() {
            if contexts.mark(&id).is_some_and(|context| !context.step_on(index, &view)) {
                unmarked.push(id);
            }
        }
        for id in &unmarked[from..] {
            let Some(context) = contexts.mark(id) else { continue };
            let entry = Entry::of(context, &view);
            context.steady = Steady::of(context, &entry, &view);
            index.put(*id, &mut context.entry, &entry);
        }
    }

    fn measure_pace(&mut self) {
        let (contexts, positions) = (self.index.stepping.len() as u32, self.index.positions_max(self.beat));
        if self.repriced || (contexts, positions) != (self.pace.contexts, self.pace.positions) {
            self.repriced = false;
            let round = self.round_time(contexts, positions);
            self.pace = Pace { contexts, positions, round };
        }
    }

    /// Notes for each context that has changed whether its text is dry and its head chunk ready, waiting
    /// or promoted.
    fn mark_contexts(&mut self) {
        let mut changed = std::mem::take(&mut self.unmarked);
        changed.sort_unstable();
        changed.dedup();
        let Self { config, profile, costs, contexts, outputs, counters, pace, beat, now, .. } = self;
        let view = View { config, profile, costs, pace: *pace, beat: *beat, now: *now };
        for id in changed.drain(..) {
            let Some(context) = contexts.mark(&id).filter(|context| !context.finished) else { continue };
            let ahead = context.active().is_some() && !profile.state_grows && view.is_ahead(context);
            counters.yields += u64::from(ahead && !context.yielding);
            context.yielding = ahead;
            codec::mark_head(context, &view, counters);
            if let Some(output) = finish::mark_text(context, &view, counters) {
                outputs.push_back(output);
                // Since when its text is dry decides when it is idle.
                contexts.touch(id);
            }
        }
        self.unmarked = changed;
    }

    fn view(&self, now: Tick) -> View<'_> {
        View {
            config: &self.config,
            profile: &self.profile,
            costs: &self.costs,
            pace: self.pace,
            beat: self.beat,
            now,
        }
    }

    /// Time in which each of `contexts` contexts gets one step.
    fn round_time(&self, contexts: u32, positions: u32) -> Span {
        let contexts = contexts.max(1);
        let most = self.profile.decode_contexts_max().max(1);
        let bucket = self.profile.decode_bucket(contexts.min(most));
        let step =
            self.profile.cost(contract::Stage::Decode, contract::Partition::Lm, bucket, positions.max(1));
        step.times(i64::from(contexts.div_ceil(most)))
    }
}
