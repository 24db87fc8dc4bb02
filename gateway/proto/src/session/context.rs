//! One context of a session over its epochs, and what a session does with all of its contexts.

use contract::{FinishReason, Span, Tick};

use super::output::{AudioFormat, EpochKey};
use super::reference::Awaited;
use super::replay::Replay;
use super::utterance::{Listener, Setting, Utterance};
use super::{Config, LETTING_GO_MAX, Session};
use crate::at_wire_clock;
use crate::catalog::Target;
use crate::link::Link;
use crate::pacer::Placed;
use crate::wire::{Cancel, Flags, Header, Open, ServerMessage, WireCodec, WireError};

/// Time and number for which ended contexts still know what was heard.
const ENDED_KEPT: Span = Span::from_millis(60_000);
const ENDED_KEPT_MAX: usize = 8;

/// A context on the wire.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) target: Target,
    /// The clip that shall speak is not there yet; nothing goes to the engine.
    pub(super) awaited: Option<Awaited>,
    format: AudioFormat,
    pub(super) utterance: Utterance,
    /// Last packet sent, over all epochs.
    pub(super) sequence: u32,
    /// First packet of this epoch.
    pub(super) epoch_first: u32,
    /// The next packet resets the decoder.
    pub(super) restart: bool,
    pub(super) replay: Replay,
    pub(super) last_cancelled: Option<ServerMessage>,
    pub(super) last_end: Option<ServerMessage>,
    /// When it last had a message or made sound.
    pub(super) touched: Tick,
}

/// A cancelled epoch whose engine context still has to say that it is finished.
#[derive(Debug)]
pub(super) struct LettingGo {
    pub(super) utterance: Utterance,
    sequence: u32,
    pub(super) until: Tick,
}

impl Context {
    pub(super) fn new(now: Tick, open: &Open, target: Target, config: &Config, listener: Listener) -> Self {
        let format = format(open, &target);
        let key = EpochKey { context: open.context, epoch: contract::Epoch(0) };
        let utterance = Utterance::new(key, &setting(&target, format, config, listener));
        Self {
            target,
            awaited: open.reference.clone().map(Awaited::new),
            format,
            utterance,
            sequence: 0,
            epoch_first: 1,
            restart: false,
            replay: Replay::default(),
            last_cancelled: None,
            last_end: None,
            touched: now,
        }
    }

    pub(super) const fn format(&self) -> AudioFormat {
        self.format
    }

    /// When the epoch ends because nothing comes.
    pub(super) fn idle_at(&self, limit: Span) -> Tick {
        let utterance = &self.utterance;
        let waits_for_text = !utterance.text_ended && !utterance.is_over() && utterance.is_quiet();
        let waits_for_listener = utterance.clock.is_paused() && !utterance.ended;
        let waits_for_clip = self.awaited.is_some() && !utterance.is_over();
        if !waits_for_text && !waits_for_listener && !waits_for_clip {
            return Tick::NEVER;
        }
        self.touched + limit
    }

    /// When the first packet that waits may leave.
    fn next_packet(&self, link: &Link) -> Tick {
        self.utterance.pacer.next_release(&self.utterance.clock, link)
    }

    /// When packets that wait are to be looked at again.
    pub(super) fn next_packets(&self, link: &Link) -> Tick {
        self.utterance.pacer.next_wake(&self.utterance.clock, link)
    }

    /// Goes on to the next epoch; gives the old one.
    fn next_epoch(&mut self, now: Tick, config: &Config, listener: Listener) -> Utterance {
        let EpochKey { context, epoch } = self.utterance.key;
        let key = EpochKey { context, epoch: epoch.next() };
        let fresh = Utterance::new(key, &setting(&self.target, self.format, config, listener));
        self.epoch_first = self.sequence.wrapping_add(1);
        self.restart = false;
        self.touched = now;
        std::mem::replace(&mut self.utterance, fresh)
    }

    /// What a packet's header says.
    fn header(&mut self, placed: &Placed) -> Header {
        let EpochKey { context, epoch } = self.utterance.key;
        let mut flags = Flags::NONE;
        if placed.timestamp == 0 || std::mem::take(&mut self.restart) {
            flags = flags.with(Flags::START);
        }
        if placed.last {
            flags = flags.with(Flags::END);
        }
        if placed.packet.silence {
            flags = flags.with(Flags::DTX);
        }
        Header {
            kind: placed.packet.kind,
            flags,
            context,
            sequence: self.sequence,
            // The wire's timestamp wraps, as RTP's does.
            timestamp: (placed.timestamp & u64::from(u32::MAX)) as u32,
            duration: placed.packet.duration,
            epoch,
        }
    }
}

