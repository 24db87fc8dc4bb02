//! Quiet microphones, brought up to where the detector hears: of speech a metre away, a microphone without gain makes
//! -60 dBFS (60 dB of sound pressure, at the -26 dBFS for 94 dB that microphones of telephones and laptops have), and the
//! detector's score falls from -40 dBFS on, until at -65 dBFS it takes no voice for one.

/// Up to where the loudest frame of late is brought, in decibels of full scale. A voice's loudest frame is 8 to 15 dB louder
/// than the voice.
const LOUDEST_DB: f32 = -25.0;
/// Up to where the quietest is: noise that is louder may look like a voice, above all over a telephone.
const QUIETEST_DB: f32 = -54.0;
/// No more than this is added: what would need more is as quiet as a microphone's own noise.
const GAIN_DB_MAX: f32 = 30.0;
/// How fast both are forgotten, in decibels a frame: 1 a second, so that pauses between turns change nothing, and 3 a second,
/// because words have gaps.
const LOUDEST_FORGETS_DB: f32 = 0.016;
const QUIETEST_FORGETS_DB: f32 = 0.048;
/// What is quieter is a microphone that is off: it says nothing of one that is on.
const OFF_DB: f32 = -88.0;

/// How loud it has been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    loudest_db: f32,
    quietest_db: f32,
}

impl Default for Level {
    fn default() -> Self {
        Self { loudest_db: LOUDEST_DB - GAIN_DB_MAX, quietest_db: 0.0 }
    }
}

impl Level {
    /// Raises one frame. What is louder than anything of late is heard no louder than it may be, at once.
    pub(super) fn raise(&mut self, frame: &mut [f32]) {
        let power = frame.iter().map(|sample| sample * sample).sum::<f32>() / frame.len() as f32;
        let level = 10.0 * power.max(f32::MIN_POSITIVE).log10();
        if level > OFF_DB {
            self.loudest_db = level.max(self.loudest_db - LOUDEST_FORGETS_DB).max(LOUDEST_DB - GAIN_DB_MAX);
            self.quietest_db = level.min(self.quietest_db + QUIETEST_FORGETS_DB);
        }
        let gain_db = (LOUDEST_DB - self.loudest_db).min(QUIETEST_DB - self.quietest_db).max(0.0);
        let gain = 10.0_f32.powf(gain_db / 20.0);
        frame.iter_mut().for_each(|sample| *sample = (*sample * gain).clamp(-1.0, 1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(level: &mut Level, amplitude: f32, frames: usize) -> f32 {
        let mut frame = [amplitude; 256];
        for _ in 0..frames {
            frame = [amplitude; 256];
            level.raise(&mut frame);
        }
        frame[0]
    }

    #[test]
    fn what_is_quiet_is_raised_and_what_is_loud_is_left_as_it_is_at_once_and_for_long() {
        let mut level = Level::default();
        let (most, target) = (10.0_f32.powf(GAIN_DB_MAX / 20.0), 10.0_f32.powf(LOUDEST_DB / 20.0));
        assert!(
            (raised(&mut level, 0.000_1, 1) - 0.000_1 * 10.0_f32.powf(1.3)).abs() < 1e-4,
            "noise up to -54 dBFS"
        );
        assert!(
            (raised(&mut level, 0.000_05, 1) - 0.000_05 * most).abs() < 1e-5,
            "and by no more than 30 dB"
        );
        assert!((raised(&mut level, 0.01, 1) - target).abs() < 1e-3, "-40 dBFS, no louder than it may be");
        assert_eq!(raised(&mut level, 0.3, 1), 0.3);
        assert_eq!(raised(&mut level, 0.0, 10_000), 0.0);
        assert_eq!(raised(&mut level, 0.01, 1), 0.01, "a microphone that was off has told nothing");
        assert_eq!(
            raised(&mut level, 0.001, 900),
            0.001,
            "nor is it another one after a quarter of a minute"
        );
    }

    #[test]
    fn noise_of_a_room_is_left_as_loud_as_it_is() {
        let mut level = Level::default();
        assert_eq!(raised(&mut level, 0.01, 5_000), 0.01);
    }
}
