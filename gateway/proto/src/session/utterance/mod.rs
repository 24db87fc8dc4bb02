//! One epoch of one context: its text on the way to an engine context (`text`), its sound on the way back
//! (`sound`), and what is told of it (`spoken`).

mod sound;
mod spoken;
mod text;

use std::collections::VecDeque;

use contract::{EngineError, FinishReason, Layout, Playback, Span, TextAccepted, Tick, Usage};

use super::output::{AudioFormat, EncodeJob, EncodeWork, EngineCommand, EpochKey, Outbox, Output};
use crate::alignment::{Alignment, Pace};
use crate::catalog::Target;
use crate::link::Link;
use crate::pacer::Pacer;
use crate::playback::PlaybackClock;
use crate::reader::Reader;
use crate::shape::Shape;
use crate::wire::{CLOCK_HZ, ChunkTrace, Player, WireError};
use spoken::Flushes;

/// Segments whose text an engine may hold before their sound has left it: the spoken one, and the next
/// few so that their prefill is never late.
const SEGMENTS_AHEAD: u32 = 4;
/// Text may be this long without another delta before the engine's held-back tail is released.
pub const TAIL_WAIT: Span = Span::from_millis(300);
const RETRY_MIN: Span = Span::from_millis(5);
/// Text after a pause goes to the engine once no more than this waits for the wire, in 48 kHz samples: an
/// engine does not count pauses when it bounds how far ahead it makes.
const BREATH_WAITING_MAX: u64 = CLOCK_HZ as u64;

/// A step of the text, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TextWork {
    /// A pause stands here: what follows waits until the sound before it is nearly sent.
    Breath,
    EndSegment,
    Finish,
    Open,
    Release,
    Text(String),
}

/// Where the engine context of this epoch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineState {
    /// Never asked for: no speakable text so far.
    Unopened,
    Opening,
    Open,
    /// Asked to stop; `Finished` will follow.
    Stopping,
    Gone,
}

#[derive(Debug)]
pub(super) struct Utterance {
    pub(super) key: EpochKey,
    /// When its first text came.
    pub(super) began: Option<Tick>,
    /// Last `text.append` taken.
    pub(super) sequence: u32,
    /// Unicode scalar values taken.
    pub(super) characters: u64,
    pub(super) text_ended: bool,
    pub(super) ended: bool,
    pub(super) clock: PlaybackClock,
    pub(super) pacer: Pacer,
    /// First half of a surrogate pair that the last delta ended with, and that delta's sequence.
    half: Option<(u16, u32)>,
    reader: Reader,
    shape: Shape,
    streamed: bool,
    work: VecDeque<TextWork>,
    /// Scalar values in `work`.
    waiting: u64,
    /// A pause stands before the next text.
    breath: bool,
    /// Segments whose end or sound has passed through the engine.
    segments_pushed: u32,
    segments_finished: u32,
    engine: EngineState,
    under_way: Option<TextWork>,
    retry_at: Option<Tick>,
    dry_at: Option<Tick>,
    held_bytes: u32,
    usage: Usage,
    finished: Option<FinishReason>,
    /// Ends the epoch with this reason whatever the engine says.
    verdict: Option<FinishReason>,
    format: AudioFormat,
    trace: bool,
    sound: bool,
    encoded: bool,
    alignment: Alignment,
    flushes: Flushes,
    traces: VecDeque<(u64, ChunkTrace)>,
    told: Playback,
    pre_skip: u16,
}

/// Who listens to a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) player: Option<Player>,
    /// Asked for a trace.
    pub(super) trace: bool,
    /// Wants to be told when what sounds.
    pub(super) times: bool,
    /// Of the voice that is listened to.
    pub(super) pace: Pace,
}

fn alignment(listener: Listener, format: AudioFormat) -> Alignment {
    let alignment = if listener.times { Alignment::with_times() } else { Alignment::new() };
    alignment.knowing(listener.pace).at_speed(format.speed)
}

/// What an utterance needs to know of its session.
pub(super) struct Setting<'a> {
    pub(super) target: &'a Target,
    pub(super) format: AudioFormat,
    pub(super) listener: Listener,
    pub(super) lead: Span,
    /// 48 kHz samples that may wait in the pacer.
    pub(super) waiting_samples_max: u64,
    pub(super) pre_skip: u16,
}

