//! [`Backend`] on CPU cores.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use contract::{Lane, LaunchId, ShapeKey};
use device::{
    Backend, Completed, DeviceError, Dtype, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, Program,
    StateId, StateSpec, WeightForm, WeightId,
};

use crate::executable::{Executable, Held, derive};
use crate::kernel;
use crate::lane::{Clock, Common, Gate, LaneThreads, Notify, Queued};
use crate::memory::{Memory, Pages, State, Weight};
use crate::pack::Packed;
use crate::room;
use crate::topology::Topology;

/// Niceness of the lanes' threads.
const NICE_LM: i32 = 5;
const NICE_BACKGROUND: i32 = 10;
const NICE_URGENT: i32 = 0;

/// How to open a [`CpuBackend`].
#[derive(Clone)]
pub struct CpuOptions {
    /// Cores to use; `None` takes all this process may run on.
    pub cores: Option<Vec<usize>>,
    /// Cores of the lm partition, the rest being the background's; `None` takes half, rounded up. Ignored
    /// with one core, which all lanes then share.
    pub lm_cores: Option<usize>,
    /// Slots of every state; one more is there as scratch.
    pub slots: usize,
    pub clock: Clock,
    pub notify: Notify,
    /// Fill scratch memory with NaN before each launch, so that nothing unwritten goes unseen.
    pub poison: bool,
}

/// A processor made of CPU cores. Lanes are threads; executables are op lists.
pub struct CpuBackend {
    topology: Topology,
    rows: usize,
    memory: Memory,
    /// Bytes the machine had to spare at start; `None` where it does not say.
    room: Option<u64>,
    /// `memory` as the last executable saw it; `None` once it has changed.
    snapshot: Option<Arc<Memory>>,
    executables: Vec<Option<Arc<Executable>>>,
    in_flight: Vec<(LaunchId, Lane, Held)>,
    done: VecDeque<Completed>,
    common: Arc<Common>,
    // Dropped in this order: the others may be waiting for urgent work to end.
    background: LaneThreads,
    lm: LaneThreads,
    urgent: LaneThreads,
}

impl CpuOptions {
    /// All cores, half of them for the lm partition.
    #[must_use]
    pub fn new(slots: usize, clock: Clock, notify: Notify) -> Self {
        Self { cores: None, lm_cores: None, slots, clock, notify, poison: false }
    }
}

impl CpuBackend {
    /// Starts the lanes' threads.
    ///
    /// # Errors
    /// [`DeviceError::BadSetting`] for cores that cannot be had, [`DeviceError::LaneLost`] when the system
    /// refuses a thread.
    pub fn open(options: CpuOptions) -> Result<Self, DeviceError> {
        let topology = Topology::new(options.cores, options.lm_cores)?;
        let common = Arc::new(Common {
            clock: options.clock,
            notify: options.notify,
            completed: Mutex::default(),
            gate: Gate::default(),
            poison: options.poison,
        });
        let start = |lane, nice| LaneThreads::start(lane, topology.lane(lane), nice, Arc::clone(&common));
        Ok(Self {
            background: start(Lane::Background, NICE_BACKGROUND)?,
            lm: start(Lane::Lm, NICE_LM)?,
            urgent: start(Lane::Urgent, NICE_URGENT)?,
            topology,
            rows: options.slots + 1,
            memory: Memory::default(),
            room: room::spare(),
            snapshot: None,
            executables: Vec::new(),
            in_flight: Vec::new(),
            done: VecDeque::new(),
            common,
        })
    }

    /// Bytes held: states and pages, weights.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        self.memory.bytes()
    }

    /// Takes finished launches over from the lanes.
    fn collect(&mut self) {
        let mut completed = self.common.completed.lock().unwrap_or_else(PoisonError::into_inner);
        for completed in completed.drain(..) {
            self.in_flight.retain(|(launch, ..)| *launch != completed.launch);
            self.done.push_back(completed);
        }
    }

    /// Memory is promised freely and killed for later, so what is asked is compared with what there was.
    fn check_room(&self, what: &str, asked: u64) -> Result<(), DeviceError> {
        let held = self.memory.bytes().0 as u64;
        match self.room {
            Some(room) if held.saturating_add(asked) > room => Err(DeviceError::OutOfMemory {
                what: format!("{what} ({} of {room} spare bytes are free)", room.saturating_sub(held)),
                asked,
                remedy: "lower engine.contexts_max",
            }),
            _ => Ok(()),
        }
    }

    /// No launch in flight may hold a row the host touches.
    fn check_free(&mut self, state: StateId, slot: u32) -> Result<(), DeviceError> {
        self.collect();
        if slot as usize >= self.rows {
            return Err(DeviceError::BadInput {
                input: "slot".to_owned(),
                given: slot as usize,
                expected: self.rows - 1,
            });
        }
        let row = (state, i32::try_from(slot).unwrap_or(i32::MAX));
        match self.in_flight.iter().find(|(.., held)| held.rows.binary_search(&row).is_ok()) {
            None => Ok(()),
            Some((launch, lane, _)) => Err(DeviceError::BadInput {
                input: format!(
                    "slot {slot}, held by {launch} in the {} lane; launches in flight",
                    lane.name()
                ),
                given: 1,
                expected: 0,
            }),
        }
    }

    fn executable(&self, id: ExecutableId) -> Result<&Arc<Executable>, DeviceError> {
        self.executables.get(id.0 as usize).and_then(Option::as_ref).ok_or_else(|| DeviceError::BadInput {
            input: format!("executable {} (never built, or released)", id.0),
            given: 0,
            expected: 1,
        })
    }
}

