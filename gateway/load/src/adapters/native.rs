//! The native wire, with a listener's playback reports.

use std::time::Duration;

use bytes::Bytes;
use client::{ClientError, Event, connect_over};
use codecs::opus::{OpusDecoder, packet_duration_48k};
use contract::{Span, Tick};
use futures_util::FutureExt;
use proto::wire::{
    AudioChoice, ClientMessage, Header, Hello, ListenerState, Open, PacketKind, PlaybackReport, Ready,
    SamplingFields, ServerMessage, WireCodec,
};
use tokio::net::TcpStream;

use super::glance::{Glance, GlanceStream};
use super::{CLOCK_HZ, PcmPieces, Request, STOP_LIMIT, failure, is_audible, until};
use crate::hearing::Hearing;
use crate::outcome::Ending;
use crate::random::Random;

type Sender = client::Sender<GlanceStream>;
type Receiver = client::Receiver<GlanceStream>;

const CONTEXT: u16 = 1;
/// Events taken at one look before anything else is seen to.
const LOOK_MAX: u32 = 64;
/// Codes that turn a request away before it has begun, beside every `overloaded_error`.
const REFUSALS: [&str; 3] = ["quota_exceeded", "too_many_contexts", "draining"];

/// How long a server that can no longer be sent to is listened to in all, and for its next message.
const LAST_WORD: Span = Span::from_millis(500);
const LAST_WORD_WAIT: Duration = Duration::from_millis(200);

pub(super) async fn speak(
    request: &Request<'_>,
    hearing: &mut Hearing,
    pcm: bool,
    ids_per_s: Option<f64>,
) -> Result<Ending, String> {
    let glance = Glance::default();
    let stream = TcpStream::connect(&request.target.address).await.map_err(failure)?;
    stream.set_nodelay(true).map_err(failure)?;
    let stream = GlanceStream::new(stream, glance.clone());
    let connected = connect_over(stream, &request.target.address, request.token).await;
    let (mut sender, receiver, ready) = match connected {
        Ok(connected) => connected,
        Err(ClientError::Refused { status, body }) => return Ok(refused(status, &body)),
        Err(error) => return Err(failure(error)),
    };
    begin(request, hearing, &mut sender, pcm).await.map_err(failure)?;
    let pieces = request.pieces(ids_per_s);
    let mut talk = Talk::new(request, hearing, sender, receiver, &ready, glance);
    let ending = talk.run(pieces).await;
    talk.glance.watch();
    // One that cannot be sent to has mostly said why before it closed.
    let ending = if talk.unsent { talk.last_word().await.unwrap_or(ending) } else { ending };
    // The server's last word is `end`; a close it does not hear changes nothing.
    drop(tokio::time::timeout(Duration::from_millis(200), talk.sender.close()).await);
    ending
}

async fn begin(
    request: &Request<'_>,
    hearing: &Hearing,
    sender: &mut Sender,
    pcm: bool,
) -> Result<(), ClientError> {
    let hello = Hello {
        client: Some("voxlane bench".to_owned()),
        playback: Some(hearing.habits().player()),
        trace: true,
    };
    sender.send(&ClientMessage::Hello(hello)).await?;
    let field = |key| request.target.field(key).map(str::to_owned);
    let codec = if pcm { WireCodec::Pcm } else { WireCodec::Opus };
    let open = Open {
        context: CONTEXT,
        audio: Some(AudioChoice { codec, ..AudioChoice::default() }),
        model: field("model"),
        voice: field("voice"),
        language: field("language"),
        sampling: SamplingFields { seed: Some(request.arrival.seed >> 12), ..SamplingFields::default() },
        exact_frames: request.exact_frames(),
        ..Open::default()
    };
    sender.open(open).await
}

fn closed(code: u16, reason: &str) -> String {
    failure(format!("the server closed with {code} {reason}").trim_end())
}

