//! Checkpoint tensors on their way to a device: shape checked against the config, named in errors.

use device::{Backend, Checkpoint, Dtype, PagedId, PagedSpec, StateId, StateSpec, WeightForm, WeightId};

use crate::{MemoryNeed, ModelError};

const F32_BYTES: u64 = size_of::<f32>() as u64;

/// Loads tensors of one weight file set onto one device. Without a device it checks that they are all
/// there in the right shapes and adds up what they will take; without files it adds up alone.
pub(crate) struct Loader<'a> {
    checkpoint: Option<&'a Checkpoint>,
    backend: Option<&'a mut dyn Backend>,
    need: MemoryNeed,
    states: Vec<StateId>,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, backend: &'a mut dyn Backend) -> Self {
        Self {
            checkpoint: Some(checkpoint),
            backend: Some(backend),
            need: MemoryNeed::default(),
            states: Vec::new(),
        }
    }

    /// A loader that checks and adds up only. The ids it gives mean nothing.
    pub(crate) fn dry(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint: Some(checkpoint), backend: None, need: MemoryNeed::default(), states: Vec::new() }
    }

    /// A loader of the shapes a config implies: `backend` gets no values.
    #[cfg(test)]
    pub(crate) fn shapes(backend: &'a mut dyn Backend) -> Self {
        Self { checkpoint: None, backend: Some(backend), need: MemoryNeed::default(), states: Vec::new() }
    }

    /// What was taken so far.
    pub(crate) fn need(&self) -> MemoryNeed {
        self.need
    }

    /// The states taken so far, in order.
    pub(crate) fn states(&self) -> &[StateId] {
        &self.states
    }

    /// `[out, in]`. A 1x1 convolution stored as `[out, in, 1]` is the same matrix and is taken too.
    pub(crate) fn matrix(&mut self, name: &str, out: usize, input: usize) -> Result<WeightId, ModelError> {
        let stored = self.checkpoint.and_then(|checkpoint| checkpoint.shape(name).ok());
        let pointwise = stored.is_some_and(|shape| shape.len() == 3);
        let stored: &[usize] = if pointwise { &[out, input, 1] } else { &[out, input] };
        self.computed(name, WeightForm::Matrix, &[out, input], |files| files.values(name, stored))
    }

    /// `[rows, width]`, looked up by row.
    pub(crate) fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<WeightId, ModelError> {
        self.upload(name, WeightForm::Table, &[rows, width])
    }

    pub(crate) fn vector(&mut self, name: &str, width: usize) -> Result<WeightId, ModelError> {
        self.upload(name, WeightForm::Vector, &[width])
    }

    /// Any form, in the checkpoint's own shape.
    pub(crate) fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
    ) -> Result<WeightId, ModelError> {
        self.computed(name, form, shape, |files| files.values(name, shape))
    }

    /// Values made from tensors of the checkpoint, under a name of the caller's choice. Without a
    /// device, `make` still checks the shapes of the tensors it asks for, but gets no values.
    pub(crate) fn computed(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        make: impl FnOnce(&Files<'_>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<WeightId, ModelError> {
        let dry = self.backend.as_ref().is_none_or(|backend| !backend.keeps_values());
        let files = Files { checkpoint: self.checkpoint, dry };
        let values = make(&files)?;
        self.need.weights_bytes += shape.iter().product::<usize>() as u64 * F32_BYTES;
        match &mut self.backend {
            Some(backend) => Ok(backend.upload(name, form, shape, values)?),
            None => Ok(WeightId(0)),
        }
    }

    /// Per-slot rows.
    pub(crate) fn state(&mut self, name: &str, width: usize, dtype: Dtype) -> Result<StateId, ModelError> {
        self.need.slot_bytes += width as u64 * F32_BYTES;
        let state = match &mut self.backend {
            Some(backend) => backend.state(StateSpec { name: name.to_owned(), width, dtype })?,
            None => StateId(0),
        };
        self.states.push(state);
        Ok(state)
    }

    /// Key/value pages.
    pub(crate) fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, ModelError> {
        self.need.position_bytes += (2 * spec.layers * spec.kv_heads * spec.head_dim) as u64 * F32_BYTES;
        match &mut self.backend {
            Some(backend) => Ok(backend.paged(spec)?),
            None => Ok(PagedId(0)),
        }
    }
}

/// Host values of a checkpoint's tensors.
pub(crate) struct Files<'a> {
    checkpoint: Option<&'a Checkpoint>,
    dry: bool,
}

impl Files<'_> {
    /// # Errors
    /// No such tensor, or another shape.
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let Some(checkpoint) = self.checkpoint else { return Ok(Vec::new()) };
        if self.dry && checkpoint.is_random() {
            return Ok(Vec::new());
        }
        if self.dry {
            let found = checkpoint.shape(name)?;
            if found != shape {
                let what = format!("has shape {found:?}, but the config asks for {shape:?}");
                return Err(device::DeviceError::BadTensor { name: name.to_owned(), what }.into());
            }
            return Ok(Vec::new());
        }
        Ok(checkpoint.expect_shape(name, shape)?)
    }
}
