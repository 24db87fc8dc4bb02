//! What each message of the client does.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use contract::{Epoch, Layout, Span, Tick};

use super::context::{Context, pre_skip};
use super::{Counters, Output, Session};
use crate::catalog::{Ask, Target};
use crate::dialect::Step;
use crate::playback::{REPORT_INTERVAL, ReportOutcome};
use crate::session::replay::REPLAY_AGE_MAX;
use crate::wire::{
    CLOCK_HZ, ClientMessage, CloseCode, ContextRef, Header, Hello, Open, Opened, OpenedAudio, PlaybackReport,
    Ready, ReadyAudio, ReadyLimits, ReadyModel, ReadyVoice, Resume, SAMPLE_RATES, SUBPROTOCOL, ServerMessage,
    TEXT_BYTES_MAX, TextAppend, Unreadable, WireCodec, WireError,
};

/// Packet length on the wire.
const PACKET_MS: u32 = 20;
/// When to try again after `text_too_long`: about what is spoken meanwhile makes room.
const BACKLOG_RETRY: Span = Span::from_millis(1_000);

/// Compares an epoch a message names with the context's: `Less` when it is an older one.
pub(super) fn compare(context: u16, given: Option<Epoch>, current: Epoch) -> Result<Ordering, WireError> {
    let Some(given) = given else { return Ok(Ordering::Equal) };
    // Epochs wrap: the nearer way round decides which is older.
    match given.0.wrapping_sub(current.0) {
        0 => Ok(Ordering::Equal),
        1..0x8000 => Err(WireError::EpochAhead { context, given: given.0, current: current.0 }),
        _ => Ok(Ordering::Less),
    }
}

impl Session {
    pub(super) fn ready(&self) -> ServerMessage {
        let limits = &self.config.limits;
        let info = &self.config.engine;
        let millis = |span: Span| u64::try_from(span.as_millis()).unwrap_or(0);
        let names = |layouts: &[Layout]| layouts.iter().map(|layout| layout.name().to_owned()).collect();
        let models = info.models.iter().map(|model| ReadyModel {
            name: model.name.clone(),
            sample_rate: model.sample_rate,
            layouts: names(&model.layouts),
            languages: model.languages.clone(),
            default_voice: model
                .default_voice
                .and_then(|at| model.voices.get(at))
                .map(|voice| voice.id.clone()),
            takes_instructions: model.takes_instructions,
            takes_reference: model.takes_reference,
            voices: model.voices.iter().map(ReadyVoice::from).collect(),
        });
        ServerMessage::Ready(Box::new(Ready {
            protocol: SUBPROTOCOL.to_owned(),
            session: self.config.session.clone(),
            resume: self.config.resume.clone(),
            resume_window_ms: millis(limits.resume_window.min(REPLAY_AGE_MAX)),
            report_interval_ms: millis(REPORT_INTERVAL),
            default_model: info.models.first().map(|model| model.name.clone()),
            limits: ReadyLimits {
                message_bytes: limits.message_bytes,
                frame_bytes: limits.frame_bytes,
                text_bytes: TEXT_BYTES_MAX,
                text_characters: limits.text_characters,
                contexts: limits.contexts,
                lead_ms: millis(limits.lead),
                idle_ms: millis(limits.idle),
                context_idle_ms: millis(limits.context_idle),
                pings_per_second: limits.pings_per_second,
            },
            audio: ReadyAudio {
                codecs: WireCodec::NAMES.iter().map(|(name, _)| (*name).to_owned()).collect(),
                clock: CLOCK_HZ,
                packet_ms: PACKET_MS,
                sample_rates: SAMPLE_RATES.to_vec(),
            },
            models: models.collect(),
        }))
    }

    /// Does what the dialect wants of the session, and what that makes it want.
    pub(super) fn take_steps(&mut self, now: Tick) {
        while let Some(step) = self.out.next_step() {
            if self.out.is_closed() {
                continue;
            }
            match step {
                Step::Audio { header, payload } => self.audio(now, &header, &payload),
                Step::Client { id, message } => self.client(now, id, message),
                Step::Clip { context, file } => self.reference_file(now, context, file),
                Step::Close(code) => self.close(code),
                Step::Forget { context } => self.forget(now, context),
                Step::Unreadable(unreadable) => {
                    let Unreadable { id, error } = *unreadable;
                    self.refuse(now, &error, None, id);
                    self.count_unreadable(now);
                }
                // They have been written already.
                Step::Binary(_) | Step::Text(_) => {}
            }
        }
    }

