//! A backend that fails as a script says: every way in which a processor can let an engine down, without
//! one that does.

mod script;

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{LaunchId, ShapeKey, Stage};
use device::{
    Backend, Completed, DeviceError, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, Program, StateId,
    StateSpec, WeightForm, WeightId,
};

pub use script::{FaultError, FaultScript};
pub(crate) use script::{FaultKind, LaunchFault, MemoryUse};

/// Rings as a backend does when a launch has ended.
pub(crate) type Notify = Arc<dyn Fn() + Send + Sync>;

/// Any backend, with a script's faults in its way.
pub(crate) struct Faulty {
    within: Box<dyn Backend>,
    script: FaultScript,
    notify: Notify,
    stages: BTreeMap<ExecutableId, Stage>,
    launched: BTreeMap<Stage, u32>,
    taken: [u32; 4],
    /// Launches whose outcome is spoilt when they end.
    spoilt: BTreeMap<LaunchId, LaunchFault>,
    lost: Option<String>,
    /// A launch that does not come back holds its owner up, as a driver would.
    stuck: bool,
}

impl Faulty {
    pub(crate) fn new(within: Box<dyn Backend>, script: FaultScript, notify: Notify) -> Self {
        Self {
            within,
            script,
            notify,
            stages: BTreeMap::new(),
            launched: BTreeMap::new(),
            taken: [0; 4],
            spoilt: BTreeMap::new(),
            lost: None,
            stuck: false,
        }
    }

    /// Whether a request for memory is granted.
    fn take(&mut self, memory: MemoryUse, what: &str, asked: usize) -> Result<(), DeviceError> {
        let taken = &mut self.taken[memory as usize];
        *taken += 1;
        let refused =
            |fault: &script::Fault| fault.kind == FaultKind::Memory(memory) && fault.count == *taken;
        if !self.script.faults.iter().any(refused) {
            return Ok(());
        }
        Err(DeviceError::OutOfMemory {
            what: format!("{what} (0 bytes are free, says the fault script)"),
            asked: asked as u64,
            remedy: match memory {
                MemoryUse::Weights => "take a smaller engine.model",
                _ => "lower engine.contexts_max",
            },
        })
    }

    /// What befalls the next launch of a stage.
    fn next(&mut self, stage: Stage) -> Option<LaunchFault> {
        if !self.script.has_begun() {
            return None;
        }
        let launched = self.launched.entry(stage).or_default();
        *launched += 1;
        self.script.faults.iter().find_map(|fault| match fault.kind {
            FaultKind::Launch(kind, at) if at == stage && fault.count == *launched => Some(kind),
            _ => None,
        })
    }
}

/// An outcome as a faulty processor gives it.
fn spoil(mut completed: Completed, fault: LaunchFault) -> Completed {
    if fault == LaunchFault::Fail {
        completed.result = Err(broken(completed.lane));
    } else if let Ok(outputs) = &mut completed.result {
        if let Some(piece) = completed.pieces.first_mut() {
            piece.peak = None;
        }
        for output in outputs {
            if let HostTensor::F32(values) = output
                && let Some(first) = values.first_mut()
            {
                *first = f32::NAN;
            }
        }
    }
    completed
}

fn broken(lane: contract::Lane) -> DeviceError {
    DeviceError::LaneLost { lane: lane.name(), what: "the fault script broke this launch".to_owned() }
}

/// Never returns.
fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

impl Backend for Faulty {
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        data: Vec<f32>,
    ) -> Result<WeightId, DeviceError> {
        self.take(MemoryUse::Weights, name, size_of_val(data.as_slice()))?;
        self.within.upload(name, form, shape, data)
    }

    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        self.take(MemoryUse::States, &spec.name, 4 * spec.width)?;
        self.within.state(spec)
    }

    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        let position = 8 * spec.layers * spec.kv_heads * spec.head_dim;
        self.take(MemoryUse::Pages, &spec.name, position * spec.page_len * spec.pages)?;
        self.within.paged(spec)
    }

    fn build(&mut self, key: ShapeKey, program: &Program) -> Result<ExecutableId, DeviceError> {
        self.take(MemoryUse::Programs, key.stage.name(), 0)?;
        let id = self.within.build(key, program)?;
        self.stages.insert(id, key.stage);
        Ok(id)
    }

    fn release(&mut self, executable: ExecutableId) {
        self.stages.remove(&executable);
        self.within.release(executable);
    }

    fn launch(&mut self, launch: Launch) -> Result<(), DeviceError> {
        if let Some(what) = &self.lost {
            return Err(DeviceError::LaneLost { lane: launch.lane.name(), what: what.clone() });
        }
        let stage = self.stages.get(&launch.executable).copied();
        match stage.and_then(|stage| self.next(stage)) {
            None => self.within.launch(launch),
            Some(LaunchFault::Error) => Err(broken(launch.lane)),
            Some(LaunchFault::Hang) => hang(),
            Some(LaunchFault::Lost) => {
                self.lost = Some("the fault script took the device away".to_owned());
                (self.notify)();
                Err(broken(launch.lane))
            }
            Some(LaunchFault::Stuck) => {
                self.stuck = true;
                Ok(())
            }
            Some(fault @ (LaunchFault::Fail | LaunchFault::Nan)) => {
                self.spoilt.insert(launch.launch, fault);
                self.within.launch(launch)
            }
        }
    }

    fn poll(&mut self) -> Option<Completed> {
        let completed = self.within.poll()?;
        match self.spoilt.remove(&completed.launch) {
            Some(fault) => Some(spoil(completed, fault)),
            None => Some(completed),
        }
    }

    fn write_state(&mut self, state: StateId, slot: u32, row: &HostTensor) -> Result<(), DeviceError> {
        self.within.write_state(state, slot, row)
    }

    fn read_state(&mut self, state: StateId, slot: u32) -> Result<HostTensor, DeviceError> {
        self.within.read_state(state, slot)
    }

    fn lost(&self) -> Option<&str> {
        self.lost.as_deref().or_else(|| self.within.lost())
    }

    fn costs_by_bucket(&self) -> bool {
        self.within.costs_by_bucket()
    }

    fn describe(&self) -> String {
        format!("{}, with faults ({})", self.within.describe(), self.script)
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        if self.stuck {
            hang();
        }
    }
}
