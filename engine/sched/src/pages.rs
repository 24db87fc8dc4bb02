//! The device's page pool: which page is free, who owns how many, and what is promised.

use contract::PageId;

/// Counts owners of every page. A reservation is a promise without a page: `free >= reserved` always
/// holds, so a reserved page can be taken at any time.
#[derive(Clone, Debug)]
pub(crate) struct PagePool {
    owners: Vec<u32>,
    /// Free pages; the last one is handed out next.
    free: Vec<PageId>,
    reserved: u32,
    positions: u32,
}

impl PagePool {
    pub(crate) fn new(pages: u32, positions: u32) -> Self {
        let free = (0..pages).rev().map(PageId).collect();
        Self { owners: vec![0; pages as usize], free, reserved: 0, positions }
    }

    /// Pages that hold this many key/value positions.
    pub(crate) fn pages_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.positions)
    }

    pub(crate) fn total(&self) -> u32 {
        self.owners.len() as u32
    }

    pub(crate) fn used(&self) -> u32 {
        self.total() - self.free.len() as u32
    }

    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Pages neither owned nor promised.
    pub(crate) fn available(&self) -> u32 {
        (self.free.len() as u32).saturating_sub(self.reserved)
    }

    /// Promises `count` pages; false when that many are not available.
    pub(crate) fn reserve(&mut self, count: u32) -> bool {
        if count > self.available() {
            return false;
        }
        self.reserved += count;
        true
    }

    pub(crate) fn unreserve(&mut self, count: u32) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// Takes one page for a new owner, out of its promise when `promised` is not zero.
    pub(crate) fn take(&mut self, promised: &mut u32) -> Option<PageId> {
        if *promised > 0 {
            *promised -= 1;
            self.reserved = self.reserved.saturating_sub(1);
        } else if self.available() == 0 {
            return None;
        }
        let page = self.free.pop()?;
        self.owners[page.0 as usize] = 1;
        Some(page)
    }

    /// One owner more, for a prefix that is shared.
    pub(crate) fn retain(&mut self, page: PageId) {
        self.owners[page.0 as usize] += 1;
    }

    /// One owner less; free when none is left.
    pub(crate) fn release(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        *owners = owners.saturating_sub(1);
        if *owners == 0 {
            self.free.push(page);
        }
    }

    pub(crate) fn owners(&self, page: PageId) -> u32 {
        self.owners.get(page.0 as usize).copied().unwrap_or(0)
    }
}