    fn client(&mut self, now: Tick, id: Option<String>, message: ClientMessage) {
        let context = match &message {
            ClientMessage::Cancel(cancel) => Some(cancel.context),
            ClientMessage::Open(open) => Some(open.context),
            ClientMessage::TextAppend(append) => Some(append.context),
            ClientMessage::TextEnd(named) | ClientMessage::TextFlush(named) => Some(named.context),
            _ => None,
        };
        let done = match message {
            ClientMessage::Cancel(cancel) => self.cancel(now, &cancel),
            ClientMessage::Hello(hello) => self.hello(hello),
            ClientMessage::Open(open) => self.open(now, &open),
            ClientMessage::Ping { t } => {
                self.ping(now, t);
                Ok(())
            }
            ClientMessage::Playback(report) => {
                self.playback(now, &report);
                Ok(())
            }
            ClientMessage::Resume(resume) => self.resume(resume),
            ClientMessage::TextAppend(append) => self.append(now, &append),
            ClientMessage::TextEnd(named) => self.flush(now, &named, true),
            ClientMessage::TextFlush(named) => self.flush(now, &named, false),
        };
        if let Err(error) = done {
            self.refuse(now, &error, context, id);
        }
    }

    fn audio(&mut self, now: Tick, header: &Header, payload: &Bytes) {
        if let Err(error) = self.reference_packet(now, header, payload) {
            self.refuse(now, &error, None, None);
        }
    }

    fn refuse(&mut self, now: Tick, error: &WireError, context: Option<u16>, id: Option<String>) {
        self.counters.refused += 1;
        let key = context.and_then(|id| self.contexts.get(&id)).map(|context| context.utterance.key);
        self.out.error(now, error, key, context, id);
    }

    /// Messages that cannot be read are a violation when there are many. Readable ones that come at the
    /// wrong time are not: a client may have sent them before it could know.
    fn count_unreadable(&mut self, now: Tick) {
        if self.unreadable_rate.exceeds(now) {
            self.close(CloseCode::Policy);
        }
    }

    fn hello(&mut self, hello: Hello) -> Result<(), WireError> {
        if self.hello.is_some() || self.highest.is_some() {
            return Err(WireError::HelloTooLate);
        }
        self.hello = Some(hello);
        Ok(())
    }

    fn open(&mut self, now: Tick, open: &Open) -> Result<(), WireError> {
        self.check_token()?;
        if self.drain_until.is_some() {
            return Err(WireError::Draining);
        }
        if let Some(highest) = self.highest
            && open.context <= highest
        {
            return Err(WireError::ContextExists { context: open.context, highest });
        }
        self.room_to_speak()?;
        if self.contexts.len() >= self.config.limits.contexts_open {
            let max = self.config.limits.contexts_open;
            return Err(WireError::TooManyContexts { live: self.contexts.len(), max });
        }
        let mut ask = Ask {
            model: open.model.clone(),
            voice: open.voice.clone(),
            reference: self.announced(open)?,
            language: open.language.clone(),
            instructions: open.instructions.clone(),
            layout: open.layout,
            sampling: open.sampling,
            exact_frames: open.exact_frames,
            normalize: open.normalize,
            lexicon: Arc::clone(&self.config.lexicon),
            trim: open.audio.is_some_and(|audio| audio.trim),
        };
        if let Some(voices) = &self.config.voices {
            voices.choose(&self.config.engine, &mut ask)?;
        }
        let preferred = self.out.dialect().manner().layouts;
        let target = Target::resolve(&self.config.engine, &ask, preferred, self.config.bench)?;
        self.begin(now)?;
        let listener = self.listener(&target);
        let context = Context::new(now, open, target, &self.config, listener);
        let (target, format) = (&context.target, context.format());
        let opened = ServerMessage::Opened(Opened {
            context: open.context,
            epoch: 0,
            model: target.model.clone(),
            voice: target.voice.clone(),
            language: target.language.clone(),
            reading: target.reading().map(str::to_owned),
            layout: target.layout.name().to_owned(),
            audio: OpenedAudio {
                codec: format.codec.name().to_owned(),
                sample_rate: format.wire_rate,
                channels: 1,
                packet_ms: PACKET_MS,
                pre_skip: pre_skip(format, &self.config),
            },
        });
        self.highest = Some(open.context);
        self.contexts.insert(open.context, context);
        if let Some(quotas) = &self.config.quotas {
            self.out.send_quotas(now, &quotas.levels(now));
        }
        self.out.send(now, &opened);
        Ok(())
    }

    /// One more request of the tenant's.
    fn begin(&self, now: Tick) -> Result<(), WireError> {
        self.config.quotas.as_ref().map_or(Ok(()), |quotas| quotas.begin(now))
    }

    fn room_to_speak(&self) -> Result<(), WireError> {
        let live = self.contexts.values().filter(|context| context.utterance.is_live()).count();
        let max = self.config.limits.contexts;
        if live >= max { Err(WireError::TooManyContexts { live, max }) } else { Ok(()) }
    }