impl Backend for CpuBackend {
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        data: Vec<f32>,
    ) -> Result<WeightId, DeviceError> {
        let id = self.memory.catalog.add_weight(name, form, shape, data.len())?;
        let shape = self.memory.catalog.weight(id).map_or(shape, |info| &info.shape);
        let weight = match (form, shape) {
            (WeightForm::Matrix, &[outputs, inputs]) => {
                Weight::Packed(Packed::matrix(&data, outputs, inputs))
            }
            (WeightForm::Conv, &[outputs, inputs, kernel]) => {
                Weight::Packed(Packed::conv(&data, outputs, inputs, kernel))
            }
            (WeightForm::Depthwise, &[channels, _, kernel]) => Weight::Raw(
                (0..kernel * channels).map(|i| data[i % channels * kernel + i / channels]).collect(),
            ),
            _ => Weight::Raw(data),
        };
        self.memory.weights.push(Arc::new(weight));
        self.snapshot = None;
        Ok(id)
    }

    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        let id = self.memory.catalog.add_state(spec.clone())?;
        self.check_room(&spec.name, 4 * self.rows as u64 * spec.width as u64)?;
        self.memory.states.push(Arc::new(State::new(spec, self.rows)));
        self.snapshot = None;
        Ok(id)
    }

    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        let id = self.memory.catalog.add_paged(spec.clone())?;
        let position = 8 * spec.layers as u64 * spec.kv_heads as u64 * spec.head_dim as u64;
        let bytes = position * spec.page_len as u64 * spec.pages as u64;
        self.check_room(&format!("key/value pages of {}", spec.name), bytes)?;
        self.memory.pages.push(Arc::new(Pages::new(spec)));
        self.snapshot = None;
        Ok(id)
    }

    fn build(&mut self, key: ShapeKey, program: &Program) -> Result<ExecutableId, DeviceError> {
        program.check(&self.memory.catalog)?;
        let before = self.memory.derived();
        derive(&mut self.memory, program);
        if self.memory.derived() != before {
            self.snapshot = None;
        }
        let snapshot = match &self.snapshot {
            Some(snapshot) => Arc::clone(snapshot),
            None => Arc::clone(self.snapshot.insert(Arc::new(self.memory.clone()))),
        };
        let members = self.topology.all().len();
        let executable = Executable::new(key, program.clone(), snapshot, members);
        let free = self.executables.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.executables.push(None);
            self.executables.len() - 1
        });
        self.executables[index] = Some(Arc::new(executable));
        Ok(ExecutableId(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn release(&mut self, executable: ExecutableId) {
        if let Some(place) = self.executables.get_mut(executable.0 as usize) {
            *place = None;
        }
    }

    fn launch(&mut self, launch: Launch) -> Result<(), DeviceError> {
        self.collect();
        let executable = Arc::clone(self.executable(launch.executable)?);
        let held = executable.admit(&launch)?;
        for (other, lane, theirs) in &self.in_flight {
            if *lane != launch.lane
                && let Some(both) = held.clash(theirs)
            {
                return Err(DeviceError::BadInput {
                    input: format!("{both}, held by {other} in the {} lane; launches", lane.name()),
                    given: 2,
                    expected: 1,
                });
            }
        }
        let (id, lane) = (launch.launch, launch.lane);
        let members = self.topology.members(lane, executable.key.partition);
        let threads = match lane {
            Lane::Background => &self.background,
            Lane::Lm => &self.lm,
            Lane::Urgent => &self.urgent,
        };
        threads.push(Queued { executable, launch, members })?;
        self.in_flight.push((id, lane, held));
        Ok(())
    }

    fn poll(&mut self) -> Option<Completed> {
        self.collect();
        self.done.pop_front()
    }

    fn write_state(&mut self, state: StateId, slot: u32, row: &HostTensor) -> Result<(), DeviceError> {
        let (dtype, width) = match row {
            HostTensor::F32(values) => (Dtype::F32, values.len()),
            HostTensor::I32(values) => (Dtype::I32, values.len()),
        };
        self.memory.catalog.check_row(state, dtype, width)?;
        self.check_free(state, slot)?;
        let target = self.memory.states[state.0 as usize].row(slot as i32);
        // SAFETY: `width` words of the slot's row, held by no launch.
        unsafe {
            match row {
                HostTensor::F32(values) => {
                    target.cast::<f32>().copy_from_nonoverlapping(values.as_ptr(), width)
                }
                HostTensor::I32(values) => {
                    target.cast::<i32>().copy_from_nonoverlapping(values.as_ptr(), width)
                }
            }
        }
        Ok(())
    }

    fn read_state(&mut self, state: StateId, slot: u32) -> Result<HostTensor, DeviceError> {
        let Some(spec) = self.memory.catalog.state(state).cloned() else {
            return Err(DeviceError::BadTensor {
                name: "state".to_owned(),
                what: format!("no state has id {}", state.0),
            });
        };
        self.check_free(state, slot)?;
        let row = self.memory.states[state.0 as usize].row(slot as i32);
        // SAFETY: `width` words of the slot's row, held by no launch.
        Ok(unsafe {
            match spec.dtype {
                Dtype::F32 => HostTensor::F32(std::slice::from_raw_parts(row.cast(), spec.width).to_vec()),
                Dtype::I32 => HostTensor::I32(std::slice::from_raw_parts(row.cast(), spec.width).to_vec()),
            }
        })
    }

    fn describe(&self) -> String {
        let kernels = if kernel::has_avx2() { "avx2" } else { "portable" };
        format!("cpu ({kernels}): {}", self.topology.describe())
    }
}
