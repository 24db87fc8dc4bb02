//! Voice features by content hash, within a budget of bytes, least recently used first out. One cache
//! serves every device of a process: a clip that one has encoded is known to all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use models::VoiceFeatures;
use sched::EncodeKey;

/// Looked at when a context opens and when a clip has been encoded, never on the frame path.
pub(crate) type SharedVoices = Arc<Mutex<VoiceCache>>;

pub(crate) struct VoiceCache {
    kept: BTreeMap<EncodeKey, Kept>,
    bytes: usize,
    budget: usize,
    clock: u64,
}

struct Kept {
    features: Arc<VoiceFeatures>,
    bytes: usize,
    used: u64,
}

impl VoiceCache {
    pub(crate) const fn new(budget: usize) -> Self {
        Self { kept: BTreeMap::new(), bytes: 0, budget, clock: 0 }
    }

    pub(crate) fn get(&mut self, key: EncodeKey) -> Option<Arc<VoiceFeatures>> {
        self.clock += 1;
        let kept = self.kept.get_mut(&key)?;
        kept.used = self.clock;
        Some(kept.features.clone())
    }

    pub(crate) fn keys(&self) -> BTreeSet<EncodeKey> {
        self.kept.keys().copied().collect()
    }

    /// Drops what was made of these clips; contexts that speak with it hold it still.
    pub(crate) fn forget(&mut self, hashes: &[[u8; 16]]) {
        let bytes = &mut self.bytes;
        self.kept.retain(|key, kept| {
            let stays = !hashes.contains(&key.hash);
            *bytes -= if stays { 0 } else { kept.bytes };
            stays
        });
    }

    /// Keeps the newest even when it alone is over the budget: its context is about to use it.
    pub(crate) fn put(&mut self, key: EncodeKey, features: Arc<VoiceFeatures>) {
        self.clock += 1;
        let bytes = features.bytes();
        if let Some(old) = self.kept.insert(key, Kept { features, bytes, used: self.clock }) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        while self.bytes > self.budget && self.kept.len() > 1 {
            let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key) else {
                return;
            };
            if let Some(out) = self.kept.remove(&oldest) {
                self.bytes -= out.bytes;
            }
        }
    }
}
