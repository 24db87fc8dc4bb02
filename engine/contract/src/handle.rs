//! The only way from the gateway into an engine.

use std::sync::Arc;

use crate::{
    ContextId, DeviceId, DeviceReport, EngineError, EngineInfo, EngineStats, LaunchSpan, OpenContext, Output,
    Playback, TextAccepted,
};

/// Takes one context's output away. Called on the engine's thread: must return at once.
pub trait OutputSink: Send + Sync {
    /// # Errors
    /// [`SinkFull`] when the bounded queue behind the sink has no room, or its reader is gone. The
    /// engine then ends the context with [`EngineError::OutputFull`] and offers `Finished` once more.
    fn push(&self, output: Output) -> Result<(), SinkFull>;
}

/// The queue behind a sink has no room or no reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkFull;

/// Whether an engine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Failed(String),
    Ready,
    Starting(String),
}

/// An engine as the gateway sees it: the real runtime, or a script that plays one.
///
/// Calls never block on the processor: they validate, tokenize on the caller's thread, and post into
/// the engine's bounded mailbox. `cancel` and `playback` have their own way in and are never refused
/// for want of room.
///
/// Order for one context: `open`, then any number of `push_text` / `release_tail` / `end_segment`,
/// then `finish`; `playback` and `cancel` at any time. The gateway cuts text into segments; text
/// pushed after `end_segment` starts the next segment.
pub trait EngineHandle: Send + Sync + 'static {
    fn info(&self) -> Arc<EngineInfo>;

    fn health(&self) -> Health;

    /// Checks the request and registers the context. Takes no device memory: that happens when its
    /// first text id is ready.
    ///
    /// # Errors
    /// Any [`EngineError`] of class bad request, not found, overloaded or unavailable.
    fn open(&self, request: OpenContext, sink: Arc<dyn OutputSink>) -> Result<ContextId, EngineError>;

    /// Appends text to the current segment. `text` is whole characters; how it is split over calls
    /// never changes the ids the model sees.
    ///
    /// # Errors
    /// [`EngineError::ControlToken`], [`EngineError::TextTooLong`], [`EngineError::ContextClosed`],
    /// [`EngineError::Overloaded`] (mailbox full; nothing of `text` was taken).
    fn push_text(&self, context: ContextId, text: &str) -> Result<TextAccepted, EngineError>;

    /// Releases the ids held back for a possible later merge (after a dry spell of the text).
    ///
    /// # Errors
    /// As [`EngineHandle::push_text`].
    fn release_tail(&self, context: ContextId) -> Result<TextAccepted, EngineError>;

    /// Ends the current segment: the model speaks it to its end. An empty segment is nothing.
    ///
    /// # Errors
    /// As [`EngineHandle::push_text`].
    fn end_segment(&self, context: ContextId) -> Result<TextAccepted, EngineError>;

    /// No text will follow: after the last segment the context finishes as done.
    ///
    /// # Errors
    /// [`EngineError::ContextClosed`], [`EngineError::Overloaded`].
    fn finish(&self, context: ContextId) -> Result<(), EngineError>;

    /// Moves the context's deadlines. Unknown contexts are ignored.
    fn playback(&self, context: ContextId, playback: Playback);

    /// Ends the context: its state is free within two lm steps; `Finished(Cancelled)` follows, and
    /// no chunk after it. Unknown contexts are ignored.
    fn cancel(&self, context: ContextId);

    /// Forgets what was made of the clip with this content hash, in memory and wherever it was kept.
    /// Contexts that speak with it go on. An engine that keeps nothing has nothing to do.
    fn forget_clip(&self, hash: [u8; 16]) {
        let _nothing_kept = hash;
    }

    fn stats(&self) -> EngineStats;

    /// Each device by itself; [`EngineHandle::stats`] is their sum, and the engine is ready while one is.
    fn devices(&self) -> Vec<DeviceReport> {
        let (about, health, stats) = (self.info().device.clone(), self.health(), self.stats());
        vec![DeviceReport { device: DeviceId(0), about, health, stats }]
    }

    /// The latest finished launches, oldest first, at most `max` and at most what the ring holds.
    fn launches(&self, max: usize) -> Vec<LaunchSpan>;
}
