//! A whole text in, a file out, streamed while it is made: what every protocol's endpoint for it shares.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use codecs::CodecError;
use contract::{EngineError, Span, Tick, Usage};
use futures_util::StreamExt;
use http_body_util::StreamBody;
use hyper::body::Frame;
use proto::at_wire_clock;
use proto::body::{Body, Sound};
use proto::catalog::Target;
use proto::quota::Quotas;
use proto::speech::SpeechRequest;
use proto::wire::{Speed, UsageFields};
use tokio::sync::mpsc;

use super::RequestId;
use crate::app::App;
use crate::auth::{Caller, Principal};
use crate::bodies::Room;
use crate::drain::Guard;
use crate::error::ApiError;
use crate::file::{FileWriter, encoder, playing_time};
use crate::usage::Account;
use crate::utterance::{Step, Utterance};

/// Pieces of the body that may wait for the socket.
const BODY_QUEUE: usize = 4;

/// A body must have arrived by then.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A piece of an answer's body.
type Piece = Result<Frame<Bytes>, std::io::Error>;

/// A request that has been let in, with its body.
pub(super) struct Arrived {
    app: Arc<App>,
    caller: Principal,
    request_id: String,
    at: Tick,
    guard: Guard,
    body: Bytes,
    /// What the body takes of the room for all: given back once the answer has begun.
    _room: Room,
}

impl Arrived {
    /// Takes the body in.
    ///
    /// # Errors
    /// Who may not come in, a server that drains, a body that is too large, too slow or no JSON.
    pub(super) async fn receive(
        app: Arc<App>,
        id: RequestId,
        caller: Caller,
        request: Request,
    ) -> Result<Self, ApiError> {
        let at = app.clock.now();
        let caller = caller.0?;
        if app.drain.draining() {
            return Err(ApiError::draining());
        }
        let guard = app.drain.enter();
        let (parts, body) = request.into_parts();
        let (body, room) = read_body(&app, &parts.headers, body).await?;
        Ok(Self { app, caller, request_id: id.0, at, guard, body, _room: room })
    }

    /// # Errors
    /// A body that is no UTF-8.
    pub(super) fn text(&self) -> Result<&str, ApiError> {
        std::str::from_utf8(&self.body)
            .map_err(|_| ApiError::bad_request("invalid_json", "the body is not UTF-8"))
    }

    pub(super) fn input_max(&self) -> usize {
        self.app.config.server.input_characters_max
    }

    /// Leaves the language to the model where it has none by the name asked for.
    ///
    /// # Errors
    /// An engine that does not serve.
    pub(super) fn forget_unknown_language(&self, asked: &mut SpeechRequest) -> Result<(), ApiError> {
        let info = self.app.engine()?.info();
        asked.ask.forget_unknown_language(&info);
        Ok(())
    }

    /// Speaks: the answer begins with the first sound, so that a request that fails before it fails as HTTP
    /// does. `protocol` names it in the usage log.
    ///
    /// # Errors
    /// What cannot be spoken, or not now.
    pub(super) async fn speak(
        self,
        mut asked: SpeechRequest,
        body: Box<dyn Body>,
        protocol: &'static str,
    ) -> Result<Response, ApiError> {
        let Self { app, caller, request_id, at: arrival, guard, .. } = self;
        let engine = Arc::clone(app.engine()?);
        let info = engine.info();
        asked.ask.lexicon = app.lexicons.of(&caller.tenant);
        let quotas = app.quotas_of(&caller.tenant);
        // A clip costs its decoding, whether or not anything is spoken with it.
        let counted = asked.reference.is_some();
        if counted {
            quotas.begin(arrival)?;
        }
        crate::voices::choose(&app, &caller, &info, &mut asked).await?;
        let target = Target::resolve(&info, &asked.ask, SpeechRequest::LAYOUTS, app.config.engine.bench)?;
        let file_hz = asked.sample_rate.unwrap_or(asked.format.rate_hz(target.sample_rate));
        // A whole answer is levelled as a whole, when all of it is there.
        let streamed_lufs = asked.loudness.filter(|_| !asked.whole);
        let encoder = encoder(asked.format, target.sample_rate, file_hz, app.config.opus)
            .and_then(|encoder| encoder.at_speed(asked.speed))
            .and_then(|encoder| encoder.levelled(streamed_lufs))
            .map_err(|error| ApiError::bad_request("unsupported", error.to_string()).param("sample_rate"))?;
        let pre_skip = encoder.pre_skip_48k();
        // Distinct within a process for as long as anyone could join two answers.
        let serial = arrival.as_micros() as u32;
        let writer =
            FileWriter::new(asked.format, file_hz, pre_skip, serial).map_err(|_| ApiError::internal())?;
        if !counted {
            quotas.begin(arrival)?;
        }
        quotas.take_characters(arrival, asked.input.chars().count() as u64);
        let opening = target.request(arrival, caller.group());
        let mut utterance = Utterance::open(&app, &engine, opening, &target, &asked.input, encoder)?;
        utterance.charge(Account::of(&caller, &request_id, protocol));
        if asked.whole {
            utterance.keep_whole(app.config.server.whole_answer.as_secs(), asked.loudness);
            return whole(&app, utterance, writer, &asked, file_hz).await;
        }
        if body.takes_times() {
            utterance.keep_times(app.paces().of(&target), asked.speed);
        }
        let first = match utterance.next().await {
            Step::Packets(packets) => packets,
            Step::Finished { error, .. } => return Err(error.map_or_else(silent, ApiError::from)),
        };
        app.metrics.first_audio(protocol, app.clock.now().since(arrival));
        let (sender, receiver) = mpsc::channel(BODY_QUEUE);
        let media_type = body.media_type();
        let pump = Pump {
            app,
            request_id,
            target,
            speed: asked.speed,
            utterance,
            writer,
            body,
            sender,
            arrival,
            taken: 0,
            _guard: guard,
        };
        tokio::spawn(pump.run(first));
        Ok(answer(media_type, receiver))
    }
}