impl Utterance {
    pub(super) fn new(key: EpochKey, setting: &Setting<'_>) -> Self {
        Self {
            key,
            began: None,
            sequence: 0,
            characters: 0,
            text_ended: false,
            ended: false,
            clock: PlaybackClock::new(setting.listener.player),
            pacer: Pacer::new(setting.lead, setting.pre_skip, setting.waiting_samples_max),
            half: None,
            reader: setting.target.reader(),
            shape: setting.target.shape(),
            streamed: setting.target.layout == Layout::Streamed,
            work: VecDeque::new(),
            waiting: 0,
            breath: false,
            segments_pushed: 0,
            segments_finished: 0,
            engine: EngineState::Unopened,
            under_way: None,
            retry_at: None,
            dry_at: None,
            held_bytes: 0,
            usage: Usage::default(),
            finished: None,
            verdict: None,
            format: setting.format,
            trace: setting.listener.trace,
            sound: false,
            encoded: false,
            alignment: alignment(setting.listener, setting.format),
            flushes: Flushes::new(setting.listener.times),
            traces: VecDeque::new(),
            told: Playback::NotStarted,
            pre_skip: setting.pre_skip,
        }
    }

    /// Speaks, or will.
    pub(super) const fn is_live(&self) -> bool {
        self.began.is_some() && !self.ended
    }

    /// Scalar values that wait to reach the engine.
    pub(super) const fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Takes no more text: it has ended, or is about to.
    pub(super) const fn is_over(&self) -> bool {
        self.ended || self.finished.is_some() || self.verdict.is_some()
    }

    /// The last delta ended within a character.
    pub(super) const fn awaits_half(&self) -> bool {
        self.half.is_some()
    }

    /// Whether everything it has was spoken and sent.
    pub(super) fn is_quiet(&self) -> bool {
        self.work.is_empty() && self.under_way.is_none() && self.pacer.is_empty()
    }

    /// Hands the next step to the engine, when it may have one.
    pub(super) fn pump(&mut self, target: &Target, tenant: u32, may_open: bool, out: &mut Outbox) {
        let key = self.key;
        if self.under_way.is_some() || self.retry_at.is_some() {
            return;
        }
        if self.engine == EngineState::Unopened {
            if self.work.is_empty() || !may_open {
                return;
            }
            // Work is queued only after text came.
            let arrival = self.began.unwrap_or(Tick::ZERO);
            self.engine = EngineState::Opening;
            self.under_way = Some(TextWork::Open);
            let request = Box::new(target.request(arrival, tenant));
            out.engine(EngineCommand::Open { key, request });
            return;
        }
        if self.engine != EngineState::Open {
            return;
        }
        let ahead = self.segments_pushed.saturating_sub(self.segments_finished);
        if self.work.front() == Some(&TextWork::Breath) {
            if ahead > 0 || self.pacer.waiting() > BREATH_WAITING_MAX {
                return;
            }
            self.work.pop_front();
        }
        if ahead >= SEGMENTS_AHEAD && matches!(self.work.front(), Some(TextWork::Text(_))) {
            return;
        }
        let Some(work) = self.work.pop_front() else { return };
        match &work {
            TextWork::EndSegment => out.engine(EngineCommand::EndSegment { key }),
            TextWork::Finish => out.engine(EngineCommand::Finish { key }),
            TextWork::Release => out.engine(EngineCommand::ReleaseTail { key }),
            TextWork::Text(text) => out.engine(EngineCommand::PushText { key, text: text.clone() }),
            // Opening is under way as soon as it is decided, and never queued; two breaths never follow
            // each other.
            TextWork::Open | TextWork::Breath => return,
        }
        self.under_way = Some(work);
    }

    /// The engine answered the step under way.
    pub(super) fn handle_reply(
        &mut self,
        now: Tick,
        reply: Result<TextAccepted, EngineError>,
        out: &mut Outbox,
    ) {
        let Some(work) = self.under_way.take() else { return };
        match reply {
            Err(EngineError::Overloaded { retry_after }) if work != TextWork::Open => {
                if self.engine == EngineState::Open {
                    self.retry_at = Some(now + retry_after.max(RETRY_MIN));
                    self.work.push_front(work);
                }
            }
            // The engine ended the context before it heard this: why, says the end that it sends.
            Err(EngineError::ContextClosed) if work != TextWork::Open && self.engine == EngineState::Open => {
            }
            Err(error) => {
                if work == TextWork::Open {
                    self.engine = EngineState::Gone;
                }
                match self.verdict {
                    Some(reason) if self.engine == EngineState::Gone => self.finish(reason, out),
                    Some(_) => {}
                    None => self.fail(now, &WireError::Engine(error), out),
                }
            }
            Ok(accepted) => self.accepted(now, work, accepted, out),
        }
    }