/// One utterance under way.
struct Talk<'a> {
    request: &'a Request<'a>,
    hearing: &'a mut Hearing,
    sender: Sender,
    receiver: Receiver,
    glance: Glance,
    decoder: Option<OpusDecoder>,
    /// Of PCM, in hertz.
    rate_hz: u64,
    epoch: Option<contract::Epoch>,
    /// Samples before the first true one, still to come.
    skip: u64,
    sequence: u32,
    interval: Span,
    next_report: Option<Tick>,
    reported: Option<(ListenerState, u32)>,
    /// Reports that the listener's link holds back.
    held: std::collections::VecDeque<(Tick, PlaybackReport)>,
    random: Random,
    cut: Option<Tick>,
    /// From the first piece of the text to the last.
    withheld: Span,
    /// Something could not be sent.
    unsent: bool,
}

impl<'a> Talk<'a> {
    fn new(
        request: &'a Request<'a>,
        hearing: &'a mut Hearing,
        sender: Sender,
        receiver: Receiver,
        ready: &Ready,
        glance: Glance,
    ) -> Self {
        Self {
            request,
            hearing,
            sender,
            receiver,
            glance,
            decoder: None,
            rate_hz: 24_000,
            epoch: None,
            skip: 0,
            sequence: 0,
            interval: Span::from_millis(i64::try_from(ready.report_interval_ms).unwrap_or(200).max(50)),
            next_report: None,
            reported: None,
            held: std::collections::VecDeque::new(),
            random: Random::new(request.arrival.seed ^ 0x7265_706f_7274),
            cut: None,
            withheld: Span::ZERO,
            unsent: false,
        }
    }

    async fn run(&mut self, pieces: Vec<(Duration, String)>) -> Result<Ending, String> {
        let clock = self.request.clock;
        let begun = clock.now();
        let at = |after: Duration| begun + Span::from_micros(i64::try_from(after.as_micros()).unwrap_or(0));
        self.withheld = pieces.last().map_or(begun, |(after, _)| at(*after)).since(begun);
        let mut pieces = pieces.into_iter().peekable();
        let mut ended = false;
        let (mut fresh, mut looked) = (true, 0);
        loop {
            let text_due = match pieces.peek() {
                Some((after, _)) => Some(at(*after)),
                None if !ended => Some(clock.now()),
                None => None,
            };
            let own = [self.wake(), text_due].into_iter().flatten().min();
            let back = self.hearing.may_look_away(clock.now()).filter(|_| self.cut.is_none());
            let event = if back.is_some() {
                // Whatever has come is taken at once.
                if std::mem::take(&mut fresh) {
                    self.glance.look();
                }
                self.receiver.next().now_or_never().transpose().map_err(failure)?
            } else {
                self.glance.watch();
                fresh = true;
                tokio::select! {
                    biased;
                    event = self.receiver.next() => Some(event.map_err(failure)?),
                    () = until(clock, own) => None,
                }
            };
            let now = clock.now();
            if let Some(event) = event {
                if let Some(ending) = self.event(now, event)? {
                    return Ok(ending);
                }
                looked += u32::from(back.is_some());
                if back.is_some() && looked < LOOK_MAX {
                    continue;
                }
            } else if text_due.is_some_and(|due| due <= now) {
                match pieces.next() {
                    Some((_, text)) => {
                        let sent = self.sender.append(CONTEXT, &text).await;
                        self.sent(sent)?;
                    }
                    None => {
                        ended = true;
                        let sent = self.sender.end(CONTEXT).await;
                        self.sent(sent)?;
                    }
                }
            } else if back.is_some() && own.is_none_or(|own| own > now) {
                // Nothing more has come: nothing is looked at for a while.
                until(clock, own.into_iter().chain(back).min()).await;
                fresh = true;
                continue;
            }
            looked = 0;
            if self.cut.is_none() && self.hearing.interrupts_at().is_some_and(|at| at <= now) {
                let played = self.hearing.interrupted(now);
                self.cut = Some(now);
                pieces = Vec::new().into_iter().peekable();
                ended = true;
                self.sender.cancel(CONTEXT, Some(played)).await.map_err(failure)?;
            }
            let limit = Span::from_micros(i64::try_from(STOP_LIMIT.as_micros()).unwrap_or(0));
            if self.cut.is_some_and(|cut| now.since(cut) > limit) {
                return Err("the server did not answer an interrupt".to_owned());
            }
            let sent = self.report(now).await;
            self.sent(sent)?;
        }
    }