/// The part that goes on after the head of the answer has left.
struct Pump {
    app: Arc<App>,
    request_id: String,
    target: Target,
    /// How much faster than the model the answer speaks.
    speed: Speed,
    utterance: Utterance,
    writer: FileWriter,
    body: Box<dyn Body>,
    sender: mpsc::Sender<Piece>,
    arrival: Tick,
    /// 48 kHz samples of the packets so far.
    taken: u64,
    _guard: Guard,
}

impl Pump {
    /// Ends when everything has been sent, or when the client is gone: dropping the utterance then
    /// cancels its context.
    async fn run(mut self, first: Vec<crate::encode::EncodedPacket>) {
        let mut step = Step::Packets(first);
        loop {
            match step {
                Step::Packets(packets) => {
                    let span = playing_time(&packets);
                    self.taken += packets.iter().map(|packet| u64::from(packet.duration_48k)).sum::<u64>();
                    let times = self.utterance.times(self.taken);
                    let after = self.after();
                    let written = self.writer.write(packets).map_err(std::io::Error::other);
                    let bytes = written.map(|audio| self.body.sound(Sound { audio, times }, after));
                    if !self.send(bytes.map(Frame::data)).await {
                        return;
                    }
                    // The engine counts its own samples.
                    let micros = span.as_micros() as f64 * self.speed.get();
                    self.utterance.taken(Span::from_micros(micros as i64));
                }
                Step::Finished { reason, usage, error } => {
                    self.app.paces().keep(&self.target, self.utterance.pace());
                    let took_us = self.after().as_micros();
                    tracing::debug!(reason = reason.name(), frames = usage.frames, took_us, "spoken");
                    self.body.finished(reason);
                    self.finish(usage, error).await;
                    return;
                }
            }
            let closed = self.sender.clone();
            step = tokio::select! {
                step = self.utterance.next() => step,
                () = closed.closed() => return,
            };
        }
    }

    /// Time since the request came.
    fn after(&self) -> Span {
        self.app.clock.now().since(self.arrival)
    }

    async fn finish(&mut self, usage: Usage, error: Option<EngineError>) {
        let last = match error {
            Some(error) => {
                let error = ApiError::from(error);
                self.app.metrics.error(error.code);
                // Ending the body without its last piece is how HTTP/1.1 says "cut off".
                let said = self.body.broken(error.object(&self.request_id));
                said.ok_or_else(|| std::io::Error::other(error.code))
            }
            None => {
                let times = self.utterance.times(u64::MAX);
                let after = self.after();
                // Bodies count at the wire's clock, whatever the model's is.
                let usage = Usage { samples: at_wire_clock(usage.samples, self.target.sample_rate), ..usage };
                let rest = self.writer.finish().map_err(std::io::Error::other);
                rest.map(|audio| self.body.end(Sound { audio, times }, &usage, after))
            }
        };
        let whole = last.is_ok();
        if self.send(last.map(Frame::data)).await && whole {
            let mut trailers = HeaderMap::new();
            trailers.insert(USAGE, usage_value(&usage, self.target.sample_rate));
            self.send(Ok(Frame::trailers(trailers))).await;
        }
    }

