//! An engine's place among the devices of its process.

use std::sync::{Arc, Mutex};

use contract::{ContextId, DeviceId};

use crate::kept::Kept;
use crate::voices::{SharedVoices, VoiceCache};
use crate::{OpenError, OpenOptions};

/// Which device of how many this is, and what all of them share.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) device: DeviceId,
    pub(crate) of: u16,
    pub(crate) voices: SharedVoices,
    /// Where features outlive the process.
    pub(crate) kept: Option<Arc<Kept>>,
}

impl Seat {
    /// The first of `of` seats.
    ///
    /// # Errors
    /// A folder for features that cannot be used.
    pub(crate) fn first(options: &OpenOptions, of: u16) -> Result<Self, OpenError> {
        let kept = match &options.features {
            None => None,
            Some(folder) => {
                let opened = options.source.fingerprint().and_then(|print| Kept::open(folder, print));
                Some(Arc::new(opened.map_err(OpenError::Features)?))
            }
        };
        let voices = Arc::new(Mutex::new(VoiceCache::new(options.voice_cache_bytes)));
        Ok(Self { device: DeviceId(0), of, voices, kept })
    }

    /// Another device's seat beside this one.
    pub(crate) fn beside(&self, device: DeviceId) -> Self {
        Self { device, ..self.clone() }
    }

    /// The device's `count`th context, from 1. Ids of different devices never meet.
    pub(crate) fn context(&self, count: u64) -> ContextId {
        ContextId(count * u64::from(self.of) + u64::from(self.device.0))
    }

    /// On which of `of` devices a context lives.
    pub(crate) fn device_of(context: ContextId, of: u16) -> DeviceId {
        // The remainder is below a u16.
        DeviceId((context.0 % u64::from(of.max(1))) as u16)
    }
}
