//! Every decision is recorded with its reason and with what plain round robin would have done.

use std::collections::VecDeque;

use contract::{ContextId, Lane, LaunchId, Stage, Tick};

use crate::order::Sorted;
use crate::{Counterfactual, Decision, Sched, Why};

/// One decision, kept in a ring of [`crate::SchedConfig::records_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub at: Tick,
    pub launch: LaunchId,
    pub lane: Lane,
    pub stage: Stage,
    pub rows: u32,
    pub why: Why,
}

/// The ring, and where round robin's circle stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    ring: VecDeque<Record>,
    /// Round robin goes on with the first context after this one.
    after: ContextId,
}

impl Records {
    pub(crate) fn push(&mut self, at: Tick, decision: &Decision, max: u32) {
        if let Some(head) = decision.why().counterfactual.head {
            self.after = head;
        }
        while self.ring.len() >= max as usize {
            self.ring.pop_front();
        }
        self.ring.push_back(Record {
            at,
            launch: decision.launch(),
            lane: decision.lane(),
            stage: decision.stage(),
            rows: decision.rows() as u32,
            why: *decision.why(),
        });
    }
}

impl Sched {
    /// The latest decisions, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.ring.iter()
    }

    /// What plain round robin would launch now: a waiting prefill or encode, else every ready chunk,
    /// else one step of every running context, each taken in a circle and cut to the largest bucket.
    pub(crate) fn round_robin(&self) -> Counterfactual {
        let pick = |kind: &Sorted<ContextId>| {
            let next = kind.partition_point(|id| *id <= self.records.after);
            let head = kind.get(next).or(kind.front()).copied();
            (kind.len() as u32, head)
        };
        let prefill = pick(&self.index.prefilling);
        let (stage, (count, head), max) = if prefill.0 > 0 {
            (Stage::Prefill, prefill, 1)
        } else {
            match self.index.next_ready(self.records.after) {
                (0, _) => (Stage::Decode, pick(&self.index.stepping), self.profile.decode_contexts_max()),
                codec => (Stage::Codec, codec, self.profile.codec_rows_max()),
            }
        };
        Counterfactual { stage, rows: count.min(max), head }
    }
}