    /// False when the client is gone, or takes nothing any more.
    async fn send(&mut self, piece: Piece) -> bool {
        if piece.as_ref().is_ok_and(|frame| frame.data_ref().is_some_and(Bytes::is_empty)) {
            return true;
        }
        match self.sender.try_reserve() {
            Ok(place) => place.send(piece),
            Err(mpsc::error::TrySendError::Closed(())) => return false,
            Err(mpsc::error::TrySendError::Full(())) => {
                self.utterance.pause();
                let sending = self.sender.send(piece);
                let sent = tokio::time::timeout(self.app.config.server.body_stall, sending).await;
                return matches!(sent, Ok(Ok(())));
            }
        }
        true
    }
}

/// An answer that leaves when all of it is there, with its length and what it cost in its head.
async fn whole(
    app: &App,
    mut utterance: Utterance,
    mut writer: FileWriter,
    asked: &SpeechRequest,
    file_hz: u32,
) -> Result<Response, ApiError> {
    let mut file = Vec::new();
    let fault = |error: CodecError| ApiError::from(EngineError::Internal { what: error.to_string() });
    let usage = loop {
        match utterance.next().await {
            Step::Packets(packets) => file.extend_from_slice(&writer.write(packets).map_err(fault)?),
            Step::Finished { .. } if utterance.is_too_long() => {
                let seconds = app.config.server.whole_answer.as_secs();
                let message = format!("the answer is longer than {seconds} s of audio; leave \"stream\" out");
                return Err(ApiError::bad_request("answer_too_long", message).param("stream"));
            }
            Step::Finished { error: Some(error), .. } => return Err(error.into()),
            Step::Finished { usage, .. } if usage.samples == 0 => return Err(silent()),
            Step::Finished { usage, .. } => break usage,
        }
    };
    file.extend_from_slice(&writer.finish().map_err(fault)?);
    crate::file::tell_sizes(asked.format, file_hz, &mut file).map_err(fault)?;
    let mut response = Response::new(HttpBody::from(file));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asked.format.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(USAGE, usage_value(&usage, utterance.sample_rate()));
    Ok(response)
}

/// What an answer cost, as JSON: in the head of a whole answer, in the trailer of a streamed one.
const USAGE: HeaderName = HeaderName::from_static("x-voxlane-usage");

/// `usage` counts samples at `rate`.
fn usage_value(usage: &Usage, rate: u32) -> HeaderValue {
    let json = serde_json::to_string(&UsageFields::new(usage, rate)).unwrap_or_default();
    // Names and numbers are ASCII.
    HeaderValue::from_str(&json).unwrap_or(HeaderValue::from_static("{}"))
}

fn answer(media_type: &'static str, receiver: mpsc::Receiver<Piece>) -> Response {
    let stream = futures_util::stream::unfold(receiver, async |mut receiver| {
        let item = receiver.recv().await?;
        Some((item, receiver))
    });
    let mut response = Response::new(HttpBody::new(StreamBody::new(stream)));
    response.headers_mut().insert(header::TRAILER, HeaderValue::from_static("x-voxlane-usage"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A text of which nothing can be spoken.
fn silent() -> ApiError {
    let message = "there is nothing to speak: give input with a letter or a digit";
    ApiError::bad_request("empty_text", message).param("input")
}

/// Takes a body of JSON in within its bounds of size and time.
async fn read_body(app: &App, headers: &HeaderMap, body: HttpBody) -> Result<(Bytes, Room), ApiError> {
    let unsupported = |message: &str| {
        Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
    };
    if headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        return unsupported("send the body without Content-Encoding");
    }
    let json = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let essence = value.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    });
    if !json {
        return unsupported("send the body as JSON, with the header Content-Type: application/json");
    }
    gather_body(app, headers, body).await
}

/// Takes a body in within its bounds of size and time.
///
/// # Errors
/// A body that is too large, too slow or broken off, or for which there is no room now.
pub(crate) async fn gather_body(
    app: &App,
    headers: &HeaderMap,
    body: HttpBody,
) -> Result<(Bytes, Room), ApiError> {
    let bytes_max = app.config.server.body_bytes_max;
    let too_large = || {
        let message = format!("the body must be at most {bytes_max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|value| value.parse::<u64>().ok()).is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    let collect = async {
        let (mut bytes, mut room) = (Vec::new(), app.bodies.room());
        let mut stream = body.into_data_stream();
        while let Some(piece) = stream.next().await {
            let cut_off = || ApiError::bad_request("invalid_json", "the body ended before it was whole");
            let piece = piece.map_err(|_| cut_off())?;
            if bytes.len() + piece.len() > bytes_max {
                return Err(too_large());
            }
            room.take(piece.len())?;
            bytes.extend_from_slice(&piece);
        }
        Ok((Bytes::from(bytes), room))
    };
    let late =
        || ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body did not arrive in time");
    tokio::time::timeout(BODY_TIMEOUT, collect).await.unwrap_or_else(|_| Err(late()))
}
