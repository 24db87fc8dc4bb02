//! What an engine lets others see of its lanes: finished launches and running totals.

use std::collections::BTreeMap;

use crate::{DeviceId, Health, Lane, LaunchId, Spread, Stage, Tick};

/// One finished launch, for traces and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSpan {
    pub device: DeviceId,
    pub launch: LaunchId,
    pub lane: Lane,
    pub stage: Stage,
    /// Live rows.
    pub rows: u32,
    pub started: Tick,
    pub finished: Tick,
    /// Processor parts it ran on: core ids of a CPU, SM range of a GPU.
    pub cores: Vec<u32>,
    /// The rule that launched it (scheduler's words).
    pub reason: &'static str,
}

/// Launches that take about as long as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StageShape {
    pub stage: Stage,
    pub lane: Lane,
    /// Captured frames of a codec launch; 0 for other stages.
    pub length: u32,
    /// Live rows, rounded up as a device's buckets are.
    pub rows: u32,
}

/// Totals since start for one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    pub launches: u64,
    pub rows: u64,
    pub busy_us: u64,
}

/// A consistent snapshot of an engine's counters and depths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Contexts that are open, and those of them that hold a slot.
    pub open: u32,
    pub running: u32,
    pub pages_used: u32,
    pub pages_total: u32,
    /// Commands waiting in the mailbox.
    pub mailbox_depth: u32,
    pub ready_chunks: u32,
    pub background: LaneStats,
    pub lm: LaneStats,
    pub urgent: LaneStats,
    pub refused: u64,
    pub finished_done: u64,
    pub finished_capped: u64,
    pub finished_cancelled: u64,
    pub finished_failed: u64,
    /// Encode stages run, and voices answered from the cache.
    pub encodes: u64,
    pub encode_hits: u64,
    pub frames: u64,
    pub chunks_late: u64,
    /// Cancelled contexts by how many lm steps ended before the lm had let go of them (their pages were free): none,
    /// one, two, more.
    pub cancelled_lm_freed: [u64; 4],
    /// The same, before all they had held was free: a codec may have been decoding a chunk of theirs.
    pub cancelled_freed: [u64; 4],
    /// Times the engine woke because something fell due, by what it was (scheduler's words).
    pub wakes: Vec<(&'static str, u64)>,
    /// How long launches took on the device.
    pub stages: BTreeMap<StageShape, Spread>,
    /// Time the engine's thread took, from what woke it until it waits again, when it launched anything.
    pub rounds: Spread,
    /// Of those rounds, the part spent in calls to the device: launching, and asking what has ended.
    pub rounds_device: Spread,
    /// As `rounds`, of rounds in which a launch landed, by its stage; of several, the last in the order of stages.
    pub landings: BTreeMap<Stage, Spread>,
}

/// One device of an engine, for people, readiness and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceReport {
    pub device: DeviceId,
    /// As [`crate::EngineInfo::device`].
    pub about: String,
    pub health: Health,
    pub stats: EngineStats,
}

impl LaneStats {
    const fn add(&mut self, other: Self) {
        self.launches += other.launches;
        self.rows += other.rows;
        self.busy_us += other.busy_us;
    }
}

impl EngineStats {
    /// Adds what another device counted.
    pub fn add(&mut self, other: &Self) {
        self.open += other.open;
        self.running += other.running;
        self.pages_used += other.pages_used;
        self.pages_total += other.pages_total;
        self.mailbox_depth += other.mailbox_depth;
        self.ready_chunks += other.ready_chunks;
        self.background.add(other.background);
        self.lm.add(other.lm);
        self.urgent.add(other.urgent);
        self.refused += other.refused;
        self.finished_done += other.finished_done;
        self.finished_capped += other.finished_capped;
        self.finished_cancelled += other.finished_cancelled;
        self.finished_failed += other.finished_failed;
        self.encodes += other.encodes;
        self.encode_hits += other.encode_hits;
        self.frames += other.frames;
        self.chunks_late += other.chunks_late;
        for (sums, counts) in [
            (&mut self.cancelled_lm_freed, other.cancelled_lm_freed),
            (&mut self.cancelled_freed, other.cancelled_freed),
        ] {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        for (shape, spread) in &other.stages {
            self.stages.entry(*shape).or_default().add(spread);
        }
        self.rounds.add(&other.rounds);
        self.rounds_device.add(&other.rounds_device);
        for (stage, spread) in &other.landings {
            self.landings.entry(*stage).or_default().add(spread);
        }
        for (reason, count) in &other.wakes {
            match self.wakes.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum += count,
                None => self.wakes.push((reason, *count)),
            }
        }
    }
}
