//! [`Backend`] on one CUDA device.

mod options;
mod record;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use contract::{Lane, LaunchId, Partition, ShapeKey, Span, Stage, Tick};
use device::{
    Backend, Completed, DeviceError, Dtype, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, Program,
    StateId, StateSpec, WeightForm, WeightId,
};

use crate::compile;
use crate::driver::{Driver, Events, Pinned, Stream};
use crate::executable::{Executable, Variant, shapes};
use crate::kernels::{Kernels, shared_max};
use crate::lower::{Precision, Storage, Target, lower};
use crate::store::{Store, Workshop};
pub use options::{Clock, CudaOptions, Notify};

/// Launches one executable may have in flight.
const IN_FLIGHT_MAX: usize = 3;
/// Setting named when working memory does not fit.
const ARENA_SETTING: &str = "max_contexts";

/// One working memory, shared by executables that never run at the same time.
#[derive(Clone, Copy, Default)]
struct Arena {
    at: u64,
    bytes: usize,
    counters_at: u64,
    counters: usize,
}

/// The streams of a lane: its own partition's, and the whole device's.
#[derive(Clone, Copy)]
struct LaneStreams {
    own: Stream,
    whole: Stream,
    /// Marked after each launch, so that one on the other stream waits for it.
    order: Events,
    last_whole: Option<bool>,
}

struct Flight {
    launch: LaunchId,
    lane: Lane,
    executable: usize,
    variant: usize,
    rows: usize,
    tokens: usize,
    buffers: (Pinned, Pinned),
    events: Events,
}

/// What the driver's thread tells: which launch ended when.
struct Bell {
    ended: Mutex<Vec<(LaunchId, Tick)>>,
    clock: Clock,
    notify: Notify,
}

struct Ring {
    bell: Arc<Bell>,
    launch: LaunchId,
}

/// A processor made of one CUDA device. Lanes are streams on partitions of its SMs; executables are graphs.
pub struct CudaBackend {
    // Dropped in this order: nothing below may outlive the driver's work.
    executables: Vec<Option<Executable>>,
    flights: Vec<Flight>,
    done: VecDeque<Completed>,
    bell: Arc<Bell>,
    streams: [LaneStreams; 3],
    /// Working memory of each lane, then of encoders.
    arenas: [Arena; 4],
    spare_events: Vec<Events>,
    store: Store,
    kernels: Kernels,
    precision: Precision,
    poison: bool,
    scratch_slot: i32,
    lost: Option<String>,
    driver: Driver,
}

const fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Background => 0,
        Lane::Lm => 1,
        Lane::Urgent => 2,
    }
}

/// The arena of an executable: encoders are built while others serve, so they have their own.
const fn arena_index(key: ShapeKey) -> usize {
    match (key.stage, key.partition) {
        (Stage::Encode, _) => 3,
        (Stage::Codec, Partition::Whole) => 2,
        (Stage::Codec, _) => 0,
        (Stage::Decode | Stage::Prefill, _) => 1,
    }
}

/// Whose streams run an executable: all that share an arena must follow one another.
const fn home(key: ShapeKey) -> Lane {
    match arena_index(key) {
        0 => Lane::Background,
        2 => Lane::Urgent,
        _ => Lane::Lm,
    }
}

