//! [`Backend`] on one CUDA device.

mod flight;
mod options;
mod record;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use contract::{Lane, Partition, ShapeKey, Stage};
use device::{
    Backend, Completed, DeviceError, Dtype, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, Program,
    StateId, StateSpec, WeightForm, WeightId,
};

use crate::compile;
use crate::driver::{Driver, Events, Stream};
use crate::exchange::Exchange;
use crate::executable::{Executable, Variant};
use crate::kernels::{Kernels, shared_max};
use crate::lower::{Precision, Storage, Target, lower};
use crate::porter::Porter;
use crate::store::{Store, Workshop};
use flight::{Bell, Flight, Stranded};
pub use options::{Clock, CudaOptions, Notify};

/// Launches one executable may have in flight.
const IN_FLIGHT_MAX: usize = 3;
/// Encoders' working memory among the arenas.
const ENCODERS: usize = 3;
/// SMs that the tiles of the kernels here fill, and the rows from which the library multiplies where there are fewer.
const OWN_TILES_SMS: u32 = 96;
const FROM_ON_FEW_SMS: usize = 33;
/// What helps when working memory does not fit.
const ARENA_REMEDY: &str = "lower engine.contexts_max";

/// One working memory, shared by executables that never run at the same time.
#[derive(Clone, Copy, Default)]
struct Arena {
    at: u64,
    bytes: usize,
    counters_at: u64,
    counters: usize,
    /// What the library works in, where it is there.
    workspace_at: u64,
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

/// A processor made of one CUDA device. Lanes are streams on partitions of its SMs; executables are graphs.
pub struct CudaBackend {
    // Dropped in this order: nothing below may outlive the driver's work.
    executables: Vec<Option<Executable>>,
    flights: Vec<Flight>,
    stranded: Vec<Stranded>,
    done: VecDeque<Completed>,
    bell: Arc<Bell>,
    /// Take samples out of codec launches: of the urgent lane, which waits for nobody's, and of the others.
    porters: Vec<Porter>,
    streams: [LaneStreams; 3],
    /// Working memory of each lane, then of encoders.
    arenas: [Arena; 4],
    spare_events: Vec<Events>,
    store: Store,
    kernels: Kernels,
    precision: Precision,
    library_from: Option<usize>,
    poison: bool,
    scratch_slot: i32,
    lost: Option<String>,
    driver: Driver,
}

/// What helps where weights do not fit.
const fn weights_remedy(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "take a smaller engine.model, or engine.precision = \"bf16\"",
        Precision::Bf16 => "take a smaller engine.model, or another device",
    }
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
        (Stage::Encode, _) => ENCODERS,
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

impl CudaBackend {
    /// Opens the device, compiles or finds the kernels, splits the SMs.
    ///
    /// # Errors
    /// [`DeviceError::BadSetting`] without a driver, a device, NVRTC or such a split.
    pub fn open(options: CudaOptions) -> Result<Self, DeviceError> {
        let mut driver = Driver::open(options.ordinal, options.background_sms, options.background_exactly)?;
        let architecture = compile::architecture(driver.capability);
        let images = compile::compile_all(&architecture, options.kernel_cache.as_deref())?;
        // A kept file that has been damaged must not keep the engine from starting.
        let kernels = match Kernels::load(&driver, &images, options.kernel_cache.as_deref()) {
            Err(_) if options.kernel_cache.is_some() => {
                Kernels::load(&driver, &compile::compile_all(&architecture, None)?, None)
            }
            loaded => loaded,
        };
        let kernels = kernels.map_err(|error| DeviceError::BadSetting {
            setting: "engine.device",
            what: format!(
                "{error} (NVRTC {}; one newer than the driver makes what it cannot load)",
                compile::release()
            ),
        })?;
        let mut lane = |partition, urgent| {
            let own = driver.stream(partition, urgent)?;
            let whole =
                if partition == Partition::Whole { own } else { driver.stream(Partition::Whole, urgent)? };
            Ok::<_, DeviceError>(LaneStreams { own, whole, order: driver.events()?, last_whole: None })
        };
        let streams =
            [lane(Partition::Background, false)?, lane(Partition::Lm, false)?, lane(Partition::Whole, true)?];
        let bell = Bell { ended: Mutex::default(), clock: options.clock, notify: options.notify };
        let porters: Result<Vec<_>, _> =
            ["samples", "urgent-samples"].map(Porter::start).into_iter().collect();
        let porters = porters.map_err(|error| DeviceError::BadSetting {
            setting: "engine.device",
            what: format!("no thread for samples: {error}"),
        })?;
        Ok(Self {
            executables: Vec::new(),
            flights: Vec::new(),
            stranded: Vec::new(),
            done: VecDeque::new(),
            bell: Arc::new(bell),
            porters,
            streams,
            arenas: [Arena::default(); 4],
            spare_events: Vec::new(),
            store: Store::new(options.slots + 1, weights_remedy(options.precision)),
            kernels,
            precision: options.precision,
            library_from: options.library_from,
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

    /// Encoders and everything in f32 multiply by the kernels here.
    fn multiplies_by_library(&self) -> bool {
        self.precision == Precision::Bf16 && self.library_from.is_some() && self.kernels.library.is_some()
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
            library_from: self.kernels.library.as_ref().and(self.library_from).map(|from| {
                // The tiles of the kernels here were chosen for this many SMs and more.
                if self.driver.partition_sms(key.partition) < OWN_TILES_SMS {
                    from.min(FROM_ON_FEW_SMS)
                } else {
                    from
                }
            }),
        };
        let exchange = Exchange::new(key, program.clone(), self.scratch_slot);
        let lowered =
            exchange.forms.iter().map(|form| lower(program, &self.store.catalog, form.shape, target));
        let variants: Vec<_> = lowered.map(|lowered| Variant { lowered, graph: None }).collect();
        let (bytes, counters) = variants.iter().fold((0, 1), |(bytes, counters), variant| {
            (bytes.max(variant.lowered.bytes), counters.max(variant.lowered.counters))
        });
        self.reserve(arena_index(key), bytes, counters)?;
        let stream = self.streams[lane_index(Lane::Lm)].whole;
        let mut shop = Workshop { driver: &mut self.driver, kernels: &mut self.kernels, stream, target };
        for variant in &variants {
            self.store.derive(&mut shop, &variant.lowered.steps)?;
        }
        let inputs_at = self.driver.take(4 * exchange.input_words, "launch inputs", ARENA_REMEDY)?;
        let mut idle = Vec::with_capacity(IN_FLIGHT_MAX);
        for _ in 0..IN_FLIGHT_MAX {
            let inputs = self.driver.pinned(exchange.input_words)?;
            idle.push((inputs, self.driver.pinned(exchange.output_words)?));
        }
        let executable = Executable { exchange, variants, inputs_at, idle };
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
            // The place may be another's before they are given back.
            self.stranded
                .iter_mut()
                .filter(|stranded| stranded.executable == Some(executable.0 as usize))
                .for_each(|stranded| stranded.executable = None);
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
        self.take_off(launch)
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
        let shared = if self.driver.is_split() {
            let lm = self.driver.partition_sms(Partition::Lm);
            let background = self.driver.partition_sms(Partition::Background);
            format!("lm {lm}, background {background}")
        } else {
            format!("not split ({})", self.driver.unsplit)
        };
        // It is quicker with than without, so who starts it should know.
        let library = match self.precision {
            Precision::F32 => "",
            Precision::Bf16 if self.multiplies_by_library() => "; large batches by cuBLASLt",
            Precision::Bf16 => {
                "; without cuBLASLt 12 or newer in the library path, so large batches take longer"
            }
        };
        format!("cuda ({name}, {precision}): {sms} SMs, {shared}{library}")
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // Bells still to ring hold the bell alive; graphs must not outlive what they touch, nor memory who reads it.
        let _ = self.driver.synchronize();
        self.porters.clear();
        for executable in self.executables.drain(..).flatten() {
            for graph in executable.variants.into_iter().filter_map(|variant| variant.graph) {
                self.driver.discard(graph);
            }
        }
    }
}
