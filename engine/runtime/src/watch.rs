//! Whether what was launched still comes back: pure.
//!
//! A launch is overdue once it has stood at the head of its lane for much longer than predicted. Time is
//! counted in turns of the engine loop, each of a second at most: a process that was stopped, or a machine
//! that slept, looks like one turn and not like a stuck lane.

use std::collections::VecDeque;

use contract::{Lane, LaunchId, Span, Stage, Tick};

/// A launch may take this many times its prediction.
const TIMES_PREDICTED: i64 = 20;
/// What a turn of the loop counts for at most.
const TURN_MAX: Span = Span::from_millis(1_000);
/// Launches that failed in a row, none having ended well between them, after which the processor is taken
/// for lost: it refuses everything, and what is new should go elsewhere.
const FAILED_IN_ROW_MAX: u32 = 16;

/// Everything in flight on one processor.
pub(crate) struct Watch {
    /// No launch is overdue before this, however quick it was predicted to be.
    least: Span,
    last: Tick,
    observed: Span,
    lanes: [LaneWatch; 3],
    failed_in_row: u32,
}

#[derive(Default)]
struct LaneWatch {
    queue: VecDeque<Watched>,
    /// Observed time at which the head became the head.
    since: Span,
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) launch: LaunchId,
    pub(crate) lane: Lane,
    pub(crate) stage: Stage,
    pub(crate) rows: usize,
    pub(crate) predicted: Span,
}

impl Watch {
    pub(crate) fn new(least: Span, now: Tick) -> Self {
        Self { least, last: now, observed: Span::ZERO, lanes: Default::default(), failed_in_row: 0 }
    }

    /// The loop goes round.
    pub(crate) fn turn(&mut self, now: Tick) {
        self.observed += now.since(self.last).min(TURN_MAX).max(Span::ZERO);
        self.last = now;
    }

    pub(crate) fn took_off(&mut self, launch: Watched) {
        let observed = self.observed;
        let lane = &mut self.lanes[launch.lane as usize];
        if lane.queue.is_empty() {
            lane.since = observed;
        }
        lane.queue.push_back(launch);
    }

    /// A launch has ended, well or not.
    pub(crate) fn landed(&mut self, launch: LaunchId, well: bool) {
        self.failed_in_row = if well { 0 } else { self.failed_in_row + 1 };
        let observed = self.observed;
        for lane in &mut self.lanes {
            let before = lane.queue.len();
            lane.queue.retain(|watched| watched.launch != launch);
            if lane.queue.len() < before {
                lane.since = observed;
            }
        }
    }

    /// Whether anything is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.queue.is_empty())
    }

    /// Why the processor has to be given up, if it has.
    pub(crate) fn verdict(&self) -> Option<String> {
        if self.failed_in_row >= FAILED_IN_ROW_MAX {
            return Some(format!("{FAILED_IN_ROW_MAX} launches in a row have failed"));
        }
        self.lanes.iter().find_map(|lane| {
            let head = lane.queue.front()?;
            let allowed = head.predicted.times(TIMES_PREDICTED).max(self.least);
            let waited = self.observed - lane.since;
            let Watched { lane, stage, rows, predicted, .. } = head;
            (waited > allowed).then(|| {
                format!(
                    "a {} of {rows} rows in the {} lane has not come back for {} ms (predicted: {} us)",
                    stage.name(),
                    lane.name(),
                    waited.as_millis(),
                    predicted.as_micros()
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Span = Span::from_millis(2_000);

    fn watch() -> Watch {
        Watch::new(LEAST, Tick::ZERO)
    }

    fn launch(number: u64, lane: Lane, predicted_ms: i64) -> Watched {
        let predicted = Span::from_millis(predicted_ms);
        Watched { launch: LaunchId(number), lane, stage: Stage::Decode, rows: 3, predicted }
    }

    /// Turns of 100 ms until `to`.
    fn run(watch: &mut Watch, from_ms: u64, to_ms: u64) {
        for ms in (from_ms..=to_ms).step_by(100) {
            watch.turn(Tick::from_micros(ms * 1_000));
        }
    }

    #[test]
    fn a_launch_that_stays_away_is_overdue_by_its_prediction_and_never_before_the_least() {
        let mut quick = watch();
        quick.took_off(launch(1, Lane::Lm, 1));
        run(&mut quick, 100, 2_000);
        assert_eq!(quick.verdict(), None);
        run(&mut quick, 2_100, 2_100);
        let why = quick.verdict().expect("overdue");
        assert!(why.contains("decode of 3 rows in the lm lane") && why.contains("2100 ms"), "{why}");

        let mut slow = watch();
        slow.took_off(launch(1, Lane::Lm, 500));
        run(&mut slow, 100, 10_000);
        assert_eq!(slow.verdict(), None);
        run(&mut slow, 10_100, 10_100);
        assert!(slow.verdict().is_some());
    }

    #[test]
    fn a_launch_behind_others_is_timed_from_when_it_is_first_in_its_lane() {
        let mut watch = watch();
        watch.took_off(launch(1, Lane::Background, 1));
        watch.took_off(launch(2, Lane::Background, 1));
        run(&mut watch, 100, 1_900);
        watch.landed(LaunchId(1), true);
        run(&mut watch, 2_000, 3_900);
        assert_eq!(watch.verdict(), None);
        run(&mut watch, 4_000, 4_000);
        assert!(watch.verdict().is_some());
    }

    #[test]
    fn one_lane_that_goes_on_hides_no_other_that_is_stuck() {
        let mut watch = watch();
        watch.took_off(launch(1, Lane::Lm, 1));
        for number in 2..40 {
            let ms = number * 100;
            watch.took_off(launch(number, Lane::Urgent, 1));
            watch.turn(Tick::from_micros(ms * 1_000));
            watch.landed(LaunchId(number), true);
        }
        assert!(watch.verdict().is_some_and(|why| why.contains("lm lane")));
    }

    #[test]
    fn a_process_that_was_stopped_for_an_hour_gives_nothing_up() {
        let mut watch = watch();
        watch.took_off(launch(1, Lane::Lm, 1));
        watch.turn(Tick::from_micros(3_600_000_000));
        assert_eq!(watch.verdict(), None);
        watch.landed(LaunchId(1), true);
        run(&mut watch, 3_600_100, 3_700_000);
        assert_eq!(watch.verdict(), None);
    }

    #[test]
    fn a_processor_that_refuses_everything_is_given_up_and_one_that_fails_now_and_then_is_not() {
        let mut watch = watch();
        for number in 0..u64::from(FAILED_IN_ROW_MAX) * 4 {
            watch.landed(LaunchId(number), number % 8 == 7);
        }
        assert_eq!(watch.verdict(), None);
        for number in 0..u64::from(FAILED_IN_ROW_MAX) {
            assert_eq!(watch.verdict(), None);
            watch.landed(LaunchId(number), false);
        }
        assert!(watch.verdict().is_some_and(|why| why.contains("in a row")));
    }
}