unsafe extern "C" fn ring(data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` for this one call.
    let ring = unsafe { Box::from_raw(data.cast::<Ring>()) };
    let now = (ring.bell.clock)();
    ring.bell.ended.lock().unwrap_or_else(PoisonError::into_inner).push((ring.launch, now));
    (ring.bell.notify)();
}

impl CudaBackend {
    /// Opens the device, compiles or finds the kernels, splits the SMs.
    ///
    /// # Errors
    /// [`DeviceError::BadSetting`] without a driver, a device, NVRTC or such a split.
    pub fn open(options: CudaOptions) -> Result<Self, DeviceError> {
        let mut driver = Driver::open(options.ordinal, options.background_sms)?;
        let architecture = compile::architecture(driver.capability);
        let images = compile::compile_all(&architecture, options.kernel_cache.as_deref())?;
        // A kept file that has been damaged must not keep the engine from starting.
        let kernels = match Kernels::load(&driver, &images) {
            Err(_) if options.kernel_cache.is_some() => {
                Kernels::load(&driver, &compile::compile_all(&architecture, None)?)?
            }
            loaded => loaded?,
        };
        let mut lane = |partition, urgent| {
            let own = driver.stream(partition, urgent)?;
            let whole =
                if partition == Partition::Whole { own } else { driver.stream(Partition::Whole, urgent)? };
            Ok::<_, DeviceError>(LaneStreams { own, whole, order: driver.events()?, last_whole: None })
        };
        let streams =
            [lane(Partition::Background, false)?, lane(Partition::Lm, false)?, lane(Partition::Whole, true)?];
        let bell = Bell { ended: Mutex::default(), clock: options.clock, notify: options.notify };
        Ok(Self {
            executables: Vec::new(),
            flights: Vec::new(),
            done: VecDeque::new(),
            bell: Arc::new(bell),
            streams,
            arenas: [Arena::default(); 4],
            spare_events: Vec::new(),
            store: Store::new(options.slots + 1),
            kernels,
            precision: options.precision,
            poison: options.poison,
            scratch_slot: i32::try_from(options.slots).unwrap_or(i32::MAX),
            lost: None,
            driver,
        })
    }

    /// Bytes of device memory in use: what lives long, and working memory.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        (self.store.bytes, self.arenas.iter().map(|arena| arena.bytes).sum())
    }

    /// Takes over launches that have ended.
    fn collect(&mut self) {
        let ended = std::mem::take(&mut *self.bell.ended.lock().unwrap_or_else(PoisonError::into_inner));
        for (launch, finished) in ended {
            let Some(index) = self.flights.iter().position(|flight| flight.launch == launch) else {
                continue;
            };
            let flight = self.flights.remove(index);
            let completed = self.land(flight, finished);
            self.done.push_back(completed);
        }
        self.look_for_loss();
    }

    /// A device that faults rings no bell: its events say so.
    fn look_for_loss(&mut self) {
        let Some(first) = self.flights.first() else { return };
        if self.lost.is_none()
            && let Err(error) = self.driver.has_come(first.events.after)
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
                result,
            });
        }
    }

    fn land(&mut self, flight: Flight, finished: Tick) -> Completed {
        let Flight { launch, lane, executable, variant, rows, tokens, buffers, events } = flight;
        let took = self.driver.between(events).unwrap_or(0.0);
        self.spare_events.push(events);
        let started = finished + Span::from_micros(-(took.max(0.0) as i64));
        let Some(executable) = self.executables.get_mut(executable).and_then(Option::as_mut) else {
            let what = "its executable was released while in flight".to_owned();
            let result = Err(DeviceError::LaneLost { lane: lane.name(), what });
            return Completed { launch, lane, started, finished, cores: Vec::new(), result };
        };
        let mut at = 0;
        let mut outputs = Vec::new();
        for (dtype, live, room) in executable.outputs(variant, rows, tokens) {
            // SAFETY: the launch has ended, so the copy into these words is over.
            let words = unsafe { std::slice::from_raw_parts(buffers.1.at.add(at), live) };
            outputs.push(match dtype {
                Dtype::F32 => HostTensor::F32(words.iter().map(|&word| f32::from_bits(word)).collect()),
                Dtype::I32 => HostTensor::I32(words.iter().map(|&word| word.cast_signed()).collect()),
            });
            at += room;
        }
        executable.idle.push(buffers);
        let cores = self.driver.partition_range(executable.key.partition).collect();
        Completed { launch, lane, started, finished, cores, result: Ok(outputs) }
    }

    fn row(&self, state: StateId, slot: u32, dtype: Dtype, width: usize) -> Result<u64, DeviceError> {
        self.store.catalog.check_row(state, dtype, width)?;
        self.store.state_row(state, slot).map(|(at, _)| at).ok_or_else(|| DeviceError::BadInput {
            input: "slot".to_owned(),
            given: slot as usize,
            expected: self.scratch_slot.unsigned_abs() as usize,
        })
    }
}

impl Backend for CudaBackend {
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        data: Vec<f32>,
    ) -> Result<WeightId, DeviceError> {
        self.store.upload(&mut self.driver, name, form, shape, &data)
    }

    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        self.store.state(&mut self.driver, spec)
    }

    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        let storage = match self.precision {
            Precision::F32 => Storage::F32,
            Precision::Bf16 => Storage::Bf16,
        };
        self.store.paged(&mut self.driver, spec, storage.bytes())
    }

    fn build(&mut self, key: ShapeKey, program: &Program) -> Result<ExecutableId, DeviceError> {
        program.check(&self.store.catalog)?;
        // Reference audio is encoded once and compared with references: always in f32.
        let precision = if key.stage == Stage::Encode { Precision::F32 } else { self.precision };
        let target = Target {
            precision,
            sms: self.driver.partition_sms(key.partition),
            shared_max: shared_max(self.driver.capability) as usize,
            hopper: compile::is_hopper(self.driver.capability),
        };
        let mut variants = Vec::new();
        for shape in shapes(key, program) {
            let lowered = lower(program, &self.store.catalog, shape, target);
            variants.push(Variant { shape, lowered, graph: None });
        }
        let (bytes, counters) = variants.iter().fold((0, 1), |(bytes, counters), variant| {
            (bytes.max(variant.lowered.bytes), counters.max(variant.lowered.counters))
        });
        self.reserve(arena_index(key), bytes, counters)?;
        let stream = self.streams[lane_index(Lane::Lm)].whole;
        let mut shop = Workshop { driver: &mut self.driver, kernels: &mut self.kernels, stream };
        for variant in &variants {
            self.store.derive(&mut shop, &variant.lowered.steps)?;
        }
        let mut executable = Executable::new(key, program.clone(), variants, self.scratch_slot);
        executable.inputs_at =
            self.driver.take(4 * executable.input_words, "launch inputs", ARENA_SETTING)?;
        for _ in 0..IN_FLIGHT_MAX {
            let inputs = self.driver.pinned(executable.input_words)?;
            executable.idle.push((inputs, self.driver.pinned(executable.output_words)?));
        }
        let free = self.executables.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.executables.push(None);
            self.executables.len() - 1
        });
        self.executables[index] = Some(executable);
        Ok(ExecutableId(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn release(&mut self, executable: ExecutableId) {
        let Some(place) = self.executables.get_mut(executable.0 as usize) else { return };
        if let Some(released) = place.take() {
            for graph in released.variants.into_iter().filter_map(|variant| variant.graph) {
                self.driver.discard(graph);
            }
            self.driver.give(released.inputs_at);
            for (inputs, outputs) in released.idle {
                self.driver.give_pinned(inputs);
                self.driver.give_pinned(outputs);
            }
        }
    }

    fn launch(&mut self, launch: Launch) -> Result<(), DeviceError> {
        self.collect();
        if let Some(what) = &self.lost {
            return Err(DeviceError::LaneLost { lane: launch.lane.name(), what: what.clone() });
        }
        let index = launch.executable.0 as usize;
        let known = self.executables.get(index).and_then(Option::as_ref);
        let executable = known.ok_or_else(|| DeviceError::BadInput {
            input: format!("executable {} (never built, or released)", launch.executable.0),
            given: 0,
            expected: 1,
        })?;
        let variant = executable.admit(&launch)?;
        if executable.variants[variant].graph.is_none() {
            self.record()?;
        }
        let events = match self.spare_events.pop() {
            Some(events) => events,
            None => self.driver.events()?,
        };
        let Some(executable) = self.executables[index].as_mut() else { return Ok(()) };
        let Some(buffers) = executable.idle.pop() else {
            return Err(DeviceError::BadInput {
                input: "launches of one executable in flight".to_owned(),
                given: IN_FLIGHT_MAX + 1,
                expected: IN_FLIGHT_MAX,
            });
        };
        // SAFETY: these words belong to a launch that is not in flight.
        let words = unsafe { std::slice::from_raw_parts_mut(buffers.0.at, executable.input_words) };
        executable.fill(variant, &launch, words);

        let whole = executable.key.partition == Partition::Whole;
        let streams = &mut self.streams[lane_index(home(executable.key))];
        let stream = if whole { streams.whole } else { streams.own };
        let driver = &self.driver;
        if streams.last_whole.is_some_and(|last| last != whole) {
            driver.wait(stream, streams.order.after)?;
        }
        streams.last_whole = Some(whole);
        driver.copy_in(stream, executable.inputs_at, buffers.0, executable.input_words)?;
        driver.mark(events.before, stream)?;
        if let Some(graph) = &executable.variants[variant].graph {
            driver.run(graph, stream)?;
        }
        driver.mark(events.after, stream)?;
        let arena = self.arenas[arena_index(executable.key)];
        let lowered = &executable.variants[variant].lowered;
        let mut at = 0;
        for (&id, (_, live, room)) in
            executable.program.outputs.iter().zip(executable.outputs(variant, launch.rows, launch.tokens))
        {
            let from = arena.at + lowered.values[id.0 as usize].unwrap_or(0) as u64;
            driver.copy_out(stream, buffers.1, at, from, live)?;
            at += room;
        }
        driver.mark(streams.order.after, stream)?;
        let data = Box::into_raw(Box::new(Ring { bell: Arc::clone(&self.bell), launch: launch.launch }));
        // SAFETY: the callback takes the box over and uses no CUDA.
        unsafe { driver.then(stream, ring, data.cast())? };
        self.flights.push(Flight {
            launch: launch.launch,
            lane: launch.lane,
            executable: index,
            variant,
            rows: launch.rows,
            tokens: launch.tokens,
            buffers,
            events,
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<Completed> {
        self.collect();
        self.done.pop_front()
    }

    fn write_state(&mut self, state: StateId, slot: u32, row: &HostTensor) -> Result<(), DeviceError> {
        match row {
            HostTensor::F32(values) => {
                let at = self.row(state, slot, Dtype::F32, values.len())?;
                self.driver.write(at, values)
            }
            HostTensor::I32(values) => {
                let at = self.row(state, slot, Dtype::I32, values.len())?;
                self.driver.write(at, values)
            }
        }
    }

    fn read_state(&mut self, state: StateId, slot: u32) -> Result<HostTensor, DeviceError> {
        let Some(spec) = self.store.catalog.state(state).cloned() else {
            return Err(DeviceError::BadTensor {
                name: "state".to_owned(),
                what: format!("no state has id {}", state.0),
            });
        };
        let at = self.row(state, slot, spec.dtype, spec.width)?;
        Ok(match spec.dtype {
            Dtype::F32 => {
                let mut values = vec![0.0f32; spec.width];
                self.driver.read(at, &mut values)?;
                HostTensor::F32(values)
            }
            Dtype::I32 => {
                let mut values = vec![0i32; spec.width];
                self.driver.read(at, &mut values)?;
                HostTensor::I32(values)
            }
        })
    }

    fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn costs_by_bucket(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        let Driver { name, sms, .. } = &self.driver;
        let precision = match self.precision {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        };
        if self.driver.is_split() {
            let lm = self.driver.partition_sms(Partition::Lm);
            let background = self.driver.partition_sms(Partition::Background);
            format!("cuda ({name}, {precision}): {sms} SMs, lm {lm}, background {background}")
        } else {
            format!("cuda ({name}, {precision}): {sms} SMs, not split")
        }
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // Bells still to ring hold the bell alive; graphs must not outlive what they touch.
        let _ = self.driver.synchronize();
        for executable in self.executables.drain(..).flatten() {
            for graph in executable.variants.into_iter().filter_map(|variant| variant.graph) {
                self.driver.discard(graph);
            }
        }
    }
}
