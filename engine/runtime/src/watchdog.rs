//! Watches the engine thread from outside: a call into a driver may never return, and then nobody inside can
//! say so.

use std::sync::Arc;
use std::time::Duration;

use contract::{EngineError, Span};

use crate::OpenError;
use crate::shared::Shared;

/// Turns of the watchdog until a silent engine thread is given up.
const TURNS: u32 = 8;

/// Starts watching; ends when the engine thread ends, well or not.
///
/// The engine thread goes round at least ten times within `silence`. Turns are counted rather than time, so
/// that a process that was stopped gives nothing up when it goes on.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn start(shared: &Arc<Shared>, silence: Span) -> Result<(), OpenError> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("voxlane-watch".to_owned())
        .spawn(move || watch(&shared, silence))
        .map(drop)
        .map_err(|error| OpenError::Thread(error.to_string()))
}

fn watch(shared: &Shared, silence: Span) {
    let turn = Duration::from_micros(silence.as_micros().unsigned_abs()) / TURNS;
    let (mut silent, mut heard) = (0, None);
    while !shared.wait_for_end(turn) {
        let beat = Some(shared.last_beat());
        silent = if heard == beat { silent + 1 } else { 0 };
        heard = beat;
        if silent >= TURNS {
            let what = format!(
                "the engine thread has been silent for {} ms, in a call that does not return",
                silence.as_millis()
            );
            return shared.fail(&EngineError::DeviceLost { what });
        }
    }
}
