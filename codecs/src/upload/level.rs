//! Whether a clip can be a reference: long enough, loud enough, neither clipped nor offset, and speech-like
//! enough that a voice could be in it.

use std::ops::RangeInclusive;

use crate::MonoAudio;

/// Length of the pieces that are judged.
const PIECE_MS: usize = 20;
/// A piece this far below full scale is silence, whatever the clip.
const SILENCE_DB: f32 = -55.0;
/// A piece this far below the clip's loud ones is a pause in it.
const PAUSE_DB: f32 = 35.0;
/// Sound that must be left when pauses are taken out.
const SOUND_MS_MIN: u64 = 800;
/// Level of the loud pieces below which noise would be learnt with the voice.
const LEVEL_DB_MIN: f32 = -45.0;
/// Share of samples at full scale.
const CLIPPED_MAX: f32 = 0.02;
const FULL_SCALE: f32 = 0.999;
const OFFSET_MAX: f32 = 0.1;

/// What a clip is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    pub duration_ms: u64,
    /// Without pauses.
    pub sound_ms: u64,
    /// RMS of the loud pieces (90th percentile), in dB below full scale.
    pub level_db: f32,
    /// Share of samples at full scale, 0 to 1.
    pub clipped: f32,
    /// Mean of all samples.
    pub offset: f32,
}

/// Why a clip cannot be a reference.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("it lasts {found_ms} ms; at least {least_ms} ms are needed, and 3 to 15 s are best")]
    TooShort { found_ms: u64, least_ms: u64 },
    #[error("it lasts {found_ms} ms; at most {most_ms} ms may be, and 3 to 15 s are best: cut it")]
    TooLong { found_ms: u64, most_ms: u64 },
    #[error("it is silent, or nearly: {sound_ms} ms of sound; at least {SOUND_MS_MIN} ms are needed")]
    Silent { sound_ms: u64 },
    #[error("it is too quiet ({level_db:.0} dB below full scale): record it closer or louder")]
    TooQuiet { level_db: f32 },
    #[error("{percent:.0} % of it is clipped: record it with less gain")]
    Clipped { percent: f32 },
    #[error("it has a constant offset ({offset:.2} of full scale): record it again or take the offset out")]
    Offset { offset: f32 },
}

/// Measures and judges. Mono samples are finite and in [-1, 1], as readers give them.
///
/// # Errors
/// The first [`Refusal`] that holds.
pub fn judge(audio: &MonoAudio, length_ms: RangeInclusive<u64>) -> Result<Verdict, Refusal> {
    let verdict = measure(audio);
    let Verdict { duration_ms, sound_ms, level_db, clipped, offset } = verdict;
    if duration_ms < *length_ms.start() {
        return Err(Refusal::TooShort { found_ms: duration_ms, least_ms: *length_ms.start() });
    }
    if duration_ms > *length_ms.end() {
        return Err(Refusal::TooLong { found_ms: duration_ms, most_ms: *length_ms.end() });
    }
    if offset.abs() > OFFSET_MAX {
        return Err(Refusal::Offset { offset });
    }
    if clipped > CLIPPED_MAX {
        return Err(Refusal::Clipped { percent: clipped * 100.0 });
    }
    if sound_ms < SOUND_MS_MIN {
        return Err(Refusal::Silent { sound_ms });
    }
    if level_db < LEVEL_DB_MIN {
        return Err(Refusal::TooQuiet { level_db });
    }
    Ok(verdict)
}

fn measure(audio: &MonoAudio) -> Verdict {
    let samples = &audio.samples;
    let count = samples.len().max(1) as f32;
    let clipped = samples.iter().filter(|sample| sample.abs() >= FULL_SCALE).count() as f32 / count;
    let offset = (samples.iter().map(|sample| f64::from(*sample)).sum::<f64>() / f64::from(count)) as f32;
    let piece = (audio.rate_hz as usize * PIECE_MS / 1_000).max(1);
    let levels: Vec<f32> = samples.chunks(piece).map(|piece| decibels(piece, offset)).collect();
    let mut sorted = levels.clone();
    sorted.sort_unstable_by(f32::total_cmp);
    let level_db = sorted.get(sorted.len() * 9 / 10).copied().unwrap_or(f32::NEG_INFINITY);
    let floor = SILENCE_DB.max(level_db - PAUSE_DB);
    let sounding = levels.iter().filter(|level| **level > floor).count();
    let sound_ms = (sounding * PIECE_MS) as u64;
    Verdict { duration_ms: audio.duration_ms(), sound_ms, level_db, clipped, offset }
}

/// RMS without the offset, in dB below full scale.
fn decibels(piece: &[f32], offset: f32) -> f32 {
    let power = piece.iter().map(|sample| (sample - offset).powi(2)).sum::<f32>() / piece.len().max(1) as f32;
    10.0 * power.max(1e-12).log10()
}