fn format(open: &Open, target: &Target) -> AudioFormat {
    let choice = open.audio.unwrap_or_default();
    let model_rate = target.sample_rate;
    let wire_rate = choice.sample_rate.unwrap_or(choice.codec.rate_hz(model_rate));
    AudioFormat { codec: choice.codec, model_rate, wire_rate, loudness: choice.loudness, speed: choice.speed }
}

/// 48 kHz samples before the first true one.
pub(super) const fn pre_skip(format: AudioFormat, config: &Config) -> u16 {
    match format.codec {
        WireCodec::Opus => config.opus_pre_skip,
        WireCodec::Pcm | WireCodec::MuLaw | WireCodec::ALaw => 0,
    }
}

fn setting<'a>(target: &'a Target, format: AudioFormat, config: &Config, listener: Listener) -> Setting<'a> {
    // What an engine makes ahead is counted from the listener; as much again may wait to be sent.
    let ahead = at_wire_clock(config.engine.limits.output_samples_max, format.heard_rate());
    Setting {
        target,
        format,
        listener,
        lead: config.limits.lead,
        waiting_samples_max: ahead.saturating_mul(2).max(u64::from(crate::wire::CLOCK_HZ)),
        pre_skip: pre_skip(format, config),
    }
}

impl Session {
    pub(super) fn engine_output(&mut self, now: Tick, key: EpochKey, output: contract::Output) {
        let current = match self.contexts.get_mut(&key.context) {
            Some(context) if context.utterance.key == key => {
                context.touched = now;
                Some(&mut context.utterance)
            }
            _ => None,
        };
        match (current, output) {
            (Some(utterance), contract::Output::Chunk(chunk)) => {
                utterance.handle_chunk(now, chunk, &mut self.out);
            }
            (Some(utterance), contract::Output::SegmentFinished { segment, .. }) => {
                utterance.handle_segment_finished(now, segment, &self.pings.link, &mut self.out);
            }
            (Some(utterance), contract::Output::Finished { reason, usage, error }) => {
                utterance.handle_finished(now, reason, usage, error, &mut self.out);
            }
            (None, contract::Output::Finished { reason, usage, error }) => {
                if let Some(letting_go) = self.letting_go.get_mut(&key) {
                    letting_go.utterance.handle_finished(now, reason, usage, error, &mut self.out);
                }
            }
            (None, _) => self.counters.stale += 1,
        }
    }

    /// Sends packets while any may leave, the one that sounds first of all contexts first.
    pub(super) fn send_packets(&mut self, now: Tick) {
        let before = self.counters.packets;
        while self.may_send() && self.send_packet(now) {}
        if self.counters.packets > before {
            self.out.settle(now);
        }
    }

    /// Sends one packet, if one may leave.
    fn send_packet(&mut self, now: Tick) -> bool {
        let link = &self.pings.link;
        let next = self.contexts.iter_mut().map(|(_, context)| (context.next_packet(link), context));
        let Some((at, context)) = next.min_by_key(|(at, _)| *at) else { return false };
        if at > now {
            return false;
        }
        let sequence = context.sequence.wrapping_add(1);
        let popped = context.utterance.pop_packet(now, sequence, link);
        let Some((placed, traces, late)) = popped else { return false };
        context.sequence = sequence;
        let header = context.header(&placed);
        let payload = placed.packet.payload;
        if self.out.dialect().manner().resumes {
            context.replay.push(now, header, payload.clone());
        }
        for trace in traces {
            self.out.send(now, &ServerMessage::Chunk(trace));
        }
        let times = context.utterance.take_times();
        self.out.send_times(now, header.context, &times);
        self.out.send_packet(now, &header, &payload);
        self.pings.handle_audio_sent();
        self.counters.packets += 1;
        self.counters.late += u64::from(late);
        true
    }

    /// Tells who wants to know what has been spoken by what was sent.
    pub(super) fn send_spoken(&mut self, now: Tick) {
        if !self.out.dialect().manner().times {
            return;
        }
        let mut told = false;
        for (id, context) in &mut self.contexts {
            let times = context.utterance.take_times();
            self.out.send_times(now, *id, &times);
            told |= !times.is_empty();
            while context.utterance.take_flush() {
                self.out.send_flush_spoken(now, *id);
                told = true;
            }
        }
        if told {
            self.out.settle(now);
        }
    }