    fn sent(&mut self, sent: Result<(), ClientError>) -> Result<(), String> {
        self.unsent |= sent.is_err();
        sent.map_err(failure)
    }

    /// What the server says once it can no longer be spoken to: its error, or why it closed. Sound is no longer heard.
    async fn last_word(&mut self) -> Option<Result<Ending, String>> {
        let begun = self.request.clock.now();
        while self.request.clock.now().since(begun) < LAST_WORD {
            match tokio::time::timeout(LAST_WORD_WAIT, self.receiver.next()).await {
                Ok(Ok(Event::Message(message))) => {
                    let said = self.message(message).transpose();
                    if said.is_some() {
                        return said;
                    }
                }
                Ok(Ok(Event::Packet { .. })) => {}
                _ => break,
            }
        }
        // Whoever closed may keep the connection for a while.
        self.receiver.close_frame().map(|(code, reason)| Err(closed(code, reason)))
    }

    /// When something of the listener's own is due.
    fn wake(&self) -> Option<Tick> {
        if let Some(cut) = self.cut {
            return Some(cut + Span::from_millis(2_001));
        }
        let reporting = self.hearing.habits().reports;
        let change = self.hearing.next_change().filter(|_| reporting);
        let held = self.held.front().map(|(at, _)| *at);
        let cut = self.hearing.interrupts_at();
        [self.next_report.filter(|_| reporting), change, held, cut].into_iter().flatten().min()
    }

    fn event(&mut self, now: Tick, event: Event) -> Result<Option<Ending>, String> {
        match event {
            Event::Closed { code, reason } => {
                return Err(closed(code, &reason));
            }
            Event::Packet { header, payload } if header.context == CONTEXT && self.cut.is_none() => {
                self.packet(now, &header, &payload)?;
            }
            Event::Packet { .. } => {}
            Event::Message(message) => return self.message(message),
        }
        Ok(None)
    }

    fn message(&mut self, message: ServerMessage) -> Result<Option<Ending>, String> {
        match message {
            ServerMessage::Opened(opened) => {
                self.skip = u64::from(opened.audio.pre_skip);
                self.rate_hz = u64::from(opened.audio.sample_rate);
                if self.rate_hz == 0 {
                    return Err("it opened a stream of 0 Hz, which holds no sound".to_owned());
                }
                if opened.audio.codec == "opus" {
                    let decoder = OpusDecoder::new(24_000, u32::from(opened.audio.pre_skip));
                    self.decoder = Some(decoder.map_err(failure)?);
                }
            }
            ServerMessage::Chunk(chunk) => self.hearing.first_chunk(chunk.samples, Some(chunk.frames)),
            ServerMessage::Cancelled { .. } if self.cut.is_some() => return Ok(Some(Ending::Interrupted)),
            ServerMessage::End(end) if self.cut.is_none() => {
                let told = Span::from_micros((end.usage.text_starved_ms * 1_000.0) as i64);
                // A server cannot have waited for longer than text was held back here.
                let starved = told.clamp(Span::ZERO, self.withheld);
                self.hearing.made(end.usage.frames, end.usage.samples, starved);
                let whole = end.reason == "done" || (end.reason == "capped" && end.usage.frames > 0);
                return if whole {
                    Ok(Some(Ending::Done))
                } else {
                    Err(format!("it ended as {}", end.reason))
                };
            }
            ServerMessage::Error(error) => {
                let turned_away = self.hearing.is_silent()
                    && (error.error.kind == "overloaded_error"
                        || REFUSALS.contains(&error.error.code.as_str()));
                return if turned_away {
                    Ok(Some(Ending::Refused(error.error.code)))
                } else {
                    Err(failure(format!("{}: {}", error.error.code, error.error.message)))
                };
            }
            _ => {}
        }
        Ok(None)
    }

