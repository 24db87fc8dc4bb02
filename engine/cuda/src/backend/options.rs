//! How to open the backend.

use std::path::PathBuf;
use std::sync::Arc;

use contract::Tick;

use crate::lower::Precision;

/// Reads the time.
pub type Clock = Arc<dyn Fn() -> Tick + Send + Sync>;
/// Called when a launch has ended.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// How to open a [`super::CudaBackend`].
#[derive(Clone)]
pub struct CudaOptions {
    pub ordinal: u32,
    /// Slots of every state; one more is there as scratch.
    pub slots: usize,
    pub precision: Precision,
    /// SMs of the background lane; 0 leaves all lanes the whole device.
    pub background_sms: u32,
    /// Not fewer on a card of which they would be more than half.
    pub background_exactly: bool,
    /// Where compiled kernels are kept; `None` compiles at every start.
    pub kernel_cache: Option<PathBuf>,
    /// Rows from which the library (cuBLASLt) multiplies, where it can be loaded; `None` leaves it alone.
    pub library_from: Option<usize>,
    /// Fill working memory with NaN before each launch, so that nothing unwritten goes unseen.
    pub poison: bool,
    pub clock: Clock,
    pub notify: Notify,
}

/// Below, norms and gates inside the kernels here are worth more than the library's tiles (docs/h200.md).
const LIBRARY_FROM: usize = 72;

impl CudaOptions {
    /// bf16, some two fifths of the SMs for the background lane of a card as large as an H200.
    #[must_use]
    pub fn new(ordinal: u32, slots: usize, clock: Clock, notify: Notify) -> Self {
        Self {
            ordinal,
            slots,
            precision: Precision::Bf16,
            background_sms: 56,
            background_exactly: false,
            kernel_cache: None,
            library_from: Some(LIBRARY_FROM),
            poison: false,
            clock,
            notify,
        }
    }
}
