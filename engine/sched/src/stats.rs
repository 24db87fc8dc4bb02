//! Counters: what happened, and how often each hard case did.

use contract::{EngineStats, Lane, LaneStats, Stage};

/// Totals since start. The hard cases are counted so that tests can show they were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub admitted: u64,
    pub refused: u64,
    /// Commands that named nothing or contradicted an earlier one.
    pub ignored: u64,
    /// Chunks that waited and turned urgent.
    pub promotions: u64,
    /// Those whose predecessor was in flight in the background lane.
    pub promotions_behind_predecessor: u64,
    /// Background members that went urgent because their next chunk would have been late.
    pub inversions_averted: u64,
    /// Background batches cut shorter by the same rule.
    pub batches_cut: u64,
    /// Chunks shorter than the ladder wanted, because text was dry or steps too slow.
    pub chunks_cut: u64,
    pub cancelled_in_background: u64,
    pub cancelled_in_lm: u64,
    pub cancelled_in_urgent: u64,
    /// As [`EngineStats::cancelled_lm_freed`] and [`EngineStats::cancelled_freed`].
    pub cancelled_lm_freed: [u64; 4],
    pub cancelled_freed: [u64; 4],
    /// Launches of the backbone that have ended.
    pub lm_steps: u64,
    pub text_dry: u64,
    /// Steps that found no free page, and contexts capped for that.
    pub page_exhaustions: u64,
    pub page_victims: u64,
    /// Prefills that were due and found no slot.
    pub slot_exhaustions: u64,
    /// Prefills that were due and found too few pages.
    pub page_waits: u64,
    pub deferrals: u64,
    pub deferrals_to_cap: u64,
    /// Prefill launches in which the running contexts' step rode along.
    pub rides: u64,
    /// Prefills for which chunks of running contexts may have had to be cut.
    pub prefills_by_cut: u64,
    pub ladder_changes: u64,
    pub policy_switches: u64,
    pub lanes_lost: u64,
    pub stale_rows: u64,
    /// Completions of launches that are not in flight.
    pub stale_completions: u64,
    pub yields: u64,
    pub encodes: u64,
    pub encodes_shared: u64,
    pub capped_by_frames: u64,
    pub capped_by_repetition: u64,
    pub capped_by_silence: u64,
    pub not_finite: u64,
    pub finished_done: u64,
    pub finished_capped: u64,
    pub finished_cancelled: u64,
    pub finished_failed: u64,
    pub finished_idle: u64,
    pub frames: u64,
    pub chunks: u64,
    pub chunks_late: u64,
    pub background: LaneStats,
    pub lm: LaneStats,
    pub urgent: LaneStats,
}

/// A consistent view of the scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Totals and depths in the words of the engine's handle. `mailbox_depth` and `encode_hits` are
    /// the runtime's to fill.
    pub engine: EngineStats,
    pub counters: Counters,
    /// Free slots; used ones are `engine.running`.
    pub slots_free: u32,
    pub pages_reserved: u32,
    /// Where on the ladder new contexts start: index into the captured lengths.
    pub rung: u32,
    /// Prefill goes first now.
    pub prefill_first: bool,
    /// Segments that wait for their prefill.
    pub prefills_waiting: u32,
}

impl Counters {
    pub(crate) fn lane_mut(&mut self, lane: Lane) -> &mut LaneStats {
        match lane {
            Lane::Background => &mut self.background,
            Lane::Lm => &mut self.lm,
            Lane::Urgent => &mut self.urgent,
        }
    }

    pub(crate) fn count_launch(&mut self, lane: Lane, stage: Stage, rows: u32) {
        let stats = self.lane_mut(lane);
        stats.launches += 1;
        stats.rows += u64::from(rows);
        if stage == Stage::Encode {
            self.encodes += 1;
        }
    }
}

/// One more that took `steps`: 0, 1, 2, or more.
pub(crate) fn count_steps(counts: &mut [u64; 4], steps: u64) {
    let last = counts.len() - 1;
    counts[usize::try_from(steps).map_or(last, |steps| steps.min(last))] += 1;
}