    fn packet(&mut self, now: Tick, header: &Header, payload: &Bytes) -> Result<(), String> {
        self.epoch = Some(header.epoch);
        self.sequence = header.sequence;
        if header.kind == PacketKind::Gap {
            // Silence that fills a gap is no sound: the player waits, and that counts as a stall.
            return Ok(());
        }
        let holds = match header.kind {
            PacketKind::Opus => u64::from(packet_duration_48k(payload).map_err(failure)?),
            PacketKind::Pcm => (payload.len() as u64 / 2 * CLOCK_HZ).div_ceil(self.rate_hz),
            _ => return Err("a packet of a kind that was not asked for".to_owned()),
        };
        if u64::from(header.duration) > holds {
            return Err(format!("a packet says it lasts {} samples and holds {holds}", header.duration));
        }
        let skipped = self.skip.min(u64::from(header.duration));
        self.skip -= skipped;
        let samples = u64::from(header.duration) - skipped;
        // Decoding costs more than all else, and only the first sound is looked for.
        let audible = self.hearing.is_silent()
            && match (header.kind, &mut self.decoder) {
                (PacketKind::Opus, Some(decoder)) => is_audible(decoder.decode(payload).map_err(failure)?),
                (PacketKind::Pcm, _) => PcmPieces::default().take(payload).1,
                _ => false,
            };
        self.hearing.sound(now, samples, audible);
        Ok(())
    }

    /// Sends what a browser would: at each change of state, and at its interval while playing.
    async fn report(&mut self, now: Tick) -> Result<(), ClientError> {
        while let Some((_, report)) = self.held.pop_front_if(|(at, _)| *at <= now) {
            self.sender.report(report).await?;
        }
        let Some(epoch) = self.epoch.filter(|_| self.cut.is_none() && self.hearing.habits().reports) else {
            return Ok(());
        };
        let Some(position) = self.hearing.position(now) else { return Ok(()) };
        let state = (position.state, position.underruns);
        if self.reported == Some(state) && self.next_report.is_some_and(|due| now < due) {
            return Ok(());
        }
        self.reported = Some(state);
        let periodic = matches!(position.state, ListenerState::Playing | ListenerState::Prebuffer);
        self.next_report = periodic.then(|| now + self.interval);
        let report = PlaybackReport {
            context: CONTEXT,
            epoch,
            t: now.since(Tick::START).as_micros() as f64 / 1_000.0,
            played: position.played,
            buffered: position.buffered,
            state: position.state,
            underruns: position.underruns,
            sequence: self.sequence,
        };
        let held_back = self.hearing.habits().held_back(&mut self.random);
        let due = (now + held_back).max(self.held.back().map_or(now, |(at, _)| *at));
        if due <= now {
            return self.sender.report(report).await;
        }
        self.held.push_back((due, report));
        Ok(())
    }
}

/// What a refused upgrade says: 429 and 503 turn a request away, all else is a failure.
fn refused(status: u16, body: &str) -> Ending {
    let said: Option<proto::wire::ErrorObject> = serde_json::from_str::<serde_json::Value>(body)
        .ok()
        .and_then(|body| serde_json::from_value(body.get("error")?.clone()).ok());
    match (status, said) {
        (429 | 503, Some(said)) => Ending::Refused(said.code),
        (429 | 503, None) => Ending::Refused(format!("http_{status}")),
        (_, Some(said)) => Ending::Failed(failure(format!("{}: {}", said.code, said.message))),
        (_, None) => Ending::Failed(format!("the upgrade was answered with {status}")),
    }
}
