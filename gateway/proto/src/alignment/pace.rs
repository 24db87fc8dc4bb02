//! How fast a voice speaks.

/// Characters spoken in a voiced window until the voice's own rate is known: 20 a second of sound without
/// its pauses, as the embedded voices speak (0.37 to 0.44).
const CHARACTERS: f64 = 0.4;
/// Voiced windows measured before the voice's own rate is believed: one second.
const WINDOWS_MIN: u64 = 50;
/// Windows after which what was measured first begins to count less: a minute.
const WINDOWS_MAX: u64 = 3_000;

/// A voice's rate, measured over finished segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    characters: u64,
    /// Voiced ones.
    windows: u64,
}

impl Pace {
    /// A segment of so many characters took so many voiced windows.
    pub(super) const fn measure(&mut self, characters: u64, windows: u64) {
        self.characters += characters;
        self.windows += windows;
        if self.windows > WINDOWS_MAX {
            self.characters /= 2;
            self.windows /= 2;
        }
    }

    /// Characters in a voiced window.
    pub(super) fn per_window(self) -> f64 {
        if self.windows < WINDOWS_MIN {
            return CHARACTERS;
        }
        self.characters as f64 / self.windows as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_believed_after_a_second_and_follows_a_voice_that_changes() {
        let mut pace = Pace::default();
        pace.measure(10, 49);
        assert_eq!(pace.per_window(), CHARACTERS);
        for _ in 0..20 {
            pace.measure(250, 1_000);
        }
        assert!((pace.per_window() - 0.25).abs() < 0.01);
        for _ in 0..20 {
            pace.measure(500, 1_000);
        }
        assert!((pace.per_window() - 0.5).abs() < 0.01);
    }
}
