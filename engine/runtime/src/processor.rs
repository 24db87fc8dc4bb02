//! A backend that its owner can walk away from, and that counts the time spent in what is called every round.
//!
//! Dropping a backend waits for what it runs: lanes are joined, devices synchronised. One that has a stuck
//! launch would be waited for until the process ends, so it is left behind instead, memory and all: the
//! process keeps it until it ends.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use contract::Span;
use device::{Backend, Completed, DeviceError, HostTensor, Launch, StateId};

use crate::clock::Clock;

pub(crate) struct Processor {
    backend: Option<Box<dyn Backend>>,
    clock: Clock,
    spent: Duration,
}

impl Processor {
    pub(crate) fn new(backend: Box<dyn Backend>, clock: Clock) -> Self {
        Self { backend: Some(backend), clock, spent: Duration::ZERO }
    }

    /// As [`Backend::launch`].
    pub(crate) fn launch(&mut self, launch: Launch) -> Result<(), DeviceError> {
        self.timed(|backend| backend.launch(launch))
    }

    /// As [`Backend::poll`].
    pub(crate) fn poll(&mut self) -> Option<Completed> {
        self.timed(|backend| backend.poll())
    }

    /// As [`Backend::write_state`].
    pub(crate) fn write_state(
        &mut self,
        state: StateId,
        slot: u32,
        row: &HostTensor,
    ) -> Result<(), DeviceError> {
        self.timed(|backend| backend.write_state(state, slot, row))
    }

    /// Time spent in those calls since this was last asked for.
    pub(crate) fn take_spent(&mut self) -> Span {
        let micros = std::mem::take(&mut self.spent).as_micros();
        Span::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    fn timed<T>(&mut self, call: impl FnOnce(&mut dyn Backend) -> T) -> T {
        let begun = self.clock.elapsed();
        let result = call(&mut **self);
        self.spent += self.clock.elapsed().saturating_sub(begun);
        result
    }

    /// Leaves it behind. Nobody may use it from here on.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(self.backend.take());
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
        self.backend.as_deref().expect(THERE)
    }
}

impl DerefMut for Processor {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // As above.
        self.backend.as_deref_mut().expect(THERE)
    }
}
