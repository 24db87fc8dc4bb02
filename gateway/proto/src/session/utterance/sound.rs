//! The sound half of an utterance: chunks to the encoder, packets to the wire, the one `end`.

use bytes::Bytes;
use contract::{Chunk, EngineError, FinishReason, Playback, Span, Tick, Usage};

use super::{EngineState, Utterance};
use crate::at_wire_clock;
use crate::link::Link;
use crate::pacer::{Packet, Placed};
use crate::session::output::{EncodeJob, EncodeWork, Encoded, EngineCommand, Outbox, Output};
use crate::wire::{ChunkTrace, End, Heard, PacketKind, UsageFields, WireError};

/// A change of the playback clock smaller than this is not worth a command.
const TOLD: Span = Span::from_millis(2);

impl Utterance {
    /// Sound came.
    pub(in crate::session) fn handle_chunk(&mut self, now: Tick, chunk: Chunk, out: &mut Outbox) {
        if self.finished.is_some() || self.encoded {
            return;
        }
        if chunk.first_sample != self.shape.made() {
            let what = format!("chunk at sample {} where {} was due", chunk.first_sample, self.shape.made());
            self.fail(now, &WireError::Engine(EngineError::Internal { what }), out);
            return;
        }
        let rate = self.format.heard_rate();
        let first = self.shape.given();
        let start = at_wire_clock(first, rate);
        let samples = self.shape.handle_samples(chunk.segment, chunk.samples);
        self.alignment.handle_chunk(chunk.segment, first, &samples, rate);
        self.usage.frames += u64::from(chunk.frames);
        if self.trace {
            let began = self.began.unwrap_or(now);
            let millis = |span: Span| span.as_micros() as f64 / 1_000.0;
            self.traces.push_back((
                start + u64::from(self.pre_skip),
                ChunkTrace {
                    context: self.key.context,
                    epoch: self.key.epoch.0,
                    sequence: 0,
                    samples: at_wire_clock(self.shape.given(), rate) - start,
                    frames: chunk.frames,
                    segment: chunk.segment,
                    lane: chunk.lane.name().to_owned(),
                    slack_ms: (chunk.slack != Span::MAX).then(|| millis(chunk.slack)),
                    made_ms: millis(chunk.made.since(began)),
                },
            ));
        }
        self.put(samples, out);
    }

    /// Gives samples to the encoder.
    pub(super) fn put(&mut self, samples: Box<[f32]>, out: &mut Outbox) {
        self.usage.samples = self.shape.given();
        if samples.is_empty() || self.encoded || self.finished.is_some() {
            return;
        }
        self.sound = true;
        let work = EncodeWork::Samples(samples);
        out.push(Output::Encode(EncodeJob { key: self.key, format: self.format, work }));
    }

    pub(in crate::session) fn handle_segment_finished(
        &mut self,
        now: Tick,
        segment: u32,
        link: &Link,
        out: &mut Outbox,
    ) {
        self.segments_finished = self.segments_finished.max(segment.saturating_add(1));
        let end = at_wire_clock(self.shape.given(), self.format.heard_rate());
        self.alignment.handle_segment_end(segment, end);
        self.flushes.handle_segment_end(segment, end);
        let pause = self.shape.handle_segment_end(segment);
        self.put(pause, out);
        self.alignment.forget(self.clock.position(now, link));
    }

    /// Packets came back from the encoding pool.
    pub(in crate::session) fn handle_encoded(&mut self, now: Tick, encoded: Encoded, out: &mut Outbox) {
        if self.encoded {
            return;
        }
        let Encoded { mut packets, last } = encoded;
        if last && packets.is_empty() && self.pacer.end() > 0 {
            // Something has to carry the flag.
            packets.push(Packet {
                kind: PacketKind::Gap,
                duration: 0,
                silence: false,
                payload: Bytes::new(),
            });
        }
        self.encoded = last;
        let mut left = packets.len();
        for packet in packets {
            left -= 1;
            if self.pacer.push(packet, last && left == 0).is_err() {
                self.overflow(now, out);
                return;
            }
        }
    }

    /// The pacer is full: the epoch fails, and what waits is worth nothing without what does not fit.
    fn overflow(&mut self, now: Tick, out: &mut Outbox) {
        self.drop_sound(out);
        if self.finished.is_some() {
            out.error(now, &WireError::Engine(EngineError::OutputFull), Some(self.key), None, None);
            self.finished = Some(FinishReason::Failed);
        } else {
            self.fail(now, &WireError::Engine(EngineError::OutputFull), out);
        }
    }

