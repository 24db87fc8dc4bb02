//! Rows of device memory, one set a running context.

use contract::SlotId;

#[derive(Clone, Debug)]
pub(crate) struct SlotPool {
    /// Free slots; the last one is handed out next.
    free: Vec<SlotId>,
    total: u32,
}

impl SlotPool {
    pub(crate) fn new(slots: u32) -> Self {
        Self { free: (0..slots).rev().map(SlotId).collect(), total: slots }
    }

    pub(crate) fn take(&mut self) -> Option<SlotId> {
        self.free.pop()
    }

    pub(crate) fn release(&mut self, slot: SlotId) {
        self.free.push(slot);
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn used(&self) -> u32 {
        self.total - self.free()
    }
}
