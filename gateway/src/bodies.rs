//! Room for what clients send to be read whole: bytes of all requests together, and clips decoded at once. Each
//! request has a bound of its own, and thousands of them at that bound would be more than a machine has.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// What one permit stands for.
const UNIT_BYTES: usize = 1_024;

/// Room for bodies, and for decoders.
#[derive(Debug)]
pub(crate) struct Bodies {
    units: Arc<Semaphore>,
    units_max: usize,
    decoders: Arc<Semaphore>,
}

/// What one body takes of it, until it is dropped. Grows with what has come: who sends nothing takes nothing.
#[derive(Debug)]
pub(crate) struct Room {
    units: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl Bodies {
    /// At most `bytes_max` at once, and `decoders` clips being decoded.
    pub(crate) fn new(bytes_max: usize, decoders: usize) -> Self {
        let units_max = bytes_max / UNIT_BYTES;
        Self {
            units: Arc::new(Semaphore::new(units_max)),
            units_max,
            decoders: Arc::new(Semaphore::new(decoders)),
        }
    }

    /// For one body, of which nothing has come yet.
    pub(crate) fn room(&self) -> Room {
        Room { units: Arc::clone(&self.units), held: None, bytes: 0 }
    }

    /// Bytes that are taken, to the next unit.
    pub(crate) fn bytes(&self) -> usize {
        (self.units_max - self.units.available_permits()) * UNIT_BYTES
    }

    /// Waits until one more clip may be decoded: a clip of 30 s is tens of MB while it is.
    pub(crate) fn decoder(&self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let decoders = Arc::clone(&self.decoders);
        async move { decoders.acquire_owned().await.ok() }
    }
}

impl Room {
    /// Makes room for `more` bytes that have come.
    ///
    /// # Errors
    /// `overloaded`, when all of it is taken.
    pub(crate) fn take(&mut self, more: usize) -> Result<(), ApiError> {
        let bytes = self.bytes + more;
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(UNIT_BYTES).saturating_sub(held);
        let missing = u32::try_from(missing).map_err(|_| full())?;
        if missing > 0 {
            let taken = Arc::clone(&self.units).try_acquire_many_owned(missing).map_err(|_| full())?;
            match &mut self.held {
                Some(held) => held.merge(taken),
                None => self.held = Some(taken),
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// Room that grows and shrinks with what it is for.
impl Room {
    /// Makes room for `bytes` in all.
    ///
    /// # Errors
    /// As of [`Room::take`].
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes >= self.bytes {
            return self.take(bytes - self.bytes);
        }
        self.bytes = bytes;
        let kept = bytes.div_ceil(UNIT_BYTES);
        self.held = self.held.take().and_then(|mut held| held.split(kept));
        Ok(())
    }
}

fn full() -> ApiError {
    let message = "too many bodies are being sent at once; try again later";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message).retry_after_ms(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_share_their_room_take_it_as_they_come_and_give_it_back() {
        let bodies = Bodies::new(10 * UNIT_BYTES, 1);
        let (mut first, mut second) = (bodies.room(), bodies.room());
        assert_eq!(bodies.bytes(), 0);
        for _ in 0..2_048 {
            first.take(1).expect("room");
        }
        assert_eq!(bodies.bytes(), 2 * UNIT_BYTES, "no more than has come");
        second.take(8 * UNIT_BYTES).expect("all that is left");
        let refused = first.take(1).expect_err("nothing is left");
        assert_eq!((refused.status.as_u16(), refused.code), (503, "overloaded"));
        drop(first);
        assert_eq!(bodies.bytes(), 8 * UNIT_BYTES);
        second.take(2 * UNIT_BYTES).expect("what the other gave back");
        second.set(3 * UNIT_BYTES + 1).expect("less");
        assert_eq!(bodies.bytes(), 4 * UNIT_BYTES);
        assert!(second.set(11 * UNIT_BYTES).is_err());
        second.set(0).expect("nothing");
        assert_eq!(bodies.bytes(), 0);
        second.set(UNIT_BYTES).expect("room");
        drop(second);
        assert_eq!(bodies.bytes(), 0);
    }
}
