//! What a backend holds: names and shapes of weights, states and page pools. Every backend keeps one, so
//! that uploads and programs are checked by the same rules everywhere.

use crate::{DeviceError, Dtype, PagedId, PagedSpec, StateId, StateSpec, WeightForm, WeightId};

/// A weight as it was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    pub name: String,
    pub form: WeightForm,
    /// As the form's doc gives it; a trailing kernel of 1 is dropped from a [`WeightForm::Matrix`], and a
    /// [`WeightForm::Vector`] is flat.
    pub shape: Vec<usize>,
}

/// Everything ids refer to.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    weights: Vec<WeightInfo>,
    states: Vec<StateSpec>,
    paged: Vec<PagedSpec>,
}

impl Catalog {
    /// Registers a weight of `count` values.
    ///
    /// # Errors
    /// A shape that does not fit the form or the count.
    pub fn add_weight(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        count: usize,
    ) -> Result<WeightId, DeviceError> {
        let fail = |what: String| DeviceError::BadTensor { name: name.to_owned(), what };
        let product = shape.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis));
        if product != Some(count) || count == 0 {
            return Err(fail(format!("shape {shape:?} does not describe the {count} values given")));
        }
        let shape = match (form, shape) {
            (WeightForm::Matrix, [out, input] | [out, input, 1]) => vec![*out, *input],
            (WeightForm::Table, [_, _])
            | (WeightForm::Conv | WeightForm::ConvTranspose, [_, _, _])
            | (WeightForm::Depthwise, [_, 1, _]) => shape.to_vec(),
            (WeightForm::Vector, _) => vec![count],
            _ => return Err(fail(format!("shape {shape:?} cannot be used as {form:?}"))),
        };
        self.weights.push(WeightInfo { name: name.to_owned(), form, shape });
        Ok(WeightId(index(self.weights.len())))
    }

    /// # Errors
    /// A state without width.
    pub fn add_state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        if spec.width == 0 {
            return Err(DeviceError::BadTensor { name: spec.name, what: "state has no width".to_owned() });
        }
        self.states.push(spec);
        Ok(StateId(index(self.states.len())))
    }

    /// # Errors
    /// A pool without room.
    pub fn add_paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        if spec.layers * spec.kv_heads * spec.head_dim * spec.page_len * spec.pages == 0 {
            return Err(DeviceError::BadTensor { name: spec.name, what: "page pool has no room".to_owned() });
        }
        self.paged.push(spec);
        Ok(PagedId(index(self.paged.len())))
    }

    #[must_use]
    pub fn weight(&self, id: WeightId) -> Option<&WeightInfo> {
        self.weights.get(id.0 as usize)
    }

    #[must_use]
    pub fn state(&self, id: StateId) -> Option<&StateSpec> {
        self.states.get(id.0 as usize)
    }

    #[must_use]
    pub fn paged(&self, id: PagedId) -> Option<&PagedSpec> {
        self.paged.get(id.0 as usize)
    }

    /// Whether a host row fits a state.
    ///
    /// # Errors
    /// No such state, another element type or another width.
    pub fn check_row(&self, state: StateId, dtype: Dtype, width: usize) -> Result<(), DeviceError> {
        let fail = |name: &str, what: String| Err(DeviceError::BadTensor { name: name.to_owned(), what });
        match self.state(state) {
            None => fail("state", format!("no state has id {}", state.0)),
            Some(spec) if (spec.dtype, spec.width) != (dtype, width) => fail(
                &spec.name,
                format!("a row has {} {:?} values, but {width} {dtype:?} were given", spec.width, spec.dtype),
            ),
            Some(_) => Ok(()),
        }
    }
}

/// Index of the last of `len` entries. Ids are 32 bits wide; no model has as many tensors.
fn index(len: usize) -> u32 {
    u32::try_from(len - 1).unwrap_or(u32::MAX)
}
