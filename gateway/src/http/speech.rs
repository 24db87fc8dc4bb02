//! `POST /v1/audio/speech`: a whole text in, a file out, streamed while it is made.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use contract::{EngineError, Tick, Usage};
use futures_util::StreamExt;
use proto::catalog::Target;
use proto::speech::{SpeechEvent, SpeechRequest, SpeechUsage, StreamFormat};
use tokio::sync::mpsc;

use super::RequestId;
use crate::app::App;
use crate::auth::Caller;
use crate::drain::Guard;
use crate::error::ApiError;
use crate::file::{FileWriter, encoder, playing_time};
use crate::usage::Account;
use crate::utterance::{Step, Utterance};

/// Pieces of the body that may wait for the socket.
const BODY_QUEUE: usize = 4;

/// A body must have arrived by then.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn speak(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrival = app.clock.now();
    let caller = caller.0?;
    if app.drain.draining() {
        return Err(ApiError::draining());
    }
    let guard = app.drain.enter();
    let (parts, body) = request.into_parts();
    let body = read_body(&parts.headers, body, app.config.server.body_bytes_max).await?;
    let engine = Arc::clone(app.engine()?);
    let mut asked = read(&body, app.config.server.input_characters_max)?;
    let info = engine.info();
    asked.ask.lexicon = app.lexicons.of(&caller.tenant);
    crate::voices::choose(&app, &caller, &info, &mut asked).await?;
    let target = Target::resolve(&info, &asked.ask, SpeechRequest::LAYOUTS, app.config.engine.bench)?;
    let file_hz = asked.sample_rate.unwrap_or(asked.format.rate_hz(target.sample_rate));
    let encoder = encoder(asked.format, target.sample_rate, file_hz, app.config.opus)
        .map_err(|error| ApiError::bad_request("unsupported", error.to_string()).param("sample_rate"))?;
    let pre_skip = encoder.pre_skip_48k();
    // Distinct within a process for as long as anyone could join two answers.
    let serial = arrival.as_micros() as u32;
    let writer =
        FileWriter::new(asked.format, file_hz, pre_skip, serial).map_err(|_| ApiError::internal())?;
    let request = target.request(arrival, caller.group());
    let mut utterance = Utterance::open(&app, &engine, request, &target, &asked.input, encoder)?;

    // The status waits for the first sound, so that a request that fails before it fails as HTTP does.
    let first = match utterance.next().await {
        Step::Packets(packets) => packets,
        Step::Finished { reason, error, .. } => {
            crate::metrics::context_finished(reason.name());
            return Err(error.map_or_else(silent, ApiError::from));
        }
    };
    crate::metrics::first_audio("speech", app.clock.now().since(arrival));
    let (sender, receiver) = mpsc::channel(BODY_QUEUE);
    let request_id = id.0.clone();
    let body = match asked.stream {
        StreamFormat::Audio => BodyForm::Audio,
        StreamFormat::Sse => BodyForm::Events { request_id: id.0 },
    };
    let media_type = match asked.stream {
        StreamFormat::Audio => asked.format.content_type(),
        StreamFormat::Sse => "text/event-stream",
    };
    let account = Account::of(&caller, &request_id, "speech");
    let rate = target.sample_rate;
    let pump = Pump { app, account, rate, utterance, writer, body, sender, arrival, _guard: guard };
    tokio::spawn(pump.run(first));
    Ok(answer(media_type, receiver))
}

/// How the file's bytes stand in the body.
enum BodyForm {
    Audio,
    /// Server-sent events with base64.
    Events {
        request_id: String,
    },
}

