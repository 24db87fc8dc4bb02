//! Records a [`Program`].

use super::{Op, Program, Rows, Value, ValueId};
use crate::{Dtype, StateId};

/// Records values and operations in order.
#[derive(Debug)]
pub struct ProgramBuilder {
    program: Program,
}

impl ProgramBuilder {
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            program: Program {
                name: name.into(),
                values: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                states: Vec::new(),
                ops: Vec::new(),
            },
        }
    }

    /// A launch input; the host fills it, in order of declaration.
    pub fn input(&mut self, name: &str, dtype: Dtype, rows: Rows, cols: usize) -> ValueId {
        let id = self.value(name, dtype, rows, cols);
        self.program.inputs.push(id);
        id
    }

    /// A scratch value of `f32`.
    pub fn scratch(&mut self, name: &str, rows: Rows, cols: usize) -> ValueId {
        self.value(name, Dtype::F32, rows, cols)
    }

    /// A scratch value of any type.
    pub fn value(&mut self, name: &str, dtype: Dtype, rows: Rows, cols: usize) -> ValueId {
        let id = ValueId(u32::try_from(self.program.values.len()).unwrap_or(u32::MAX));
        self.program.values.push(Value { name: name.to_owned(), dtype, rows, cols });
        id
    }

    /// Marks a value to be handed back when a launch completes.
    pub fn output(&mut self, value: ValueId) {
        self.program.outputs.push(value);
    }

    /// Declares that the program touches `state`.
    pub fn touches(&mut self, state: StateId) {
        if !self.program.states.contains(&state) {
            self.program.states.push(state);
        }
    }

    pub fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    #[must_use]
    pub fn shape(&self, value: ValueId) -> &Value {
        self.program.value(value)
    }

    #[must_use]
    pub fn finish(self) -> Program {
        self.program
    }
}
