//! Runaway guard: speech that repeats itself or has gone silent is cut (beside each segment's frame
//! cap), because a model sometimes misses its own end-of-speech.

use contract::Span;

use crate::GuardConfig;

/// Watches one segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    /// Hashes of the latest frames, at most `repeat_period_max`, in a ring.
    recent: Vec<u64>,
    oldest: usize,
    /// A run is not 0.
    repeating: bool,
    /// `runs[p - 1]`: frames in a row that equalled the frame `p` before.
    runs: Vec<u32>,
    silent: Span,
}

impl Guard {
    /// Takes one frame's code hash; true once a cycle has lasted too long.
    pub(crate) fn frame_repeats(&mut self, config: &GuardConfig, hash: u64) -> bool {
        let period_max = config.repeat_period_max as usize;
        let mut longest = 0;
        // Speech hardly ever repeats a frame: then there is nothing to count.
        if self.repeating || self.recent.contains(&hash) {
            self.runs.resize(period_max, 0);
            let (older, newer) = self.recent.split_at(self.oldest);
            // As long as fewer frames than a period are known, its run stays at 0.
            for (run, earlier) in self.runs.iter_mut().zip(older.iter().rev().chain(newer.iter().rev())) {
                *run = if *earlier == hash { *run + 1 } else { 0 };
                longest = longest.max(*run);
            }
            self.repeating = longest > 0;
        }
        if self.recent.len() < period_max {
            self.recent.push(hash);
        } else {
            self.recent[self.oldest] = hash;
            self.oldest = (self.oldest + 1) % period_max;
        }
        longest >= config.repeat_frames
    }

    /// Takes one chunk's peak; true once silence has lasted too long.
    pub(crate) fn chunk_silent(&mut self, config: &GuardConfig, peak: f32, duration: Span) -> bool {
        if peak < config.silence_peak {
            self.silent += duration;
        } else {
            self.silent = Span::ZERO;
        }
        self.silent >= config.silence_limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> GuardConfig {
        GuardConfig { repeat_period_max: 4, repeat_frames: 12, ..GuardConfig::default() }
    }

    fn frames_until_cut(hashes: impl Iterator<Item = u64>) -> Option<usize> {
        let mut guard = Guard::default();
        hashes.enumerate().find(|&(_, hash)| guard.frame_repeats(&config(), hash)).map(|(at, _)| at)
    }

    #[test]
    fn a_cycle_of_any_watched_period_is_found() {
        for period in 1..=4_u64 {
            let cut = frames_until_cut((0..100).map(|frame| frame % period));
            assert_eq!(cut, Some(period as usize + 11), "period {period}");
        }
    }

    #[test]
    fn a_cycle_longer_than_watched_and_a_broken_cycle_are_speech() {
        assert_eq!(frames_until_cut((0..100).map(|frame| frame % 5)), None);
        let broken = (0..100_u64).map(|frame| if frame % 11 == 10 { frame } else { 7 });
        assert_eq!(frames_until_cut(broken), None);
    }

    #[test]
    fn silence_is_counted_in_a_row_only() {
        let mut guard = Guard::default();
        let config = GuardConfig { silence_limit: Span::from_millis(2_000), ..GuardConfig::default() };
        let second = Span::from_millis(1_000);
        assert!(!guard.chunk_silent(&config, 0.0, second));
        assert!(!guard.chunk_silent(&config, 0.5, second));
        assert!(!guard.chunk_silent(&config, 0.000_9, second));
        assert!(guard.chunk_silent(&config, 0.0, second));
    }
}
