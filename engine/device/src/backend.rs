//! What a processor must offer. One implementation a crate: `cpu`, `cuda`.

use contract::{Lane, LaunchId, ShapeKey, Tick};

use crate::{DeviceError, Piece, Program};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    };
}

handle!(
    /// A weight tensor resident on the device.
    WeightId
);
handle!(
    /// A table of per-slot rows that lives as long as the backend.
    StateId
);
handle!(
    /// A pool of key/value pages.
    PagedId
);
handle!(
    /// A program built for one shape key.
    ExecutableId
);

/// Element type of values, states and host tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    F32,
    I32,
}

/// How a weight will be used; decides its layout on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// `[out, in]` for [`crate::Op::Linear`].
    Matrix,
    /// `[out, in, kernel]` for [`crate::Op::CausalConv`] and [`crate::Op::Conv`].
    Conv,
    /// `[channels, 1, kernel]` for [`crate::Op::CausalDepthwiseConv`] and [`crate::Op::DepthwiseConv`].
    Depthwise,
    /// `[in, out, kernel]` for [`crate::Op::CausalConvTranspose`].
    ConvTranspose,
    /// `[rows, width]`, looked up by row.
    Table,
    /// Any small tensor used elementwise: bias, norm weight, scale.
    Vector,
}

/// Per-slot rows: `[slots + 1, width]`, zeroed at start; the last row is scratch.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    pub name: String,
    pub width: usize,
    pub dtype: Dtype,
}

/// Key/value pages for all layers of one backbone: each page holds `page_len` positions of
/// `2 * layers * kv_heads * head_dim` values. Page 0 is scratch.
#[derive(Clone, Debug, PartialEq)]
pub struct PagedSpec {
    pub name: String,
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub page_len: usize,
    pub pages: usize,
}

/// Host values going to, or coming from, a launch; row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum HostTensor {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl HostTensor {
    /// Values of either type.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One executable to run.
#[derive(Clone, Debug)]
pub struct Launch {
    pub launch: LaunchId,
    pub lane: Lane,
    pub executable: ExecutableId,
    /// Live batch rows, at most the executable's bucket.
    pub rows: usize,
    /// Total live tokens, for programs with token rows; else 0.
    pub tokens: usize,
    /// One tensor per program input, in declaration order, sized for the live rows; of a table that rows are only
    /// gathered from ([`Program::is_lookup`]) the first rows, as far as any is named.
    pub inputs: Vec<HostTensor>,
    /// How many of the first values of each row are wanted, of a program with one output of many values a row; what
    /// comes back are then pieces. Empty: whole outputs.
    pub wanted: Vec<usize>,
}

/// A launch that ended.
#[derive(Clone, Debug)]
pub struct Completed {
    pub launch: LaunchId,
    pub lane: Lane,
    pub started: Tick,
    pub finished: Tick,
    /// Core ids (CPU) or SM ranges (GPU) it ran on.
    pub cores: Vec<u32>,
    /// One a row, for a launch that named what it wants.
    pub pieces: Vec<Piece>,
    /// One tensor per program output, in declaration order, sized for the live rows; none beside pieces.
    pub result: Result<Vec<HostTensor>, DeviceError>,
}

/// A processor. Owned by one engine thread. All memory is taken before the first launch.
pub trait Backend {
    /// Copies a weight to the device. `shape` is the checkpoint's own shape.
    ///
    /// # Errors
    /// Shape does not fit `form`, or no memory.
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        data: Vec<f32>,
    ) -> Result<WeightId, DeviceError>;

    /// Whether values of weights matter to it: to one that computes nothing only their shapes are told.
    fn keeps_values(&self) -> bool {
        true
    }

    /// # Errors
    /// No memory.
    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError>;

    /// # Errors
    /// No memory.
    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError>;

    /// Records `program` for `key.bucket` rows on `key.partition`. Programs are checked here, so that
    /// a launch can only fail for the processor's own reasons.
    ///
    /// # Errors
    /// A malformed program or no memory.
    fn build(&mut self, key: ShapeKey, program: &Program) -> Result<ExecutableId, DeviceError>;

    /// Frees an executable none of whose launches is in flight (encode programs are built per clip length).
    fn release(&mut self, executable: ExecutableId);

    /// Queues a launch on its lane and returns at once. Launches of one lane run in order.
    ///
    /// # Errors
    /// Inputs that do not fit, or a lost lane.
    fn launch(&mut self, launch: Launch) -> Result<(), DeviceError>;

    /// The next finished launch, if any, in order of finishing. Never blocks.
    fn poll(&mut self) -> Option<Completed>;

    /// Writes one slot's row of a state from the host; only while no launch names the slot.
    ///
    /// # Errors
    /// Row length differs from the state's width.
    fn write_state(&mut self, state: StateId, slot: u32, row: &HostTensor) -> Result<(), DeviceError>;

    /// Reads one slot's row of a state; only while no launch names the slot.
    ///
    /// # Errors
    /// A lost device.
    fn read_state(&mut self, state: StateId, slot: u32) -> Result<HostTensor, DeviceError>;

    /// Why the whole processor is gone for good, once it is: no launch will ever end well again.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// Whether a launch costs what its bucket costs (recorded shapes), rather than what its live rows do.
    fn costs_by_bucket(&self) -> bool {
        false
    }

    /// For people and traces: which processor, which cores or SMs each partition owns.
    fn describe(&self) -> String;
}
