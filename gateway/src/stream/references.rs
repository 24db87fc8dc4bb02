//! Clips that came over a socket: decoded and judged away from the async workers.

use std::sync::Arc;

use bytes::Bytes;
use codecs::opus::OpusDecoder;
use codecs::pcm::RawEncoding;
use codecs::{CodecError, MonoAudio};
use contract::{Clip, EngineError, Span};
use proto::session::{ClipForm, ReferenceJob};
use tokio::sync::mpsc;

use crate::app::App;
use crate::voices::{ClipError, judged, prepare, record};

/// A judged clip, for the context it came for.
pub(super) type Judged = (u16, Result<Arc<Clip>, EngineError>);

/// Samples of a clip that may be decoded: 30 s at 48 kHz.
const SAMPLES_MAX: usize = 30 * 48_000;

/// Judges a clip, when there is a decoder for it.
pub(super) fn judge(app: &App, job: ReferenceJob, done: mpsc::Sender<Box<Judged>>) {
    let (context, bytes_max) = (job.context, app.config.voices.upload_bytes_max);
    let (turn, mut room) = (app.bodies.decoder(), app.bodies.room());
    // It is no more its context's, which may be gone before its turn has come.
    let fits = room.take(bytes_of(&job.form)).is_ok();
    tokio::spawn(async move {
        if !fits {
            let busy = EngineError::Overloaded { retry_after: Span::from_millis(1_000) };
            return drop(done.send(Box::new((context, Err(busy)))).await);
        }
        let turn = turn.await;
        let judged = tokio::task::spawn_blocking(move || {
            let _held = (turn, room);
            clip(job, bytes_max)
        });
        let outcome = match judged.await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            // A panic in a decoder is that clip's refusal.
            Err(_) => Err("it cannot be decoded".to_owned()),
        };
        let outcome = outcome.map(Arc::new).map_err(|what| EngineError::BadReference { what });
        // A session that has ended wants no clip.
        drop(done.send(Box::new((context, outcome))).await);
    });
}

fn bytes_of(form: &ClipForm) -> usize {
    match form {
        ClipForm::File(file) => file.len(),
        ClipForm::Packets { packets, .. } => packets.iter().map(Bytes::len).sum(),
    }
}

fn clip(job: ReferenceJob, bytes_max: usize) -> Result<Clip, ClipError> {
    let recording = match job.form {
        ClipForm::File(file) => record(&file, bytes_max)?,
        ClipForm::Packets { codec, sample_rate, packets } => judged(&match codec.encoding() {
            None => opus(&packets)?,
            Some(encoding) => raw(encoding, &packets, sample_rate),
        })?,
    };
    prepare(&recording, job.transcript.as_deref(), job.model_rate)
}

fn opus(packets: &[Bytes]) -> Result<MonoAudio, CodecError> {
    let rate_hz = codecs::OPUS_CLOCK_HZ;
    let mut decoder = OpusDecoder::new(rate_hz, 0)?;
    let mut samples = Vec::new();
    for packet in packets {
        samples.extend_from_slice(decoder.decode(packet)?);
        if samples.len() > SAMPLES_MAX {
            let (found, limit) = (samples.len() as u64, SAMPLES_MAX as u64);
            return Err(CodecError::TooLarge { what: "length in samples", found, limit });
        }
    }
    Ok(MonoAudio { rate_hz, samples })
}

/// Pieces may end within a sample; a last odd byte is nothing.
fn raw(encoding: RawEncoding, packets: &[Bytes], rate_hz: u32) -> MonoAudio {
    let mut bytes = packets.concat();
    // A little more than 30 s at this rate, so that what is longer is refused and not cut.
    let most = (30 * rate_hz + rate_hz / 100) as usize;
    bytes.truncate(most * encoding.bytes_per_sample() as usize);
    let mut samples = Vec::new();
    encoding.decode(&bytes, &mut samples);
    MonoAudio { rate_hz, samples }
}
