//! Ids: small copyable numbers, one type per thing they name, so that a slot is never taken for a page.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One utterance stream inside the engine. The gateway opens a fresh engine context for every
    /// epoch of a context on the wire, so nothing of an older epoch can ever be mistaken for new.
    ContextId(u64), "ctx-"
);
id!(
    /// Rows of device memory that hold one running context's state.
    SlotId(u32), "slot-"
);
id!(
    /// A fixed number of key/value positions in the device's page pool.
    PageId(u32), "page-"
);
id!(
    /// One launch of one executable. Strictly increasing within a device.
    LaunchId(u64), "launch-"
);
id!(
    /// A model loaded in this process. Batches never mix models.
    ModelId(u16), "model-"
);
id!(
    /// A processor with its own scheduler.
    DeviceId(u16), "device-"
);
id!(
    /// Counts the claims a context has had on one lane; a completion with a stale version changes nothing.
    Version(u32), "v"
);
id!(
    /// +1 at every cancel or interrupt of a context on the wire, and only then.
    Epoch(u16), "epoch-"
);

impl Epoch {
    /// The epoch after this one. Wraps after 65,535 interrupts of one context.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