    /// The next packet that may leave, with the trace messages it is the first to carry, and whether the
    /// listener has run out before it.
    pub(in crate::session) fn pop_packet(
        &mut self,
        now: Tick,
        sequence: u32,
        link: &Link,
    ) -> Option<(Placed, Vec<ChunkTrace>, bool)> {
        let placed = self.pacer.pop(now, &self.clock, link)?;
        let end = placed.timestamp + u64::from(placed.packet.duration);
        let (from, to) = (self.pacer.media(placed.timestamp), self.pacer.media(end));
        let late = placed.packet.kind != PacketKind::Gap && self.clock.is_late(now, from, link);
        self.clock.handle_sent(now, from, to, placed.last, link);
        let mut traces = Vec::new();
        while self.traces.front().is_some_and(|(start, _)| *start < end) {
            if let Some((_, trace)) = self.traces.pop_front() {
                traces.push(ChunkTrace { sequence, ..trace });
            }
        }
        Some((placed, traces, late))
    }

    /// The `end` message, once, when nothing of the epoch is left to send.
    pub(in crate::session) fn take_end(&mut self, sequence: u32) -> Option<End> {
        let reason = self.finished.filter(|_| self.encoded && self.pacer.is_empty() && !self.ended)?;
        self.ended = true;
        self.traces.clear();
        Some(self.end(reason, sequence))
    }

    fn end(&self, reason: FinishReason, sequence: u32) -> End {
        let usage = Usage { characters: self.characters, ..self.usage };
        End {
            context: self.key.context,
            epoch: self.key.epoch.0,
            reason: reason.name().to_owned(),
            samples: self.clock.sent(),
            sequence,
            usage: UsageFields::new(&usage, self.format.model_rate),
        }
    }

    /// Tells the engine where the listener is, when that has changed.
    pub(in crate::session) fn tell_playback(&mut self, now: Tick, link: &Link, out: &mut Outbox) {
        if self.engine != EngineState::Open {
            return;
        }
        // An engine counts its own samples only: pauses between them, and the speed, move what comes next.
        let ahead = self.shape.ahead(self.format.heard_rate());
        let playback = match self.clock.playback(now, link) {
            Playback::Playing { zero } => Playback::Playing { zero: zero + ahead },
            Playback::Paused { played } => Playback::Paused { played: (played - ahead).max(Span::ZERO) },
            Playback::NotStarted => Playback::NotStarted,
        };
        let same = match (playback, self.told) {
            (Playback::Playing { zero }, Playback::Playing { zero: told }) => {
                let moved = zero.since(told);
                moved < TOLD && -moved < TOLD
            }
            (playback, told) => playback == told,
        };
        if !same {
            self.told = playback;
            out.engine(EngineCommand::Playback { key: self.key, playback });
        }
    }

    pub(in crate::session) fn heard(&mut self, played: u64) -> Heard {
        self.alignment.heard(played)
    }

    /// Cuts the sound at once: what waits is dropped at the pacer, what comes is dropped before it.
    pub(in crate::session) fn cut(&mut self, out: &mut Outbox) {
        self.drop_sound(out);
        self.finished = None;
        self.verdict = None;
        self.stop(FinishReason::Cancelled, out);
    }

    /// Ends with `reason` without sending what waits: its listener takes none.
    pub(in crate::session) fn give_up(&mut self, reason: FinishReason, out: &mut Outbox) {
        self.drop_sound(out);
        if self.finished.is_some() {
            self.finished = Some(reason);
        } else {
            self.stop(reason, out);
        }
    }

    /// Drops what waits and what comes; the encoder is not needed any more.
    fn drop_sound(&mut self, out: &mut Outbox) {
        self.pacer.clear();
        self.traces.clear();
        if self.sound && !self.encoded {
            let work = EncodeWork::Forget;
            out.push(Output::Encode(EncodeJob { key: self.key, format: self.format, work }));
        }
        self.encoded = true;
        self.sound = false;
    }

    /// Gives up waiting for the engine.
    pub(in crate::session) fn abandon(&mut self) {
        self.engine = EngineState::Gone;
        self.encoded = true;
        self.finished.get_or_insert(FinishReason::Cancelled);
    }
}
