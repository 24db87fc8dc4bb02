//! The engine contexts of one session.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{ContextId, EngineError, EngineHandle, Output, TextAccepted};
use proto::session::{EngineCommand, EpochKey};

use super::late_queue::LateQueue;
use crate::output::{Level, QueueSink, Tagged, queue_bound};

/// Calls the engine and takes its outputs. Dropping it cancels what is open.
pub(super) struct EngineSide {
    engine: Arc<dyn EngineHandle>,
    open: BTreeMap<EpochKey, Open>,
    /// Which epoch an output belongs to. Numbers are never used twice.
    keys: BTreeMap<u64, EpochKey>,
    next: u64,
    queue: LateQueue<Tagged>,
    samples_max: u64,
}

struct Open {
    id: ContextId,
    tag: u64,
    level: Arc<Level>,
}

/// An engine's answer to a command of one epoch.
pub(super) type Reply = (EpochKey, Result<TextAccepted, EngineError>);

impl EngineSide {
    /// Room for `epochs` contexts.
    pub(super) fn new(engine: Arc<dyn EngineHandle>, epochs: usize) -> Self {
        let samples_max = engine.info().limits.output_samples_max;
        let queue = LateQueue::new(queue_bound(epochs));
        Self { engine, open: BTreeMap::new(), keys: BTreeMap::new(), next: 1, queue, samples_max }
    }

    /// The next output of any context.
    pub(super) async fn next(&mut self) -> Box<Tagged> {
        self.queue.next().await
    }

    /// Does what the session asks; the answer, where one is due.
    pub(super) fn command(&mut self, command: EngineCommand) -> Option<Reply> {
        match command {
            EngineCommand::Cancel { key } => {
                if let Some(open) = self.open.get(&key) {
                    self.engine.cancel(open.id);
                }
                None
            }
            EngineCommand::Playback { key, playback } => {
                if let Some(open) = self.open.get(&key) {
                    self.engine.playback(open.id, playback);
                }
                None
            }
            EngineCommand::Open { key, request } => {
                let tag = self.next;
                self.next += 1;
                let (sink, level) = QueueSink::new(tag, self.queue.sender(), self.samples_max);
                let opened = self.engine.open(*request, sink).map(|id| {
                    self.keys.insert(tag, key);
                    self.open.insert(key, Open { id, tag, level });
                    TextAccepted::default()
                });
                Some((key, opened))
            }
            EngineCommand::EndSegment { key } => Some(self.with(key, |engine, id| engine.end_segment(id))),
            EngineCommand::Finish { key } => {
                Some(self.with(key, |engine, id| engine.finish(id).map(|()| TextAccepted::default())))
            }
            EngineCommand::PushText { key, text } => {
                Some(self.with(key, |engine, id| engine.push_text(id, &text)))
            }
            EngineCommand::ReleaseTail { key } => Some(self.with(key, |engine, id| engine.release_tail(id))),
        }
    }

    /// Finds whose output this is; a context that has finished is let go of.
    pub(super) fn output(&mut self, tagged: &Tagged) -> Option<EpochKey> {
        let key = *self.keys.get(&tagged.key)?;
        let open = self.open.get(&key)?;
        open.level.taken(&tagged.output);
        if matches!(tagged.output, Output::Finished { .. }) {
            self.keys.remove(&tagged.key);
            // A later epoch may already have the key's place, if numbers have wrapped.
            if self.open.get(&key).is_some_and(|open| open.tag == tagged.key) {
                self.open.remove(&key);
            }
        }
        Some(key)
    }

    pub(super) fn is_open(&self, key: EpochKey) -> bool {
        self.open.contains_key(&key)
    }

    /// Cancels a context and forgets it: nothing of it comes any more.
    pub(super) fn abandon(&mut self, key: EpochKey) {
        if let Some(open) = self.open.remove(&key) {
            self.keys.remove(&open.tag);
            self.engine.cancel(open.id);
        }
    }

    fn with(
        &self,
        key: EpochKey,
        call: impl FnOnce(&dyn EngineHandle, ContextId) -> Result<TextAccepted, EngineError>,
    ) -> Reply {
        match self.open.get(&key) {
            Some(open) => (key, call(&*self.engine, open.id)),
            None => (key, Err(EngineError::ContextClosed)),
        }
    }
}

impl Drop for EngineSide {
    fn drop(&mut self) {
        for open in self.open.values() {
            self.engine.cancel(open.id);
        }
    }
}
