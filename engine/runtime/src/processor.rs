//! A backend that its owner can walk away from.
//!
//! Dropping a backend waits for what it runs: lanes are joined, devices synchronised. One that has a stuck
//! launch would be waited for until the process ends, so it is left behind instead, memory and all: the
//! process keeps it until it ends.

use std::ops::{Deref, DerefMut};

use device::Backend;

pub(crate) struct Processor(Option<Box<dyn Backend>>);

impl Processor {
    pub(crate) fn new(backend: Box<dyn Backend>) -> Self {
        Self(Some(backend))
    }

    /// Leaves it behind. Nobody may use it from here on.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(self.0.take());
    }

    pub(crate) fn as_mut(&mut self) -> &mut dyn Backend {
        &mut **self
    }
}

const THERE: &str = "only its owner abandons it, and is ending when it does";

impl Deref for Processor {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        // Whoever abandons it leaves at once: the engine loop returns, and so does what warms up or measures.
        self.0.as_deref().expect(THERE)
    }
}

impl DerefMut for Processor {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // As above.
        self.0.as_deref_mut().expect(THERE)
    }
}
