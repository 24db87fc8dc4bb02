//! What of a session goes into the metrics.

use std::collections::BTreeMap;

use contract::{FinishReason, Output as EngineOutput, Tick};
use proto::session::{Counters, EpochKey, Said};

use crate::metrics::Metrics;

/// Follows one session.
#[derive(Debug)]
pub(super) struct Watch {
    /// The endpoint's name.
    door: &'static str,
    metrics: Metrics,
    epochs: BTreeMap<EpochKey, Epoch>,
    ping: Option<([u8; 8], Tick)>,
    counted: Counters,
}

#[derive(Debug, Default)]
struct Epoch {
    first_text: Option<Tick>,
    first_samples: Option<Tick>,
    /// A packet has left.
    heard: bool,
    finished: bool,
}

impl Watch {
    pub(super) fn new(door: &'static str, metrics: Metrics) -> Self {
        Self { door, metrics, epochs: BTreeMap::new(), ping: None, counted: Counters::default() }
    }

    pub(super) fn text(&mut self, now: Tick, key: EpochKey) {
        // Epochs whose end never came through here would pile up; the oldest tells nothing any more.
        if self.epochs.len() > 256 {
            self.epochs.pop_first();
        }
        self.epochs.entry(key).or_default().first_text.get_or_insert(now);
    }

    pub(super) fn engine(&mut self, now: Tick, key: EpochKey, output: &EngineOutput) {
        match output {
            EngineOutput::Chunk(_) => {
                if let Some(epoch) = self.epochs.get_mut(&key) {
                    epoch.first_samples.get_or_insert(now);
                }
            }
            EngineOutput::Finished { reason, .. } => {
                self.metrics.context_finished(reason.name());
                if let Some(epoch) = self.epochs.get_mut(&key) {
                    epoch.finished = true;
                }
                if *reason == FinishReason::Cancelled {
                    self.epochs.remove(&key);
                }
            }
            EngineOutput::SegmentFinished { .. } => {}
        }
    }

    /// The session has said something.
    pub(super) fn said(&mut self, now: Tick, said: Said) {
        match said {
            Said::Error { code } => self.metrics.error_named(code),
            Said::Packet { key, last, bytes } => self.packet(now, key, last, bytes),
        }
    }

    fn packet(&mut self, now: Tick, key: EpochKey, last: bool, bytes: usize) {
        self.metrics.packets(1, bytes as u64);
        let Some(epoch) = self.epochs.get_mut(&key) else { return };
        if !std::mem::replace(&mut epoch.heard, true) {
            if let Some(began) = epoch.first_text {
                self.metrics.first_audio(self.door, now.since(began));
            }
            if let Some(began) = epoch.first_samples {
                self.metrics.first_packet(now.since(began));
            }
        }
        if epoch.finished && last {
            self.epochs.remove(&key);
        }
    }

    pub(super) fn ping(&mut self, now: Tick, payload: [u8; 8]) {
        self.ping = Some((payload, now));
    }

    pub(super) fn pong(&mut self, now: Tick, payload: &[u8]) {
        if let Some((sent, at)) = self.ping
            && payload == sent
        {
            self.metrics.round_trip(now.since(at));
            self.ping = None;
        }
    }

    /// Adds what the session has counted since the last call.
    pub(super) fn counters(&mut self, counters: Counters) {
        self.metrics.playback_reports(counters.reports - self.counted.reports);
        self.metrics.playback_ignored(counters.reports_ignored - self.counted.reports_ignored);
        self.metrics.packets_late(counters.late - self.counted.late);
        self.metrics.underruns(counters.underruns - self.counted.underruns);
        self.counted = counters;
    }
}