    fn accepted(&mut self, now: Tick, work: TextWork, accepted: TextAccepted, out: &mut Outbox) {
        self.usage.text_ids += u64::from(accepted.ids);
        match work {
            TextWork::Open if self.verdict.is_some() => {
                self.engine = EngineState::Stopping;
                out.engine(EngineCommand::Cancel { key: self.key });
            }
            TextWork::Open => self.engine = EngineState::Open,
            TextWork::Text(text) => {
                self.waiting = self.waiting.saturating_sub(text.chars().count() as u64);
                self.held_bytes = accepted.held_bytes;
                if self.dry_at.is_none() {
                    self.wait_for_more(now);
                }
            }
            TextWork::EndSegment => {
                self.held_bytes = 0;
                self.segments_pushed += 1;
            }
            TextWork::Release => {
                self.held_bytes = accepted.held_bytes;
                if self.held_bytes == 0 && self.reader.held_bytes() == 0 {
                    self.dry_at = None;
                }
            }
            TextWork::Finish | TextWork::Breath => {}
        }
    }

    /// Text that could not be spoken before can be from now on.
    pub(super) fn begin_anew(&mut self, now: Tick) {
        self.began = self.began.map(|_| now);
    }

    /// Ends the epoch as failed, and says why.
    pub(super) fn fail(&mut self, now: Tick, error: &WireError, out: &mut Outbox) {
        if self.verdict.is_none() && self.finished.is_none() {
            out.error(now, error, Some(self.key), None, None);
            self.stop(FinishReason::Failed, out);
        }
    }

    /// Asks the engine to let go; `end` will say `reason`.
    pub(super) fn stop(&mut self, reason: FinishReason, out: &mut Outbox) {
        self.verdict.get_or_insert(reason);
        self.work.clear();
        self.waiting = 0;
        self.retry_at = None;
        self.dry_at = None;
        match self.engine {
            EngineState::Unopened | EngineState::Gone => self.finish(reason, out),
            EngineState::Open => {
                self.engine = EngineState::Stopping;
                out.engine(EngineCommand::Cancel { key: self.key });
            }
            // The answer to `Open` decides.
            EngineState::Opening | EngineState::Stopping => {}
        }
    }

    /// Everything of the engine is here.
    fn finish(&mut self, reason: FinishReason, out: &mut Outbox) {
        self.engine = EngineState::Gone;
        self.work.clear();
        self.waiting = 0;
        self.retry_at = None;
        self.dry_at = None;
        if self.finished.is_some() {
            return;
        }
        let reason = self.verdict.unwrap_or(reason);
        if matches!(reason, FinishReason::Done | FinishReason::Capped) {
            let rest = self.shape.finish();
            self.put(rest, out);
        }
        self.finished = Some(reason);
        if self.sound {
            let job = EncodeJob { key: self.key, format: self.format, work: EncodeWork::Finish };
            out.push(Output::Encode(job));
        } else {
            self.encoded = true;
        }
    }

    pub(super) fn handle_finished(
        &mut self,
        now: Tick,
        reason: FinishReason,
        usage: Usage,
        error: Option<EngineError>,
        out: &mut Outbox,
    ) {
        // The engine's own count of ids includes those released by segment ends.
        self.usage.text_ids = self.usage.text_ids.max(usage.text_ids);
        self.usage.encode = usage.encode;
        self.usage.text_starved = usage.text_starved;
        if let Some(error) = error.filter(|_| self.verdict.is_none() && self.finished.is_none()) {
            out.error(now, &WireError::Engine(error), Some(self.key), None, None);
        }
        self.finish(reason, out);
    }

    pub(super) fn handle_timeout(&mut self, now: Tick, link: &Link, out: &mut Outbox) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        if self.dry_at.is_some_and(|at| at <= now) {
            self.release(now, out);
        }
        if !self.ended {
            self.clock.handle_timeout(now, link);
        }
    }

    pub(super) fn retry_at(&self) -> Tick {
        self.retry_at.unwrap_or(Tick::NEVER)
    }

    pub(super) fn dry_at(&self) -> Tick {
        self.dry_at.unwrap_or(Tick::NEVER)
    }
}
