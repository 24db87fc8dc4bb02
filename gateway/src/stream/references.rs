//! Clips that came over a socket: decoded and judged away from the async workers.

use std::sync::Arc;

use bytes::Bytes;
use codecs::opus::OpusDecoder;
use codecs::{CodecError, MonoAudio};
use contract::{Clip, EngineError};
use proto::session::ReferenceJob;
use proto::wire::WireCodec;
use tokio::sync::mpsc;

use crate::voices::{ClipError, judged, prepare};

/// Clips of one session that may be judged at once: it streams one at a time, and judging takes far less
/// than streaming.
pub(super) const JUDGED_MAX: usize = 4;

/// A judged clip, for the context it came for.
pub(super) type Judged = (u16, Result<Arc<Clip>, EngineError>);

/// Samples of a clip that may be decoded: 30 s at 48 kHz.
const SAMPLES_MAX: usize = 30 * 48_000;

pub(super) fn judge(job: ReferenceJob, done: mpsc::Sender<Box<Judged>>) {
    let context = job.context;
    tokio::spawn(async move {
        let outcome = match tokio::task::spawn_blocking(move || clip(job)).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            // A panic in a decoder is that clip's refusal.
            Err(_) => Err("it cannot be decoded".to_owned()),
        };
        let outcome = outcome.map(Arc::new).map_err(|what| EngineError::BadReference { what });
        // A session that has ended wants no clip.
        drop(done.send(Box::new((context, outcome))).await);
    });
}

fn clip(job: ReferenceJob) -> Result<Clip, ClipError> {
    let audio = match job.codec {
        WireCodec::Opus => opus(&job.packets)?,
        WireCodec::Pcm => pcm(&job.packets, job.sample_rate),
    };
    prepare(&judged(&audio)?, job.transcript.as_deref(), job.model_rate)
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
fn pcm(packets: &[Bytes], rate_hz: u32) -> MonoAudio {
    let bytes = packets.concat();
    let (pairs, _) = bytes.as_chunks::<2>();
    let samples = pairs.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32_768.0).take(SAMPLES_MAX);
    MonoAudio { rate_hz, samples: samples.collect() }
}
