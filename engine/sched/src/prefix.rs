//! Prompt prefixes that several contexts share: the voice owns their full pages.
//!
//! The first context of a voice prefills the whole prompt; the pages that its prefix fills are then
//! kept under the voice's key, and later contexts start from them. The last, partly filled page is
//! never shared: each context writes its own.

use contract::{ContextId, PageId};

use crate::context::{Context, Segment};
use crate::{EncodeKey, Sched};

#[derive(Clone, Debug)]
pub(crate) struct Prefix {
    pub(crate) pages: Vec<PageId>,
    /// Counts up with every use: the lowest goes first.
    used: u64,
}

impl Sched {
    /// Pages a prompt can start from. At least one position is left to prefill, for it makes frame 0.
    pub(crate) fn shared_pages(&self, context: &Context, segment: &Segment) -> &[PageId] {
        let Some((key, positions)) = context.prefix else { return &[] };
        let Some(prefix) = self.prefixes.get(&key) else { return &[] };
        let most = positions.min(segment.prompt_tokens.saturating_sub(1)) / self.config.page_positions;
        &prefix.pages[..prefix.pages.len().min(most as usize)]
    }

    /// Notes one more use of a voice's prefix.
    pub(crate) fn touch_prefix(&mut self, key: EncodeKey) {
        let latest = self.prefixes.values().map(|prefix| prefix.used).max().unwrap_or(0);
        if let Some(prefix) = self.prefixes.get_mut(&key) {
            prefix.used = latest + 1;
        }
    }

    /// Keeps the full pages of a prefix that has just been prefilled, within the budget.
    pub(crate) fn keep_prefix(&mut self, id: ContextId, index: u32) {
        let Some(context) = self.contexts.get(&id) else { return };
        let Some((key, positions)) = context.prefix.filter(|(key, _)| !self.prefixes.contains_key(key))
        else {
            return;
        };
        let Some(segment) = context.segments.iter().find(|segment| segment.index == index) else { return };
        let full = positions.min(segment.prompt_tokens) / self.config.page_positions;
        let pages: Vec<PageId> = segment.pages.iter().copied().take(full as usize).collect();
        if pages.is_empty() || pages.len() > self.config.prefix_pages_max as usize {
            return;
        }
        while self.prefix_pages() + pages.len() > self.config.prefix_pages_max as usize {
            self.evict_prefix();
        }
        for &page in &pages {
            self.pages.retain(page);
        }
        self.prefixes.insert(key, Prefix { pages, used: 0 });
        self.touch_prefix(key);
    }

    /// Gives up the prefix used longest ago; false when there is none. Contexts that started from it
    /// keep its pages until they end.
    pub(crate) fn evict_prefix(&mut self) -> bool {
        let oldest = self.prefixes.iter().min_by_key(|(_, prefix)| prefix.used).map(|(&key, _)| key);
        let Some(prefix) = oldest.and_then(|key| self.prefixes.remove(&key)) else { return false };
        for page in prefix.pages {
            self.pages.release(page);
        }
        true
    }

    fn prefix_pages(&self) -> usize {
        self.prefixes.values().map(|prefix| prefix.pages.len()).sum()
    }
}
