//! Memory that is written over between two tries of a product: in a step every product's weights come from the card's
//! memory, so a way must not be chosen for how quick it is with weights the second-level cache has just seen.

use cudarc::driver::sys;
use device::DeviceError;

use crate::driver::{Driver, Stream, check};

/// Memory larger than the second-level cache; given back when dropped.
pub(super) struct Cold {
    at: u64,
    words: usize,
}

impl Cold {
    /// `None` where the card has no room for it: tries are then made with whatever the cache holds.
    pub(super) fn take(driver: &Driver) -> Option<Self> {
        let bytes = driver.cache_bytes;
        let words = bytes.saturating_add(bytes / 4) / size_of::<u32>();
        let mut at = 0;
        // SAFETY: a pointer to a local.
        let taken = unsafe { sys::cuMemAlloc_v2(&raw mut at, words * size_of::<u32>()) };
        (words > 0 && taken == sys::CUresult::CUDA_SUCCESS).then_some(Self { at, words })
    }

    /// Whatever `stream` does next finds nothing of use in the cache.
    pub(super) fn chill(&self, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: memory of as many words, which nothing else uses.
        check(unsafe { sys::cuMemsetD32Async(self.at, 0, self.words, stream.raw) }, "clearing memory")
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        // SAFETY: taken above; whoever chilled a stream has waited for it since.
        unsafe { sys::cuMemFree_v2(self.at) };
    }
}
