//! One utterance from text to silence, with the listener's reports.

use std::time::Duration;

use bytes::Bytes;
use codecs::opus::OpusDecoder;
use codecs::pcm::RawEncoding;
use proto::wire::{End, ErrorObject, Flags, Header, Open, OpenedAudio, ServerMessage, WireCodec};
use tokio::time::Instant;

use crate::{ClientError, Event, Listener, Receiver, Sender};

/// -50 dBFS: quieter than this is not yet sound.
const AUDIBLE: f32 = 0.003_162;

/// What to say and how.
#[derive(Clone, Debug)]
pub struct Utterance {
    pub open: Open,
    /// Pieces of text, sent one after the other.
    pub text: Vec<String>,
    /// Time between pieces.
    pub gap: Duration,
    /// How often the listener reports; `None` never.
    pub reports: Option<Duration>,
    /// Decode what comes, for [`Outcome::first_sound`] and [`Outcome::samples`].
    pub decode: bool,
    /// Wait until all of it has been played, not only received.
    pub hear_out: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// First text sent to first packet received.
    pub first_packet: Option<Duration>,
    /// First text sent to the arrival of the packet with the first sample above -50 dBFS.
    pub first_sound: Option<Duration>,
    /// Pauses of the listener, added up.
    pub paused: Duration,
    pub underruns: u32,
    pub packets: u64,
    /// 48 kHz samples received, pre-skip taken off.
    pub media: u64,
    /// Decoded: Opus at 24 kHz, samples at the rate they came at.
    pub samples: Vec<f32>,
    /// The epoch's `end`, unless the connection ended first.
    pub end: Option<End>,
    /// The last error.
    pub error: Option<ErrorObject>,
    /// Close code, when the server closed.
    pub closed: Option<u16>,
}

/// Speaks one utterance on a connection that does nothing else meanwhile.
///
/// # Errors
/// [`ClientError`] when the socket fails or the server sends rubbish.
pub async fn speak(
    sender: &mut Sender,
    receiver: &mut Receiver,
    utterance: &Utterance,
) -> Result<Outcome, ClientError> {
    let context = utterance.open.context;
    sender.open(utterance.open.clone()).await?;
    let mut run = Run::new(context, utterance.decode);
    let mut pieces = utterance.text.iter();
    let mut next_piece = Some(Instant::now());
    let mut report = tokio::time::interval(utterance.reports.unwrap_or(Duration::from_secs(3_600)));
    loop {
        tokio::select! {
            biased;
            event = receiver.next() => if run.event(event?) { break },
            () = sleep_until(next_piece) => {
                run.sent.get_or_insert_with(Instant::now);
                next_piece = loop {
                    let Some(piece) = pieces.next() else {
                        sender.end(context).await?;
                        break None;
                    };
                    sender.append(context, piece).await?;
                    // A timer goes by whole milliseconds: what has no gap must not wait for one.
                    if !utterance.gap.is_zero() {
                        break Some(Instant::now() + utterance.gap);
                    }
                };
            }
            _ = report.tick(), if utterance.reports.is_some() => {
                if let Some(report) = run.listener.report(run.now_us()) {
                    sender.report(report).await?;
                }
            }
        }
    }
    if utterance.hear_out {
        let rest = run.listener.media().saturating_sub(run.listener.played(run.now_us()));
        tokio::time::sleep(Duration::from_micros(rest * 1_000_000 / 48_000)).await;
    }
    Ok(run.finish())
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Run {
    context: u16,
    origin: Instant,
    sent: Option<Instant>,
    listener: Listener,
    decode: bool,
    /// Known once the context is open.
    decoder: Option<Decoder>,
    outcome: Outcome,
}

enum Decoder {
    Opus(Box<OpusDecoder>),
    Raw(RawEncoding),
}

impl Run {
    fn new(context: u16, decode: bool) -> Self {
        let listener = Listener::new(context, 0, 0);
        let outcome = Outcome::default();
        Self { context, origin: Instant::now(), sent: None, listener, decode, decoder: None, outcome }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Takes an event in; true when the utterance is over.
    fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Closed { code, .. } => {
                self.outcome.closed = Some(code);
                return true;
            }
            Event::Message(ServerMessage::Opened(opened)) if opened.context == self.context => {
                self.listener = Listener::new(self.context, 0, opened.audio.pre_skip);
                self.decoder = if self.decode { Decoder::of(&opened.audio) } else { None };
            }
            Event::Message(ServerMessage::End(end)) if end.context == self.context => {
                self.outcome.end = Some(end);
                return true;
            }
            Event::Message(ServerMessage::Error(error)) => {
                let over = error.context == Some(self.context) && error.epoch.is_none();
                self.outcome.error = Some(error.error);
                return over;
            }
            Event::Packet { header, payload } if header.context == self.context => {
                self.packet(&header, &payload);
            }
            Event::Message(_) | Event::Packet { .. } => {}
        }
        false
    }

    fn packet(&mut self, header: &Header, payload: &Bytes) {
        let since = self.sent.map(|sent| sent.elapsed());
        self.listener.packet(self.now_us(), header);
        self.outcome.packets += 1;
        if self.outcome.first_packet.is_none() {
            self.outcome.first_packet = since;
        }
        let Some(decoder) = &mut self.decoder else { return };
        if payload.is_empty() {
            return;
        }
        let Some(samples) = decoder.decode(header, payload) else { return };
        if self.outcome.first_sound.is_none() && samples.iter().any(|sample| sample.abs() > AUDIBLE) {
            self.outcome.first_sound = since;
        }
        self.outcome.samples.extend_from_slice(&samples);
    }

    fn finish(mut self) -> Outcome {
        self.outcome.paused = Duration::from_micros(self.listener.paused_us());
        self.outcome.underruns = self.listener.underruns();
        self.outcome.media = self.listener.media();
        self.outcome
    }
}

impl Decoder {
    /// `None` for a codec of a later server.
    fn of(audio: &OpenedAudio) -> Option<Self> {
        let (_, codec) = WireCodec::NAMES.iter().find(|(name, _)| *name == audio.codec)?;
        match codec.encoding() {
            Some(encoding) => Some(Self::Raw(encoding)),
            None => OpusDecoder::new(24_000, u32::from(audio.pre_skip)).ok().map(Box::new).map(Self::Opus),
        }
    }

    /// The samples of a packet, its end trimmed; `None` when it cannot be decoded.
    fn decode(&mut self, header: &Header, payload: &[u8]) -> Option<Vec<f32>> {
        match self {
            Self::Opus(decoder) if header.flags.contains(Flags::END) => {
                let full = codecs::opus::packet_duration_48k(payload).unwrap_or(u32::from(header.duration));
                let trim = full.saturating_sub(u32::from(header.duration));
                decoder.decode_last(payload, trim).ok().map(<[f32]>::to_vec)
            }
            Self::Opus(decoder) => decoder.decode(payload).ok().map(<[f32]>::to_vec),
            Self::Raw(encoding) => {
                let mut samples = Vec::new();
                encoding.decode(payload, &mut samples);
                Some(samples)
            }
        }
    }
}
