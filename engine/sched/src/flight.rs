//! Launches whose fence has not passed.

use contract::{ContextId, Lane, LaunchId, Partition, Span, Stage, Tick, Version};

use crate::{EncodeKey, Sched};

#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) lane: Lane,
    pub(crate) stage: Stage,
    pub(crate) partition: Partition,
    /// Or when the launch before it in its lane had ended.
    pub(crate) launched: Tick,
    pub(crate) expected: Span,
    /// Rows and length its cost is looked up by.
    pub(crate) bucket: u32,
    pub(crate) length: u32,
    pub(crate) key: Option<EncodeKey>,
    pub(crate) rows: Vec<FlightRow>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRow {
    pub(crate) context: ContextId,
    pub(crate) segment: u32,
    pub(crate) version: Version,
    /// Step, or first frame of a chunk, within the segment.
    pub(crate) first_frame: u32,
    pub(crate) frames: u32,
    /// First frame within the context.
    pub(crate) position: u64,
    pub(crate) deadline: Tick,
    pub(crate) slack: Span,
    pub(crate) ready: Tick,
}

impl Sched {
    /// Registers a launch and gives it its id.
    pub(crate) fn take_off(&mut self, flight: Flight) -> LaunchId {
        let launch = self.next_launch;
        self.next_launch = LaunchId(launch.0 + 1);
        self.counters.count_launch(flight.lane, flight.stage, flight.rows.len().max(1) as u32);
        self.flights.insert(launch, flight);
        launch
    }

    /// A launch of this lane has ended: what stood behind it begins.
    pub(crate) fn begin_next(&mut self, lane: Lane, at: Tick) {
        for flight in self.flights.values_mut().filter(|flight| flight.lane == lane) {
            flight.launched = flight.launched.max(at);
        }
    }

    pub(crate) fn flights_in(&self, lane: Lane) -> u32 {
        self.flights.values().filter(|flight| flight.lane == lane).count() as u32
    }

    /// When a lane's queue is predicted to be empty: not before now.
    pub(crate) fn lane_free_at(&self, lane: Lane) -> Tick {
        let mut free = Tick::ZERO;
        for flight in self.flights.values().filter(|flight| flight.lane == lane) {
            free = free.max(flight.launched) + flight.expected;
        }
        free.max(self.now)
    }
}
