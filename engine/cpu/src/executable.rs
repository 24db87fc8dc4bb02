//! A program planned for one bucket on one partition.

use std::sync::Arc;

use contract::ShapeKey;
use device::program::{Op, Program, ValueId};
use device::{DeviceError, HostTensor, Launch, PagedId, Piece, StateId};

use crate::memory::Memory;
use crate::plan::{Bounds, Place, Plan, rows};

/// Everything a launch needs that does not change from launch to launch.
#[derive(Debug)]
pub(crate) struct Executable {
    pub(crate) key: ShapeKey,
    pub(crate) program: Program,
    pub(crate) plan: Plan,
    pub(crate) memory: Arc<Memory>,
    /// States by the input that names their slots.
    slots: Vec<(usize, Vec<StateId>)>,
    pub(crate) pages: Vec<PagedId>,
    /// Inputs of which a launch may bring a part.
    lookups: Vec<bool>,
}

/// What a launch in flight holds: slots of states, and page pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) rows: Vec<(StateId, i32)>,
    pub(crate) pages: Vec<PagedId>,
}

impl Executable {
    /// `program` has been checked, and `memory` has all derived forms.
    pub(crate) fn new(key: ShapeKey, program: Program, memory: Arc<Memory>, members: usize) -> Self {
        let bounds = Bounds { batch: key.bucket as usize, tokens: key.length as usize, members };
        let plan = Plan::new(&program, &memory.catalog, bounds);
        let mut slots: Vec<(usize, Vec<StateId>)> = Vec::new();
        let mut pages = Vec::new();
        for op in &program.ops {
            if let Op::PagedAttention { pages: pool, .. } = op
                && !pages.contains(pool)
            {
                pages.push(*pool);
            }
            let Some((state, id)) = state_of(op) else { continue };
            let Place::Input(input) = plan.places[id.0 as usize] else { continue };
            match slots.iter_mut().find(|(known, _)| *known == input) {
                Some((_, states)) if states.contains(&state) => {}
                Some((_, states)) => states.push(state),
                None => slots.push((input, vec![state])),
            }
        }
        let lookups = program.inputs.iter().map(|&id| program.is_lookup(id)).collect();
        Self { key, program, plan, memory, slots, pages, lookups }
    }

    /// Whether a launch's rows and inputs fit, and what it holds.
    ///
    /// # Errors
    /// [`DeviceError::BadInput`].
    pub(crate) fn admit(&self, launch: &Launch) -> Result<Held, DeviceError> {
        let bad = |input: &str, given, expected| {
            Err(DeviceError::BadInput { input: input.to_owned(), given, expected })
        };
        if launch.rows == 0 || launch.rows > self.key.bucket as usize {
            return bad("batch rows", launch.rows, self.key.bucket as usize);
        }
        if launch.tokens > self.key.length as usize && self.counts_tokens() {
            return bad("tokens", launch.tokens, self.key.length as usize);
        }
        if !launch.wanted.is_empty() {
            let first = self.program.outputs.first().map(|&id| self.program.value(id));
            let one =
                first.filter(|value| self.program.outputs.len() == 1 && value.dtype == device::Dtype::F32);
            let width = one.map_or(0, |value| rows(value.rows, 1, 0) * value.cols);
            Piece::check(&launch.wanted, launch.rows, width)?;
        }
        if launch.inputs.len() != self.program.inputs.len() {
            return bad("inputs of the program", launch.inputs.len(), self.program.inputs.len());
        }
        for (input, (&id, tensor)) in self.program.inputs.iter().zip(&launch.inputs).enumerate() {
            let value = self.program.value(id);
            let expected = rows(value.rows, launch.rows, launch.tokens) * value.cols;
            let (dtype, given) = match tensor {
                HostTensor::F32(data) => (device::Dtype::F32, data.len()),
                HostTensor::I32(data) => (device::Dtype::I32, data.len()),
            };
            if dtype != value.dtype {
                return bad(&format!("{} ({:?}, not {dtype:?})", value.name, value.dtype), given, expected);
            }
            let part = self.lookups[input] && given < expected && given.is_multiple_of(value.cols);
            if given != expected && !part {
                return bad(&value.name, given, expected);
            }
        }
        let mut held = Held { rows: Vec::new(), pages: self.pages.clone() };
        for (input, states) in &self.slots {
            let HostTensor::I32(slots) = &launch.inputs[*input] else { continue };
            let mut sorted = slots.clone();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return bad(&format!("slot {} named twice; slots of one launch", twice[0]), 2, 1);
            }
            held.rows.extend(states.iter().flat_map(|&state| slots.iter().map(move |&slot| (state, slot))));
        }
        held.rows.sort_unstable();
        held.rows.dedup();
        Ok(held)
    }

    fn counts_tokens(&self) -> bool {
        self.program.values.iter().any(|value| value.rows == device::program::Rows::Tokens)
    }
}

impl Held {
    /// A state row or a pool both hold.
    pub(crate) fn clash(&self, other: &Self) -> Option<String> {
        if let Some(pool) = self.pages.iter().find(|pool| other.pages.contains(pool)) {
            return Some(format!("page pool {}", pool.0));
        }
        let both = self.rows.iter().find(|row| other.rows.binary_search(row).is_ok());
        both.map(|(state, slot)| format!("slot {slot} of state {}", state.0))
    }
}

/// The state an op touches and the value that names its slots.
fn state_of(op: &Op) -> Option<(StateId, ValueId)> {
    match *op {
        Op::LoadState { state, slots, .. }
        | Op::StoreState { state, slots, .. }
        | Op::WindowAttention { state, slots, .. }
        | Op::CausalDepthwiseConv { state, slots, .. } => Some((state, slots)),
        Op::CausalConv { state, slots, .. } | Op::CausalConvTranspose { state, slots, .. } => {
            state.map(|state| (state, slots))
        }
        Op::Sample { history, slots, .. } => history.map(|state| (state, slots)),
        _ => None,
    }
}

/// Derives the weight forms a program's ops need beyond what was uploaded.
pub(crate) fn derive(memory: &mut Memory, program: &Program) {
    for op in &program.ops {
        match op {
            Op::SnakeBeta { snake, .. } => memory.derive_snake(snake),
            Op::CausalConv { snake: Some(snake), .. } => memory.derive_snake(snake),
            Op::CausalConvTranspose { weight, bias, stride, snake, .. } => {
                if let Some(bias) = bias {
                    memory.derive_repeated(*bias, *stride);
                }
                if let Some(snake) = snake {
                    memory.derive_snake(snake);
                }
                memory.derive_transposed(*weight, *stride);
            }
            Op::LogMel { n_fft, .. } => memory.derive_fourier(*n_fft),
            _ => {}
        }
    }
}