/// The part that goes on after the head of the answer has left.
struct Pump {
    app: Arc<App>,
    account: Account,
    /// Hertz of the model.
    rate: u32,
    utterance: Utterance,
    writer: FileWriter,
    body: BodyForm,
    sender: mpsc::Sender<Result<Bytes, std::io::Error>>,
    arrival: Tick,
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
                    let written = self.writer.write(packets);
                    let bytes = written.map(|bytes| self.framed(bytes)).map_err(std::io::Error::other);
                    if !self.send(bytes).await {
                        crate::metrics::context_finished("cancelled");
                        return;
                    }
                    self.utterance.taken(span);
                }
                Step::Finished { reason, usage, error } => {
                    crate::metrics::context_finished(reason.name());
                    self.app.usage.spoken(&self.account, None, reason, &usage, self.rate);
                    let took_us = self.app.clock.now().since(self.arrival).as_micros();
                    tracing::debug!(reason = reason.name(), frames = usage.frames, took_us, "spoken");
                    self.finish(usage, error).await;
                    return;
                }
            }
            let closed = self.sender.clone();
            step = tokio::select! {
                step = self.utterance.next() => step,
                () = closed.closed() => {
                    crate::metrics::context_finished("cancelled");
                    return;
                }
            };
        }
    }

    async fn finish(&mut self, usage: Usage, error: Option<EngineError>) {
        let last = match (&self.body, error) {
            // Ending the body without its last piece is how HTTP/1.1 says "cut off".
            (BodyForm::Audio, Some(error)) => {
                crate::metrics::error(error.code());
                Err(std::io::Error::other(error.code()))
            }
            (BodyForm::Events { request_id }, Some(error)) => {
                let error = ApiError::from(error);
                crate::metrics::error(error.code);
                let event = SpeechEvent::Error { error: error.object(request_id) };
                Ok(Bytes::from(event.to_event()))
            }
            (_, None) => self.writer.finish().map_err(std::io::Error::other).map(|rest| {
                let mut last = self.framed(rest).to_vec();
                if matches!(self.body, BodyForm::Events { .. }) {
                    let usage = SpeechUsage::new(usage.text_ids, usage.frames);
                    last.extend_from_slice(SpeechEvent::Done { usage }.to_event().as_bytes());
                }
                Bytes::from(last)
            }),
        };
        self.send(last).await;
    }

    fn framed(&self, bytes: Bytes) -> Bytes {
        match self.body {
            BodyForm::Events { .. } if !bytes.is_empty() => {
                let audio = base64::engine::general_purpose::STANDARD.encode(&bytes);
                Bytes::from(SpeechEvent::Delta { audio }.to_event())
            }
            BodyForm::Audio | BodyForm::Events { .. } => bytes,
        }
    }

    /// False when the client is gone, or takes nothing any more.
    async fn send(&mut self, bytes: Result<Bytes, std::io::Error>) -> bool {
        if bytes.as_ref().is_ok_and(Bytes::is_empty) {
            return true;
        }
        match self.sender.try_reserve() {
            Ok(place) => place.send(bytes),
            Err(mpsc::error::TrySendError::Closed(())) => return false,
            Err(mpsc::error::TrySendError::Full(())) => {
                self.utterance.pause();
                let sending = self.sender.send(bytes);
                let sent = tokio::time::timeout(self.app.config.server.body_stall, sending).await;
                return matches!(sent, Ok(Ok(())));
            }
        }
        true
    }
}

fn read(body: &Bytes, input_max: usize) -> Result<SpeechRequest, ApiError> {
    let Ok(body) = std::str::from_utf8(body) else {
        return Err(ApiError::bad_request("invalid_json", "the body is not UTF-8"));
    };
    Ok(SpeechRequest::decode(body, input_max)?)
}

fn answer(media_type: &'static str, receiver: mpsc::Receiver<Result<Bytes, std::io::Error>>) -> Response {
    let stream = futures_util::stream::unfold(receiver, async |mut receiver| {
        let item = receiver.recv().await?;
        Some((item, receiver))
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A text of which nothing can be spoken.
fn silent() -> ApiError {
    let message = "there is nothing to speak: give input with a letter or a digit";
    ApiError::bad_request("empty_text", message).param("input")
}

/// Takes the body in within its bounds of size and time.
async fn read_body(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("the body must be at most {bytes_max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
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
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|value| value.parse::<u64>().ok()).is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    let collect = async {
        let mut bytes = Vec::new();
        let mut stream = body.into_data_stream();
        while let Some(piece) = stream.next().await {
            let cut_off = || ApiError::bad_request("invalid_json", "the body ended before it was whole");
            let piece = piece.map_err(|_| cut_off())?;
            if bytes.len() + piece.len() > bytes_max {
                return Err(too_large());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from(bytes))
    };
    let late =
        || ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body did not arrive in time");
    tokio::time::timeout(BODY_TIMEOUT, collect).await.unwrap_or_else(|_| Err(late()))
}
