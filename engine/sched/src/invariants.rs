//! What always holds (DESIGN.md section 8), checked against the whole state.

use std::collections::BTreeMap;

use contract::{Lane, PageId, Stage};

use crate::context::Context;
use crate::index::{Entry, Index};
use crate::{Sched, SchedConfig};

/// A rule of the scheduler's own that does not hold: a bug here, never in a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scheduler invariant broken: {0}")]
pub struct InvariantBroken(pub String);

impl Sched {
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), InvariantBroken> {
        self.check_pages()?;
        self.check_lanes()?;
        self.check_index()?;
        let mut slots = Vec::new();
        for context in self.contexts.values() {
            check_context(context)?;
            slots.extend(context.slot);
            self.check_claims(context)?;
        }
        slots.sort_unstable();
        let held = slots.len();
        slots.dedup();
        ensure(slots.len() == held, || "a slot has two owners".to_owned())?;
        ensure(held as u32 == self.slots.used(), || "a slot is neither held nor free".to_owned())?;
        let SchedConfig { open_max, .. } = self.config;
        ensure(self.contexts.len() <= open_max as usize, || "too many contexts".to_owned())?;
        for (key, encode) in &self.encodes {
            let flying = encode.launch.is_some_and(|launch| self.flights.contains_key(&launch));
            ensure(flying || !encode.waiters.is_empty(), || format!("nobody waits for {key:?}"))?;
            for waiter in &encode.waiters {
                let waits = self.contexts.get(waiter).is_some_and(|context| context.encode == Some(*key));
                ensure(waits, || format!("{waiter} is on an encode's list and does not wait"))?;
            }
        }
        Ok(())
    }

    /// What is kept about contexts is what follows from them now.
    fn check_index(&self) -> Result<(), InvariantBroken> {
        ensure(self.contexts.is_untouched(), || "a change has not been indexed".to_owned())?;
        let view = self.view(self.now);
        let mut fresh = Index::default();
        for context in self.contexts.values() {
            let entry = Entry::of(context, &view);
            let kept = context.entry == entry;
            ensure(kept, || format!("{}: its entry is not what follows from it", context.id))?;
            fresh.put(context.id, &mut Entry::default(), &entry);
        }
        ensure(self.index == fresh, || "the index is not what follows from the contexts".to_owned())
    }

    fn check_pages(&self) -> Result<(), InvariantBroken> {
        let (mut owners, mut promised) = (BTreeMap::<PageId, u32>::new(), 0);
        let mut own = |pages: &[PageId]| pages.iter().for_each(|&page| *owners.entry(page).or_default() += 1);
        for segment in self.contexts.values().flat_map(|context| &context.segments) {
            own(&segment.pages);
            promised += segment.promised;
        }
        self.prefixes.values().for_each(|prefix| own(&prefix.pages));
        let held = owners.len() as u32;
        ensure(held == self.pages.used(), || format!("{held} pages held, {} used", self.pages.used()))?;
        ensure(promised == self.pages.reserved(), || "promised pages do not add up".to_owned())?;
        let free = self.pages.total() - self.pages.used();
        ensure(promised <= free, || format!("{promised} pages promised, {free} free"))?;
        let counted = owners.iter().all(|(&page, &count)| self.pages.owners(page) == count);
        ensure(counted, || "a page's count is not its owners".to_owned())?;
        let kept = self.prefixes.values().map(|prefix| prefix.pages.len()).sum::<usize>();
        ensure(kept <= self.config.prefix_pages_max as usize, || "prefixes over their budget".to_owned())
    }

    fn check_lanes(&self) -> Result<(), InvariantBroken> {
        let lm = self.flights_in(Lane::Lm);
        ensure(lm <= self.config.lm_depth, || format!("{lm} launches in the lm lane"))?;
        for lane in [Lane::Background, Lane::Urgent] {
            ensure(self.flights_in(lane) <= 1, || format!("two launches in the {} lane", lane.name()))?;
        }
        for flight in self.flights.values() {
            let most = match flight.stage {
                Stage::Codec if flight.lane == Lane::Urgent => self.config.urgent_batch_max,
                Stage::Codec => self.profile.codec_rows_max(),
                Stage::Decode => self.profile.decode_contexts_max(),
                Stage::Encode => 0,
                Stage::Prefill => self.config.prefill_rows_max.max(self.config.ride_rows_max),
            };
            ensure(flight.rows.len() as u32 <= most, || format!("{} rows in one launch", flight.rows.len()))?;
        }
        Ok(())
    }

    fn check_claims(&self, context: &Context) -> Result<(), InvariantBroken> {
        let id = context.id;
        for lane in Lane::ALL {
            let named = self.flights.values().filter(|flight| flight.lane == lane);
            let rows = named.flat_map(|flight| &flight.rows).filter(|row| row.context == id);
            let rows = rows.count() as u32;
            let claimed = context.in_flight(lane);
            ensure(rows == claimed, || {
                format!("{id}: {rows} rows in the {} lane, {claimed} claimed", lane.name())
            })?;
        }
        let codec = context.in_flight(Lane::Background) + context.in_flight(Lane::Urgent);
        ensure(codec <= 1, || format!("{id}: two chunks at once"))?;
        let lm: u32 = context.segments.iter().map(|segment| segment.lm_in_flight).sum();
        ensure(lm == context.in_flight(Lane::Lm), || format!("{id}: lm launches do not add up"))?;
        ensure(!context.is_removable(), || format!("{id}: should have been removed"))
    }
}

fn check_context(context: &Context) -> Result<(), InvariantBroken> {
    let id = context.id;
    let running = context.segments.iter().filter(|segment| segment.is_active()).count();
    ensure(running <= 1, || format!("{id}: two segments in the lm lane"))?;
    for segment in &context.segments {
        let name = || format!("{id} segment {}", segment.index);
        ensure(segment.dispatched <= segment.made, || format!("{}: undone frames dispatched", name()))?;
        ensure(segment.committed <= segment.dispatched, || format!("{}: commits too much", name()))?;
        ensure(segment.made <= segment.launched, || format!("{}: frames without launch", name()))?;
        let within = context.finished || segment.total.is_none_or(|total| segment.dispatched <= total);
        ensure(within, || format!("{}: speaks past its end", name()))?;
        let idle = segment.launched == 0;
        ensure(!idle || segment.pages.is_empty() && segment.promised == 0, || {
            format!("{}: holds pages", name())
        })?;
        ensure(idle || segment.total.is_some() || context.slot.is_some(), || {
            format!("{}: runs without a slot", name())
        })?;
    }
    let holds_for_nothing =
        context.slot.is_some() && context.segments.is_empty() && !context.anything_in_flight();
    ensure(!holds_for_nothing, || format!("{id}: idle and holds a slot"))?;
    let gone = context.segments.iter().map(|segment| u64::from(segment.dispatched)).sum::<u64>();
    ensure(context.dispatched == context.frames_before + gone, || format!("{id}: frames do not add up"))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), InvariantBroken> {
    if holds { Ok(()) } else { Err(InvariantBroken(what())) }
}