    /// Who listens to the voice of `target`.
    pub(super) fn listener(&self, target: &Target) -> Listener {
        let hello = self.hello.as_ref();
        Listener {
            player: hello.and_then(|hello| hello.playback),
            trace: hello.is_some_and(|hello| hello.trace),
            times: self.out.dialect().manner().times,
            pace: self.paces.of(target),
        }
    }

    /// Cancels what a context speaks, and forgets it; its id stays used.
    pub(super) fn forget(&mut self, now: Tick, id: u16) {
        if let Some(context) = self.contexts.remove(&id) {
            self.paces.keep(&context.target, context.utterance.pace());
            self.let_go(now, context.utterance, context.sequence);
        }
    }

    /// Cuts an epoch whose place is taken, and waits for its engine.
    fn let_go(&mut self, now: Tick, mut old: Utterance, sequence: u32) {
        if !old.ended {
            old.cut(&mut self.out);
            let letting_go = LettingGo { utterance: old, sequence, until: now + LETTING_GO_MAX };
            self.letting_go.insert(letting_go.utterance.key, letting_go);
        }
    }

    /// Sends each `end` that is due.
    pub(super) fn send_ends(&mut self, now: Tick) {
        for context in self.contexts.values_mut() {
            if let Some(end) = context.utterance.take_end(context.sequence) {
                self.paces.keep(&context.target, context.utterance.pace());
                let message = ServerMessage::End(end);
                self.out.send(now, &message);
                context.last_end = Some(message);
                context.touched = now;
            }
        }
        self.forget_ended(now);
        if !self.out.is_attached() {
            // Nothing repeats these later, so they wait for the next connection.
            return;
        }
        let out = &mut self.out;
        self.letting_go.retain(|_, letting_go| match letting_go.utterance.take_end(letting_go.sequence) {
            Some(end) => {
                out.send(now, &ServerMessage::End(end));
                false
            }
            None => true,
        });
    }

    /// Ended contexts are kept a while, because `cancel` may still ask what was heard.
    fn forget_ended(&mut self, now: Tick) {
        self.contexts
            .retain(|_, context| !context.utterance.ended || now.since(context.touched) < ENDED_KEPT);
        while self.contexts.values().filter(|context| context.utterance.ended).count() > ENDED_KEPT_MAX {
            let ended = self.contexts.iter().filter(|(_, context)| context.utterance.ended);
            let Some(oldest) = ended.min_by_key(|(_, context)| context.touched).map(|(id, _)| *id) else {
                return;
            };
            self.contexts.remove(&oldest);
        }
    }

    pub(super) fn end_idle_contexts(&mut self, now: Tick) {
        let limit = self.config.limits.context_idle;
        for context in self.contexts.values_mut() {
            if context.idle_at(limit) <= now {
                context.utterance.give_up(FinishReason::Idle, &mut self.out);
                context.touched = now;
            }
        }
    }

    pub(super) fn give_up_letting_go(&mut self, now: Tick) {
        for letting_go in self.letting_go.values_mut() {
            if letting_go.until <= now {
                letting_go.utterance.abandon();
                letting_go.until = Tick::NEVER;
            }
        }
    }

    pub(super) fn cancel(&mut self, now: Tick, cancel: &Cancel) -> Result<(), WireError> {
        let id = cancel.context;
        let unknown = WireError::UnknownContext { context: id };
        let listener = self.contexts.get(&id).map(|context| self.listener(&context.target));
        let (Some(listener), Some(context)) = (listener, self.contexts.get_mut(&id)) else {
            return Err(unknown);
        };
        let current = context.utterance.key.epoch;
        match super::input::compare(id, cancel.epoch, current)? {
            std::cmp::Ordering::Less => {
                self.counters.stale += 1;
                if let Some(message) = &context.last_cancelled {
                    self.out.send(now, message);
                }
                return Ok(());
            }
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => {}
        }
        let mut old = context.next_epoch(now, &self.config, listener);
        self.paces.keep(&context.target, old.pace());
        let audible = match cancel.played {
            Some(played) => played.min(old.clock.sent()),
            None => old.clock.position(now, &self.pings.link),
        };
        let heard = old.heard(audible);
        let message = ServerMessage::Cancelled { context: id, epoch: context.utterance.key.epoch.0, heard };
        self.out.send(now, &message);
        context.last_cancelled = Some(message);
        context.last_end = None;
        let sequence = context.sequence;
        self.let_go(now, old, sequence);
        Ok(())
    }
}
