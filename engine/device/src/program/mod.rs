//! A recorded model program: values, inputs, outputs and a list of operations.

mod build;
mod check;
mod check_op;
mod detail;
mod display;
mod op;
mod operands;

pub use build::ProgramBuilder;
pub use op::{Activation, AttentionShape, ConvShape, Op, Padding, Rope, SampleBound, Snake};
pub use operands::{Operand, Role};

use crate::{Dtype, StateId};

/// A matrix inside one program. Values are written by exactly the ops that name them as `out` (or
/// `target`) and never outlive a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// How many rows a value has at launch time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rows {
    /// `n` rows for each live batch row, consecutive: frames, upsampled steps or samples of one context.
    PerRow(usize),
    /// Packed ragged tokens: the prompts of all live rows, one after the other.
    Tokens,
    /// A count fixed at recording.
    Fixed(usize),
}

impl Rows {
    /// How many there are with `batch` live rows and `tokens` packed tokens.
    #[must_use]
    pub const fn count(self, batch: usize, tokens: usize) -> usize {
        match self {
            Self::PerRow(n) => n * batch,
            Self::Tokens => tokens,
            Self::Fixed(n) => n,
        }
    }
}

/// Shape and element type of a value. Row-major; time is rows, channels are columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub name: String,
    pub dtype: Dtype,
    pub rows: Rows,
    pub cols: usize,
}

/// A recorded program. Made by [`ProgramBuilder`].
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub name: String,
    pub values: Vec<Value>,
    /// Filled from [`crate::Launch::inputs`] in this order.
    pub inputs: Vec<ValueId>,
    /// Returned in [`crate::Completed::result`] in this order.
    pub outputs: Vec<ValueId>,
    /// States the program touches, for checks and for poisoning in debug runs.
    pub states: Vec<StateId>,
    pub ops: Vec<Op>,
}

impl Program {
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// Whether nothing is asked of an input of fixed rows but the rows that launches name: then they need bring no
    /// others.
    #[must_use]
    pub fn is_lookup(&self, id: ValueId) -> bool {
        let only_named = |op: &Op| match *op {
            Op::GatherRows { source, rows, out, .. } if source == id => rows != id && out != id,
            _ => op.operands().iter().all(|operand| operand.value != id),
        };
        matches!(self.value(id).rows, Rows::Fixed(_)) && self.ops.iter().all(only_named)
    }
}
