//! Whether it sounds, beside what the detector says of it: a detector's score lags behind the sound by a tenth of a
//! second and stays for as long after it, so that strokes of keys look like a voice to it, also over a telephone.
//! Their loudness does not: a stroke is over within two frames, and a voice stays about as loud for many.

use super::turns::FRAME_MS;

/// A frame sounds that is no more than this below the loudest of late, in decibels.
const BELOW_LOUDEST_DB: f32 = 20.0;
/// How fast the loudest is forgotten, in decibels a frame: what is quieter may follow what is loud.
const FORGETS_DB: f32 = 1.5;
/// Quieter than this, in decibels of full scale, is silence.
const SILENCE_DB: f32 = -60.0;
/// Frames in a row that only a voice sounds for: 96 ms before a turn begins, 64 ms within one.
const VOICE_FRAMES: u64 = 6;
const VOICE_FRAMES_IN_TURN: u64 = 4;
/// A voice is not over in the 144 ms after it: words have gaps.
const LASTS_MS: u64 = 144;

/// How loud it has been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sounding {
    loudest_db: f32,
    /// Frames in a row that sounded.
    frames: u64,
    /// Since the last frame that could be a voice's within a turn.
    since_ms: u64,
}

impl Default for Sounding {
    fn default() -> Self {
        Self { loudest_db: SILENCE_DB, frames: 0, since_ms: LASTS_MS }
    }
}

impl Sounding {
    pub(super) fn hear(&mut self, frame: &[f32]) {
        let power = frame.iter().map(|sample| sample * sample).sum::<f32>() / frame.len() as f32;
        let level = 10.0 * power.max(f32::MIN_POSITIVE).log10();
        self.loudest_db = level.max(self.loudest_db - FORGETS_DB);
        let sounds = level > SILENCE_DB && level >= self.loudest_db - BELOW_LOUDEST_DB;
        self.frames = if sounds { self.frames + 1 } else { 0 };
        self.since_ms = if self.frames < VOICE_FRAMES_IN_TURN { self.since_ms + FRAME_MS } else { 0 };
    }

    /// Frames that it has sounded for, where that is longer than strokes sound.
    pub(super) fn voice(&self) -> Option<u64> {
        (self.frames >= VOICE_FRAMES).then_some(self.frames)
    }

    /// Whether it sounds, or has just sounded, as voices within a turn do.
    pub(super) const fn goes_on(&self) -> bool {
        self.since_ms <= LASTS_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(sounding: &mut Sounding, amplitude: f32) {
        sounding.hear(&[amplitude; 256]);
    }

    #[test]
    fn a_stroke_is_no_voice_however_loud_and_a_voice_is_one_however_quiet_after_it() {
        let mut sounding = Sounding::default();
        for _ in 0..20 {
            for amplitude in [0.5, 0.05, 0.002, 0.0, 0.0, 0.0, 0.0, 0.0] {
                hear(&mut sounding, amplitude);
                assert_eq!((sounding.voice(), sounding.goes_on()), (None, false));
            }
        }
        for frame in 1..=12 {
            hear(&mut sounding, 0.02);
            assert_eq!(sounding.voice(), (frame >= 6).then_some(frame));
        }
        for gap in 1..=20 {
            hear(&mut sounding, 0.0);
            assert_eq!((sounding.voice(), sounding.goes_on()), (None, gap <= 9), "{gap}");
        }
    }
}
