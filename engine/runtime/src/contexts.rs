//! Open contexts by id, and those that run by their slot, by which a row of a launch finds its context.

use std::collections::BTreeMap;

use contract::{ContextId, SlotId};

use crate::context::{Segment, Speaking};

#[derive(Default)]
pub(crate) struct Contexts {
    places: Vec<Option<(ContextId, Speaking)>>,
    free: Vec<usize>,
    by_id: BTreeMap<ContextId, usize>,
    /// The place of the context that took each slot last, whether or not it still has it.
    by_slot: Vec<usize>,
}

/// One context's segment, as rows of launches name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowName {
    pub(crate) context: ContextId,
    pub(crate) slot: SlotId,
    pub(crate) segment: u32,
}

impl Contexts {
    pub(crate) fn get(&self, id: &ContextId) -> Option<&Speaking> {
        let place = *self.by_id.get(id)?;
        self.places[place].as_ref().map(|(_, speaking)| speaking)
    }

    pub(crate) fn get_mut(&mut self, id: &ContextId) -> Option<&mut Speaking> {
        let place = *self.by_id.get(id)?;
        self.places[place].as_mut().map(|(_, speaking)| speaking)
    }

    pub(crate) fn insert(&mut self, id: ContextId, speaking: Speaking) {
        self.remove(&id);
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some((id, speaking));
        self.by_id.insert(id, place);
    }

    pub(crate) fn remove(&mut self, id: &ContextId) {
        let Some(place) = self.by_id.remove(id) else { return };
        self.places[place] = None;
        self.free.push(place);
    }

    /// In the order of their ids.
    pub(crate) fn ids(&self) -> Vec<ContextId> {
        self.by_id.keys().copied().collect()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Speaking> {
        self.places.iter().flatten().map(|(_, speaking)| speaking)
    }

    /// The context has this slot from here on.
    pub(crate) fn seat(&mut self, id: &ContextId, slot: SlotId) {
        let Some(&place) = self.by_id.get(id) else { return };
        let slot = slot.0 as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, 0);
        }
        self.by_slot[slot] = place;
    }

    pub(crate) fn row(&self, name: RowName) -> Option<(&Speaking, &Segment)> {
        let place = *self.by_slot.get(name.slot.0 as usize)?;
        let (id, speaking) = self.places.get(place)?.as_ref()?;
        // Whoever has the slot now may be another.
        if *id != name.context {
            return None;
        }
        Some((speaking, speaking.segments.get(&name.segment)?))
    }

    pub(crate) fn row_mut(&mut self, name: RowName) -> Option<&mut Segment> {
        let place = *self.by_slot.get(name.slot.0 as usize)?;
        let (id, speaking) = self.places.get_mut(place)?.as_mut()?;
        if *id != name.context {
            return None;
        }
        speaking.segments.get_mut(&name.segment)
    }
}