    fn append(&mut self, now: Tick, append: &TextAppend) -> Result<(), WireError> {
        let id = append.context;
        let (draining, room) = (self.drain_until.is_some(), self.room_to_speak());
        let token = self.check_token();
        let quotas = self.config.quotas.clone();
        let max = self.config.limits.text_characters;
        let Some(context) = named(&mut self.contexts, &mut self.counters, now, id, append.epoch)? else {
            return Ok(());
        };
        if let Some(awaited) = &context.awaited {
            awaited.check()?;
        }
        let utterance = &mut context.utterance;
        let epoch = utterance.key.epoch.0;
        let duplicate = append.sequence <= utterance.sequence;
        if !duplicate {
            token?;
            if utterance.is_over() {
                return Err(WireError::ContextEnded { context: id, epoch });
            }
            if utterance.text_ended {
                return Err(WireError::TextEnded { context: id, epoch });
            }
            let expected = utterance.sequence + 1;
            if append.sequence != expected {
                return Err(WireError::SequenceGap { context: id, given: append.sequence, expected });
            }
            if utterance.began.is_none() {
                if draining {
                    return Err(WireError::Draining);
                }
                room?;
                // The first epoch was counted when the context was opened.
                if let (Some(quotas), true) = (&quotas, epoch > 0) {
                    quotas.begin(now)?;
                }
            }
            if append.text.lead.is_some() && !utterance.awaits_half() {
                return Err(WireError::LoneSurrogate { param: "text".to_owned(), sequence: None });
            }
            let waiting = utterance.waiting() + append.text.body.chars().count() as u64;
            if waiting > max {
                return Err(WireError::TextTooLong {
                    context: id,
                    sequence: append.sequence,
                    waiting,
                    max,
                    retry_after: BACKLOG_RETRY,
                });
            }
            utterance.handle_text(now, &append.text, &mut self.out);
            if let Some(quotas) = &quotas {
                quotas.take_characters(now, append.text.body.chars().count() as u64);
            }
        }
        let ack = ServerMessage::TextAck {
            context: id,
            epoch,
            sequence: utterance.sequence,
            characters: utterance.characters,
        };
        self.out.send(now, &ack);
        self.counters.duplicates += u64::from(duplicate);
        Ok(())
    }

    fn flush(&mut self, now: Tick, which: &ContextRef, end: bool) -> Result<(), WireError> {
        let id = which.context;
        let Some(context) = named(&mut self.contexts, &mut self.counters, now, id, which.epoch)? else {
            return Ok(());
        };
        let utterance = &mut context.utterance;
        let epoch = utterance.key.epoch.0;
        if utterance.is_over() {
            // It crossed the epoch's `end` on the wire.
            return Ok(());
        }
        if utterance.text_ended {
            return Err(WireError::TextEnded { context: id, epoch });
        }
        let (sequence, characters) = (utterance.sequence, utterance.characters);
        utterance.handle_flush(now, end, &mut self.out);
        if !end {
            self.out.send(now, &ServerMessage::TextFlushed { context: id, epoch, sequence, characters });
        }
        Ok(())
    }

    fn ping(&mut self, now: Tick, t: f64) {
        if self.ping_rate.exceeds(now) {
            self.close(CloseCode::Policy);
            return;
        }
        let server_ms = now.as_micros() as f64 / 1_000.0;
        self.out.send(now, &ServerMessage::Pong { t, server_ms });
    }

    fn playback(&mut self, now: Tick, report: &PlaybackReport) {
        let Some(context) = self.contexts.get_mut(&report.context) else {
            self.counters.stale += 1;
            return;
        };
        let utterance = &mut context.utterance;
        if report.epoch != utterance.key.epoch {
            self.counters.stale += 1;
            return;
        }
        context.touched = now;
        let before = utterance.clock.underruns();
        match utterance.clock.handle_report(now, report, context.sequence, &self.pings.link) {
            ReportOutcome::Accepted => {
                self.counters.reports += 1;
                self.counters.underruns += u64::from(utterance.clock.underruns() - before);
            }
            ReportOutcome::Dropped => self.counters.reports_dropped += 1,
            ReportOutcome::Impossible(_) | ReportOutcome::Untrusted => self.counters.reports_ignored += 1,
        }
    }

    fn resume(&mut self, resume: Resume) -> Result<(), WireError> {
        if self.counters.messages > 1 {
            return Err(WireError::ResumeTooLate);
        }
        let Resume { token, received } = resume;
        self.out.push(Output::Resume { token, received });
        Ok(())
    }
}

/// The context a message names; `None` when it means an older epoch.
fn named<'a>(
    contexts: &'a mut BTreeMap<u16, Context>,
    counters: &mut Counters,
    now: Tick,
    id: u16,
    epoch: Option<Epoch>,
) -> Result<Option<&'a mut Context>, WireError> {
    let context = contexts.get_mut(&id).ok_or(WireError::UnknownContext { context: id })?;
    if compare(id, epoch, context.utterance.key.epoch)? == Ordering::Less {
        counters.stale += 1;
        return Ok(None);
    }
    context.touched = now;
    Ok(Some(context))
}
