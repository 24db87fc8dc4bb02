//! From the bytes of an upload to a clip an engine can take.

use aws_lc_rs::digest::{Context, SHA256};
use codecs::upload::{REFERENCE, REFERENCE_MS, Refusal, judge, read};
use codecs::{AudioLimits, CodecError, MonoAudio};
use contract::Clip;

/// Voices are below half of this rate.
const VOICE_HZ: u32 = 16_000;

/// Why a clip is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClipError {
    #[error(transparent)]
    Unreadable(#[from] CodecError),
    #[error(transparent)]
    Unfit(#[from] Refusal),
}

/// A judged recording: mono, 16 bits, at its own rate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recording {
    pub(crate) rate_hz: u32,
    pub(crate) samples: Vec<i16>,
}

/// Reads and judges the bytes of a file, of at most `bytes_max`.
///
/// # Errors
/// [`ClipError`], saying what to do.
pub(crate) fn record(bytes: &[u8], bytes_max: usize) -> Result<Recording, ClipError> {
    judged(&read(bytes, &AudioLimits { bytes_max, ..REFERENCE })?)
}

/// Judges sound that is already samples.
///
/// # Errors
/// [`ClipError::Unfit`]; [`ClipError::Unreadable`] for a rate that cannot be converted.
pub(crate) fn judged(audio: &MonoAudio) -> Result<Recording, ClipError> {
    judge(audio, REFERENCE_MS)?;
    if audio.rate_hz > VOICE_HZ {
        // Loud where no voice is, and where no model hears: without that, it may be silence.
        let samples = codecs::resample::resample_all(&audio.samples, audio.rate_hz, VOICE_HZ)?;
        judge(&MonoAudio { rate_hz: VOICE_HZ, samples }, 0..=u64::MAX)?;
    }
    let samples = audio.samples.iter().map(|sample| (sample * 32_767.0).round() as i16).collect();
    Ok(Recording { rate_hz: audio.rate_hz, samples })
}

/// The clip for an engine that wants `model_hz`. Its hash is of the recording, its transcript and that
/// rate, not of the file they came in.
///
/// # Errors
/// [`ClipError::Unreadable`] for a rate that cannot be converted.
pub(crate) fn prepare(
    recording: &Recording,
    transcript: Option<&str>,
    model_hz: u32,
) -> Result<Clip, ClipError> {
    let samples: Vec<f32> = recording.samples.iter().map(|sample| f32::from(*sample) / 32_768.0).collect();
    let samples = codecs::resample::resample_all(&samples, recording.rate_hz, model_hz)?;
    let transcript = transcript.map(str::trim).filter(|text| !text.is_empty());
    let mut digest = Context::new(&SHA256);
    for number in [recording.rate_hz, model_hz] {
        digest.update(&number.to_le_bytes());
    }
    for sample in &recording.samples {
        digest.update(&sample.to_le_bytes());
    }
    digest.update(transcript.unwrap_or_default().as_bytes());
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest.finish().as_ref()[..16]);
    Ok(Clip { samples, sample_rate: model_hz, transcript: transcript.map(str::to_owned), hash })
}
