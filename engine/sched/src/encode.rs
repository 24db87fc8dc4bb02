//! References still to be encoded: once per key, shared by all contexts that wait for it.

use contract::{ContextId, Lane, LaunchId, Partition, Span, Stage, Tick};

use crate::flight::Flight;
use crate::{Decision, EncodeKey, Sched};

#[derive(Clone, Debug, Default)]
pub(crate) struct Encode {
    pub(crate) samples: u32,
    pub(crate) launch: Option<LaunchId>,
    /// In order of arrival.
    pub(crate) waiters: Vec<ContextId>,
}

/// The encode that should run next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueEncode {
    pub(crate) key: EncodeKey,
    pub(crate) deadline: Tick,
    pub(crate) cost: Span,
}

impl Sched {
    pub(crate) fn wait_for_encode(&mut self, key: EncodeKey, samples: u32, context: ContextId) {
        let encode = self.encodes.entry(key).or_default();
        self.counters.encodes_shared += u64::from(!encode.waiters.is_empty());
        encode.samples = samples;
        encode.waiters.push(context);
    }

    /// A context waits no longer; an encode nobody waits for is not begun.
    pub(crate) fn leave_encode(&mut self, key: EncodeKey, context: ContextId) {
        if let Some(encode) = self.encodes.get_mut(&key) {
            encode.waiters.retain(|&waiter| waiter != context);
            if encode.waiters.is_empty() && encode.launch.is_none() {
                self.encodes.remove(&key);
            }
        }
    }

    /// The encode whose earliest waiter is due first.
    pub(crate) fn due_encode(&self) -> Option<DueEncode> {
        let view = self.view(self.now);
        let waiting = self.encodes.iter().filter(|(_, encode)| encode.launch.is_none());
        waiting
            .filter_map(|(&key, encode)| {
                let contexts = encode.waiters.iter().filter_map(|waiter| self.contexts.get(waiter));
                let deadline = contexts.map(|context| view.first_due(context)).min()?;
                Some(DueEncode { key, deadline, cost: self.encode_cost(encode) })
            })
            .min_by_key(|due| (due.deadline, due.key))
    }

    pub(crate) fn encode_cost(&self, encode: &Encode) -> Span {
        self.profile.cost(Stage::Encode, Partition::Whole, 1, encode.samples.max(1))
    }

    pub(crate) fn launch_encode(&mut self, due: DueEncode, reason: &'static str) -> Option<Decision> {
        let why = self.why(reason, due.cost);
        let encode = self.encodes.get(&due.key)?;
        let (context, length) = (*encode.waiters.first()?, encode.samples.max(1));
        let launch = self.take_off(Flight {
            lane: Lane::Lm,
            stage: Stage::Encode,
            partition: Partition::Whole,
            launched: self.now,
            expected: due.cost,
            bucket: 1,
            length,
            key: Some(due.key),
            rows: Vec::new(),
        });
        if let Some(encode) = self.encodes.get_mut(&due.key) {
            encode.launch = Some(launch);
        }
        Some(Decision::Encode { launch, context, key: due.key, why })
    }
}
