//! A processor on virtual time: three lanes that slow each other, and a host that takes its share.

use std::collections::VecDeque;

use contract::{Lane, Partition, Span, Tick};
use sched::Decision;

use super::profile::{HostCost, Sharing};
use crate::random::Random;

/// Lanes by index.
const LANES: usize = 3;
const LM: usize = 1;
const BACKGROUND: usize = 0;
const URGENT: usize = 2;

/// A launch whose work is done.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    pub(crate) decision: Decision,
    pub(crate) at: Tick,
    /// From its start to its end, as a processor's own clock would tell.
    pub(crate) took: Span,
}

#[derive(Clone, Debug)]
struct Running {
    decision: Decision,
    /// On the whole processor, though not in the urgent lane.
    whole: bool,
    /// Before it begins, in microseconds of plain time.
    gap: f64,
    /// Work left, in microseconds of the lane's full speed.
    left: f64,
    started: Tick,
}

#[derive(Clone, Debug)]
pub(crate) struct Device {
    sharing: Sharing,
    host: HostCost,
    /// Without an urgent lane its launches stand in the background lane's queue.
    has_urgent: bool,
    random: Random,
    now: Tick,
    /// Launches and their work in microseconds.
    queues: [VecDeque<(Decision, f64)>; LANES],
    running: [Option<Running>; LANES],
    /// Host work still to be done, in microseconds of one core.
    backlog: f64,
}

impl Device {
    pub(crate) fn new(sharing: Sharing, host: HostCost, urgent: bool, seed: u64) -> Self {
        Self {
            sharing,
            host,
            has_urgent: urgent,
            random: Random::new(seed),
            now: Tick::ZERO,
            queues: Default::default(),
            running: [None, None, None],
            backlog: 0.0,
        }
    }

    /// Puts a launch at the end of its lane: `micros` of work when nothing slows it.
    pub(crate) fn launch(&mut self, now: Tick, decision: Decision, micros: f64) {
        self.advance(now);
        let lane = match decision.lane() {
            Lane::Background => BACKGROUND,
            Lane::Lm => LM,
            Lane::Urgent if self.has_urgent => URGENT,
            Lane::Urgent => BACKGROUND,
        };
        self.queues[lane].push_back((decision, micros));
        self.fill(lane, self.host.launch_us);
    }

    /// Whether a launch is under way or waits for its lane.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.iter().any(Option::is_some) || self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Host work of this much processor time has come up.
    pub(crate) fn host_work(&mut self, now: Tick, micros: f64) {
        self.advance(now);
        if self.host.cores > 0 {
            self.backlog += micros;
        }
    }

    /// When something next lands, or speeds change.
    pub(crate) fn next(&self) -> Option<Tick> {
        let landing = (0..LANES).filter_map(|lane| {
            let running = self.running[lane].as_ref()?;
            let speed = self.speed(lane);
            if running.gap > 0.0 {
                return Some(running.gap);
            }
            (speed > 0.0).then(|| running.left / speed)
        });
        let idle = (self.backlog > 0.0).then_some(self.backlog);
        let micros = landing.chain(idle).fold(f64::INFINITY, f64::min);
        micros.is_finite().then(|| self.now + Span::from_micros(micros.ceil().max(1.0) as i64))
    }

    /// Whatever has landed by `now`; call until `None`.
    pub(crate) fn land(&mut self, now: Tick) -> Option<Landed> {
        self.advance(now);
        let done = |running: &Running| running.gap <= 0.0 && running.left <= 0.5;
        let lane = (0..LANES).rev().find(|lane| self.running[*lane].as_ref().is_some_and(done))?;
        let running = self.running[lane].take()?;
        // What was launched ahead follows at once.
        self.fill(lane, 0.0);
        let took = now.since(running.started).max(Span::from_micros(1));
        Some(Landed { decision: running.decision, at: now, took })
    }

    /// Begins the lane's next launch after `gap` microseconds of the host's, if it has none.
    fn fill(&mut self, lane: usize, gap: f64) {
        if self.running[lane].is_some() {
            return;
        }
        let Some((decision, micros)) = self.queues[lane].pop_front() else { return };
        let whole = matches!(
            decision,
            Decision::Prefill { partition: Partition::Whole, .. } | Decision::Encode { .. }
        );
        let work = micros * (1.0 + self.host.spread * self.random.unit());
        let started = self.now + Span::from_micros(gap as i64);
        self.running[lane] = Some(Running { decision, whole, gap, left: work.max(1.0), started });
    }

    fn speed(&self, lane: usize) -> f64 {
        let busy = |lane: usize| self.running[lane].as_ref().is_some_and(|running| running.gap <= 0.0);
        let whole = self.running[LM].as_ref().is_some_and(|running| running.whole);
        let mut speed = 1.0;
        if lane == URGENT {
            if busy(LM) || busy(BACKGROUND) {
                speed *= self.sharing.urgent_beside_lanes;
            }
        } else if busy(URGENT) {
            speed *= self.sharing.beside_urgent;
        } else if busy(LM) && busy(BACKGROUND) {
            speed *= match (lane, whole) {
                (LM, false) => self.sharing.lm_beside_background,
                (LM, true) => self.sharing.whole_beside_background,
                (BACKGROUND, false) => self.sharing.background_beside_lm,
                (BACKGROUND, true) => self.sharing.background_beside_whole,
                _ => 1.0,
            };
        }
        if self.backlog > 0.0 && self.host.cores > 0 {
            // One core is busy with the host; whose it is changes all the time.
            let cores = f64::from(self.host.cores);
            speed *= ((cores - 1.0) / cores).max(0.1);
        }
        speed
    }

    /// Lets the lanes work until `now`, from change to change.
    fn advance(&mut self, now: Tick) {
        while self.now < now {
            let step = self.next().map_or(now, |next| next.min(now));
            let micros = step.since(self.now).as_micros() as f64;
            let speeds = [self.speed(0), self.speed(1), self.speed(2)];
            for (running, speed) in self.running.iter_mut().zip(speeds) {
                let Some(running) = running else { continue };
                if running.gap > 0.0 {
                    running.gap = (running.gap - micros).max(0.0);
                } else {
                    running.left -= micros * speed;
                }
            }
            self.backlog = (self.backlog - micros).max(0.0);
            self.now = step;
        }
    }
}
