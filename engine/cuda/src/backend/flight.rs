//! Launches in flight: how they take off, land, and what becomes of those that fail half way.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use contract::{Lane, LaunchId, Partition, Span, Tick};
use device::{Completed, DeviceError, Launch, Piece};

use super::{Clock, CudaBackend, IN_FLIGHT_MAX, Notify, arena_index, home, lane_index};
use crate::driver::{Driver, Events, Pinned, Stream};
use crate::porter::Hatch;

/// A launch whose end will ring.
pub(super) struct Flight {
    launch: LaunchId,
    lane: Lane,
    executable: usize,
    variant: usize,
    rows: usize,
    tokens: usize,
    held: Held,
}

/// What a launch takes from the executable and the backend, and gives back.
#[derive(Clone, Copy)]
struct Held {
    /// Inputs, outputs.
    buffers: (Pinned, Pinned),
    events: Events,
}

/// What a launch held that the driver refused half way: work ahead of the refusal may still use it, so it is
/// given back once the stream has nothing left to do.
pub(super) struct Stranded {
    /// `None` once it has been released.
    pub(super) executable: Option<usize>,
    stream: Stream,
    held: Held,
}

/// What the driver's thread tells: which launches ended.
pub(super) struct Bell {
    pub(super) ended: Mutex<Vec<Ended>>,
    pub(super) clock: Clock,
    pub(super) notify: Notify,
}

pub(super) struct Ended {
    launch: LaunchId,
    finished: Tick,
    /// Of a launch that named what it wants.
    pieces: Vec<Piece>,
}

impl Bell {
    fn ring(&self, ended: Ended) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
        (self.notify)();
    }
}

struct Ring {
    bell: Arc<Bell>,
    launch: LaunchId,
    /// What is to be taken out before it rings, and by whom.
    reading: Option<(Reading, Hatch)>,
}

/// Where a launch's one output lies, and what is wanted of it.
struct Reading {
    at: *const f32,
    values: usize,
    wanted: Vec<usize>,
}

// SAFETY: the memory is the launch's own until the engine thread has been told that it ended, which is once it has
// been read.
unsafe impl Send for Reading {}

impl Reading {
    fn pieces(&self) -> Vec<Piece> {
        // SAFETY: page-locked words of a launch that has ended; any bits are a float.
        let block = unsafe { std::slice::from_raw_parts(self.at, self.values) };
        Piece::of_rows(block, &self.wanted)
    }
}

