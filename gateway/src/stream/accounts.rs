//! What each epoch of a session cost, until it is written into the usage log: once, whatever way it ended.

use std::collections::BTreeMap;

use contract::{FinishReason, Output, Usage};
use proto::session::EpochKey;

use crate::usage::{Account, UsageLog, joined};

/// The open accounts of one session.
pub(super) struct Accounts {
    pub(super) account: Account,
    /// Hertz of the first model: models of one engine have one rate.
    rate: u32,
    open: BTreeMap<EpochKey, Usage>,
}

impl Accounts {
    pub(super) fn new(account: Account, rate: u32) -> Self {
        Self { account, rate, open: BTreeMap::new() }
    }

    /// An engine context was asked for.
    pub(super) fn open(&mut self, key: EpochKey) {
        self.open.insert(key, Usage::default());
    }

    /// Text became this many ids.
    pub(super) fn ids(&mut self, key: EpochKey, ids: u32) {
        if let Some(usage) = self.open.get_mut(&key) {
            usage.text_ids += u64::from(ids);
        }
    }

    /// The engine put something out. `characters` is what the epoch's client has sent.
    pub(super) fn output(&mut self, key: EpochKey, output: &Output, characters: u64, log: &UsageLog) {
        match output {
            Output::Chunk(chunk) => {
                if let Some(usage) = self.open.get_mut(&key) {
                    usage.frames += u64::from(chunk.frames);
                    usage.samples += chunk.samples.len() as u64;
                }
            }
            Output::Finished { reason, usage, .. } => {
                if let Some(so_far) = self.open.remove(&key) {
                    self.write(key, *reason, &joined(Usage { characters, ..so_far }, *usage), log);
                }
            }
            Output::SegmentFinished { .. } => {}
        }
    }

    /// The engine would not speak.
    pub(super) fn refused(&mut self, key: EpochKey, characters: u64, log: &UsageLog) {
        if let Some(so_far) = self.open.remove(&key) {
            self.write(key, FinishReason::Failed, &Usage { characters, ..so_far }, log);
        }
    }

    /// The session is over: what its engine has not finished was abandoned.
    pub(super) fn close(&mut self, characters: impl Fn(EpochKey) -> u64, log: &UsageLog) {
        for (key, so_far) in std::mem::take(&mut self.open) {
            let usage = Usage { characters: characters(key), ..so_far };
            self.write(key, FinishReason::Cancelled, &usage, log);
        }
    }

    fn write(&self, key: EpochKey, reason: FinishReason, usage: &Usage, log: &UsageLog) {
        log.spoken(&self.account, Some((key.context, key.epoch.0)), reason, usage, self.rate);
    }
}