unsafe extern "C" fn ring(data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` for this one call.
    let ring = unsafe { Box::from_raw(data.cast::<Ring>()) };
    let Ring { bell, launch, reading } = *ring;
    let finished = (bell.clock)();
    match reading {
        None => bell.ring(Ended { launch, finished, pieces: Vec::new() }),
        Some((reading, hatch)) => hatch.give(Box::new(move || {
            let pieces = reading.pieces();
            bell.ring(Ended { launch, finished, pieces });
        })),
    }
}

/// Asks the driver to ring once everything before it on `stream` has ended.
fn ask_for_ring(driver: &Driver, stream: Stream, ring_for: Ring) -> Result<(), DeviceError> {
    let data = Box::into_raw(Box::new(ring_for));
    // SAFETY: the callback takes the box over and uses no CUDA.
    let asked = unsafe { driver.then(stream, ring, data.cast()) };
    if asked.is_err() {
        // SAFETY: made above; a call that was refused is never made.
        drop(unsafe { Box::from_raw(data) });
    }
    asked
}

impl CudaBackend {
    /// Takes over launches that have ended.
    pub(super) fn collect(&mut self) {
        let ended = std::mem::take(&mut *self.bell.ended.lock().unwrap_or_else(PoisonError::into_inner));
        for ended in ended {
            let Some(index) = self.flights.iter().position(|flight| flight.launch == ended.launch) else {
                continue;
            };
            let flight = self.flights.remove(index);
            let completed = self.land(flight, ended);
            self.done.push_back(completed);
        }
        self.look_for_loss();
        self.recover();
    }

    /// A device that faults rings no bell: its events say so.
    fn look_for_loss(&mut self) {
        let Some(first) = self.flights.first() else { return };
        if self.lost.is_none()
            && let Err(error) = self.driver.has_come(first.held.events.after)
        {
            self.lost = Some(error.to_string());
        }
        let Some(what) = self.lost.clone() else { return };
        let now = (self.bell.clock)();
        for flight in self.flights.drain(..) {
            let result = Err(DeviceError::LaneLost { lane: flight.lane.name(), what: what.clone() });
            let Flight { launch, lane, .. } = flight;
            self.done.push_back(Completed {
                launch,
                lane,
                started: now,
                finished: now,
                cores: Vec::new(),
                pieces: Vec::new(),
                result,
            });
        }
    }

    fn land(&mut self, flight: Flight, ended: Ended) -> Completed {
        let Flight { launch, lane, executable, variant, rows, tokens, held } = flight;
        let Held { buffers, events } = held;
        let Ended { finished, pieces, .. } = ended;
        let took = self.driver.between(events).unwrap_or(0.0);
        self.spare_events.push(events);
        let started = finished + Span::from_micros(-(took.max(0.0) as i64));
        let Some(executable) = self.executables.get_mut(executable).and_then(Option::as_mut) else {
            let what = "its executable was released while in flight".to_owned();
            let result = Err(DeviceError::LaneLost { lane: lane.name(), what });
            return Completed { launch, lane, started, finished, cores: Vec::new(), pieces, result };
        };
        let outputs = if pieces.is_empty() {
            // SAFETY: the launch has ended, so the copy into these words is over.
            let block = unsafe { std::slice::from_raw_parts(buffers.1.at, buffers.1.words) };
            executable.exchange.read(variant, rows, tokens, block)
        } else {
            Vec::new()
        };
        executable.idle.push(buffers);
        let cores = self.driver.partition_range(executable.exchange.key.partition).collect();
        Completed { launch, lane, started, finished, cores, pieces, result: Ok(outputs) }
    }

    /// Queues a launch on its lane's stream.
    ///
    /// # Errors
    /// Inputs that do not fit, or what the driver refuses; a refusal that means the device is gone marks it so.
    pub(super) fn take_off(&mut self, launch: Launch) -> Result<(), DeviceError> {
        let index = launch.executable.0 as usize;
        let known = self.executables.get(index).and_then(Option::as_ref);
        let executable = known.ok_or_else(|| DeviceError::BadInput {
            input: format!("executable {} (never built, or released)", launch.executable.0),
            given: 0,
            expected: 1,
        })?;
        let variant = executable.exchange.admit(&launch)?;
        if executable.variants[variant].graph.is_none() {
            self.record()?;
        }
        let Some(executable) = self.executables[index].as_mut() else { return Ok(()) };
        let Some(buffers) = executable.idle.pop() else {
            return Err(DeviceError::BadInput {
                input: "launches of one executable in flight".to_owned(),
                given: IN_FLIGHT_MAX + 1,
                expected: IN_FLIGHT_MAX,
            });
        };
        let events = match self.spare_events.pop().map_or_else(|| self.driver.events(), Ok) {
            Ok(events) => events,
            Err(error) => {
                executable.idle.push(buffers);
                return Err(error);
            }
        };
        // SAFETY: these words belong to a launch that is not in flight.
        let words = unsafe { std::slice::from_raw_parts_mut(buffers.0.at, executable.exchange.input_words) };
        let copied = executable.exchange.fill(variant, &launch, words);

        let key = executable.exchange.key;
        let whole = key.partition == Partition::Whole;
        let streams = &self.streams[lane_index(home(key))];
        let stream = if whole { streams.whole } else { streams.own };
        let held = Held { buffers, events };
        if let Err(error) = self.queue(index, (variant, copied), &launch, stream, held) {
            self.stranded.push(Stranded { executable: Some(index), stream, held });
            // What was queued comes before whatever the lane's other stream is given next, if it can be marked.
            let _ = self.driver.mark(self.streams[lane_index(home(key))].order.after, stream);
            // A device that is gone says so at every call; one that refused this launch goes on.
            if let Err(gone) = self.driver.is_idle(stream) {
                self.lost.get_or_insert(gone.to_string());
            }
            return Err(error);
        }
        let Launch { launch, lane, rows, tokens, .. } = launch;
        self.flights.push(Flight { launch, lane, executable: index, variant, rows, tokens, held });
        Ok(())
    }

    /// Everything a launch puts on its stream: inputs, so many words of them, graph, outputs, and the bell at last.
    fn queue(
        &mut self,
        index: usize,
        (variant, copied): (usize, usize),
        launch: &Launch,
        stream: Stream,
        Held { buffers, events }: Held,
    ) -> Result<(), DeviceError> {
        let Some(executable) = self.executables[index].as_ref() else { return Ok(()) };
        let driver = &self.driver;
        let whole = executable.exchange.key.partition == Partition::Whole;
        let streams = &mut self.streams[lane_index(home(executable.exchange.key))];
        if streams.last_whole.is_some_and(|last| last != whole) {
            driver.wait(stream, streams.order.after)?;
        }
        streams.last_whole = Some(whole);
        let recorded = &executable.variants[variant];
        driver.copy_in(stream, executable.inputs_at, buffers.0, copied)?;
        driver.mark(events.before, stream)?;
        if let Some(graph) = &recorded.graph {
            driver.run(graph, stream)?;
        }
        driver.mark(events.after, stream)?;
        let arena = self.arenas[arena_index(executable.exchange.key)];
        let mut at = 0;
        for (&id, (_, live, room)) in executable
            .exchange
            .program
            .outputs
            .iter()
            .zip(executable.exchange.outputs(variant, launch.rows, launch.tokens))
        {
            let from = arena.at + recorded.lowered.values[id.0 as usize].unwrap_or(0) as u64;
            driver.copy_out(stream, buffers.1, at, from, live)?;
            at += room;
        }
        driver.mark(streams.order.after, stream)?;
        let reading = (!launch.wanted.is_empty()).then(|| {
            let values = executable.exchange.first_words(launch.rows, launch.tokens);
            let reading = Reading { at: buffers.1.at.cast(), values, wanted: launch.wanted.clone() };
            (reading, self.porters[usize::from(launch.lane == Lane::Urgent)].hatch())
        });
        ask_for_ring(driver, stream, Ring { bell: Arc::clone(&self.bell), launch: launch.launch, reading })
    }

    /// Gives back what refused launches held, once nothing can use it.
    fn recover(&mut self) {
        let mut index = 0;
        while let Some(stranded) = self.stranded.get(index) {
            if !matches!(self.driver.is_idle(stranded.stream), Ok(true)) {
                index += 1;
                continue;
            }
            let Stranded { executable, held, .. } = self.stranded.swap_remove(index);
            self.spare_events.push(held.events);
            match executable.and_then(|index| self.executables.get_mut(index)?.as_mut()) {
                Some(executable) => executable.idle.push(held.buffers),
                None => {
                    self.driver.give_pinned(held.buffers.0);
                    self.driver.give_pinned(held.buffers.1);
                }
            }
        }
    }
}
