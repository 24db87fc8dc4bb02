//! Checks a recorded program against what the backend holds, so that a launch can only fail for the
//! processor's own reasons.

use super::{AttentionShape, ConvShape, Op, Padding, Program, Role, Rows, Snake, Value, ValueId};
use crate::{Catalog, DeviceError, Dtype, PagedId, StateId, WeightForm, WeightId};

impl Program {
    /// Every op's ids, shapes, types and rows agree; nothing is read before it is written; outputs are
    /// written; inputs are not.
    ///
    /// # Errors
    /// [`DeviceError::BadProgram`] with the op's index (the number of ops for a fault of the whole) and
    /// the value at fault.
    pub fn check(&self, catalog: &Catalog) -> Result<(), DeviceError> {
        let mut checker = Checker { program: self, catalog, op: self.ops.len() };
        for &id in self.inputs.iter().chain(&self.outputs) {
            checker.value(id)?;
        }
        let mut written: Vec<Vec<bool>> = self.values.iter().map(|value| vec![false; value.cols]).collect();
        for &id in &self.inputs {
            written[id.0 as usize].fill(true);
        }
        for (index, op) in self.ops.iter().enumerate() {
            checker.op = index;
            checker.flow(op, &mut written)?;
            checker.op(op)?;
        }
        checker.op = self.ops.len();
        for &id in &self.outputs {
            checker.ensure(written[id.0 as usize].iter().all(|&w| w), || {
                format!("output {} is never written in full", self.value(id).name)
            })?;
        }
        Ok(())
    }
}

pub(super) struct Checker<'a> {
    program: &'a Program,
    pub(super) catalog: &'a Catalog,
    op: usize,
}

type Checked = Result<(), DeviceError>;

impl Checker<'_> {
    fn fail<T>(&self, what: String) -> Result<T, DeviceError> {
        let name = self.program.ops.get(self.op).map_or("the program", Op::name);
        Err(DeviceError::BadProgram {
            program: self.program.name.clone(),
            op: self.op,
            what: format!("{name}: {what}"),
        })
    }

    pub(super) fn ensure(&self, holds: bool, what: impl FnOnce() -> String) -> Checked {
        if holds { Ok(()) } else { self.fail(what()) }
    }

    pub(super) fn value(&self, id: ValueId) -> Result<&Value, DeviceError> {
        match self.program.values.get(id.0 as usize) {
            Some(value) if value.cols > 0 => Ok(value),
            Some(value) => self.fail(format!("value {} has no columns", value.name)),
            None => self.fail(format!("value {} is not of this program", id.0)),
        }
    }

    /// Reads come after writes; outputs never alias what they are made from.
    fn flow(&self, op: &Op, written: &mut [Vec<bool>]) -> Checked {
        let operands = op.operands();
        for operand in &operands {
            let value = self.value(operand.value)?;
            let columns = &written[operand.value.0 as usize];
            if matches!(operand.role, Role::Read | Role::Update) {
                self.ensure(columns.iter().all(|&w| w), || {
                    format!("{} {} is read before it is written in full", operand.field, value.name)
                })?;
            }
            if operand.role != Role::Read {
                self.ensure(!self.program.inputs.contains(&operand.value), || {
                    format!("{} {} is an input and cannot be written", operand.field, value.name)
                })?;
                let in_place = op.in_place() == Some(operand.value);
                let clash = operands
                    .iter()
                    .find(|other| other.value == operand.value && other.field != operand.field);
                self.ensure(in_place || clash.is_none(), || {
                    format!("{} {} is also an operand", operand.field, value.name)
                })?;
            }
        }
        for operand in &operands {
            let columns = &mut written[operand.value.0 as usize];
            match operand.role {
                Role::Write | Role::Update => columns.fill(true),
                Role::WriteColumns => {
                    let (first, count) = self.columns_written(op)?;
                    let range = first..first.saturating_add(count);
                    match columns.get_mut(range.clone()) {
                        Some(part) => part.fill(true),
                        None => return self.fail(format!("columns {range:?} are outside {}", operand.field)),
                    }
                }
                Role::Read | Role::Scratch => {}
            }
        }
        Ok(())
    }

    fn columns_written(&self, op: &Op) -> Result<(usize, usize), DeviceError> {
        Ok(match *op {
            Op::Place { source, first, .. } => (first, self.value(source)?.cols),
            Op::Sample { column, .. } | Op::QuantizeResidual { column, .. } => (column, 1),
            _ => (0, 0),
        })
    }

    pub(super) fn cols(&self, id: ValueId, cols: usize, why: &str) -> Checked {
        let value = self.value(id)?;
        self.ensure(value.cols == cols, || {
            format!("{} has {} columns, but {why} asks for {cols}", value.name, value.cols)
        })
    }

    pub(super) fn same_rows(&self, a: ValueId, b: ValueId) -> Checked {
        let (a, b) = (self.value(a)?, self.value(b)?);
        self.ensure(a.rows == b.rows, || {
            format!("{} has {} rows, but {} has {}", a.name, a.rows, b.name, b.rows)
        })
    }

    pub(super) fn rows(&self, id: ValueId, rows: Rows) -> Checked {
        let value = self.value(id)?;
        self.ensure(value.rows == rows, || {
            format!("{} has {} rows, but must have {rows}", value.name, value.rows)
        })
    }

    pub(super) fn dtype(&self, dtype: Dtype, ids: &[ValueId]) -> Checked {
        ids.iter().try_for_each(|&id| {
            let value = self.value(id)?;
            self.ensure(value.dtype == dtype, || {
                format!("{} is {:?}, but must be {dtype:?}", value.name, value.dtype)
            })
        })
    }

    /// Same rows, columns and type.
    pub(super) fn same(&self, a: ValueId, b: ValueId) -> Checked {
        let first = self.value(a)?;
        self.same_rows(a, b)?;
        self.cols(b, first.cols, &first.name)?;
        self.dtype(first.dtype, &[b])
    }

    /// One value a batch row.
    pub(super) fn per_row(&self, ids: &[ValueId]) -> Checked {
        ids.iter().try_for_each(|&id| {
            self.rows(id, Rows::PerRow(1))?;
            self.cols(id, 1, "one value a row")?;
            self.dtype(Dtype::I32, &[id])
        })
    }

    /// Rows of one batch row of a per-row value.
    pub(super) fn steps(&self, id: ValueId) -> Result<usize, DeviceError> {
        let value = self.value(id)?;
        match value.rows {
            Rows::PerRow(n) if n > 0 => Ok(n),
            rows => self.fail(format!("{} has {rows} rows, but must have a multiple of B", value.name)),
        }
    }

    pub(super) fn fixed(&self, id: ValueId) -> Result<usize, DeviceError> {
        let value = self.value(id)?;
        match value.rows {
            Rows::Fixed(n) if n > 0 => Ok(n),
            rows => self.fail(format!("{} has {rows} rows, but must have a fixed number", value.name)),
        }
    }

    pub(super) fn weight(&self, id: WeightId, form: WeightForm, shape: &[usize]) -> Checked {
        let Some(weight) = self.catalog.weight(id) else {
            return self.fail(format!("weight {} does not exist", id.0));
        };
        self.ensure(weight.form == form && weight.shape == shape, || {
            format!(
                "weight {} is {:?} {:?}, but must be {form:?} {shape:?}",
                weight.name, weight.form, weight.shape
            )
        })
    }

    /// Rows of a table `width` wide.
    pub(super) fn table(&self, id: WeightId, width: usize) -> Checked {
        let rows = self.catalog.weight(id).map_or(0, |weight| weight.shape[0]);
        self.weight(id, WeightForm::Table, &[rows, width])
    }

    pub(super) fn vectors(&self, ids: &[Option<WeightId>], width: usize) -> Checked {
        ids.iter().flatten().try_for_each(|&id| self.weight(id, WeightForm::Vector, &[width]))
    }

    pub(super) fn snake(&self, snake: Option<&Snake>, width: usize) -> Checked {
        snake.map_or(Ok(()), |snake| self.vectors(&[Some(snake.alpha), Some(snake.beta)], width))
    }

    pub(super) fn state(&self, id: StateId, dtype: Dtype, width: usize) -> Checked {
        let Some(spec) = self.catalog.state(id) else {
            return self.fail(format!("state {} does not exist", id.0));
        };
        self.ensure((spec.dtype, spec.width) == (dtype, width), || {
            format!(
                "state {} holds {} {:?} values a slot, but {width} {dtype:?} are needed",
                spec.name, spec.width, spec.dtype
            )
        })
    }

    /// A state of history rows; none is needed where nothing is carried.
    pub(super) fn history(&self, state: Option<StateId>, width: usize) -> Checked {
        match state {
            Some(state) => self.state(state, Dtype::F32, width),
            None => self.ensure(width == 0, || format!("{width} values are carried, but no state is given")),
        }
    }

    pub(super) fn attention(&self, shape: &AttentionShape, q: ValueId, k: ValueId, v: ValueId) -> Checked {
        let &AttentionShape { heads, kv_heads, head_dim, .. } = shape;
        self.ensure(kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
            format!("{heads} heads cannot share {kv_heads} key heads")
        })?;
        self.ensure(head_dim > 0 && head_dim.is_multiple_of(2), || {
            format!("head dim {head_dim} is not even")
        })?;
        self.dtype(Dtype::F32, &[q, k, v])?;
        self.same_rows(q, k)?;
        self.same_rows(q, v)?;
        self.cols(q, heads * head_dim, "heads")?;
        self.cols(k, kv_heads * head_dim, "kv heads")?;
        self.cols(v, kv_heads * head_dim, "kv heads")
    }

    pub(super) fn paged(&self, pages: PagedId, layer: usize, shape: &AttentionShape) -> Checked {
        let Some(spec) = self.catalog.paged(pages) else {
            return self.fail(format!("page pool {} does not exist", pages.0));
        };
        self.ensure(
            layer < spec.layers && (spec.kv_heads, spec.head_dim) == (shape.kv_heads, shape.head_dim),
            || {
                format!(
                    "pool {} has {} layers of {} x {}, but layer {layer} of {} x {} is asked",
                    spec.name, spec.layers, spec.kv_heads, spec.head_dim, shape.kv_heads, shape.head_dim
                )
            },
        )
    }

    /// Rows a stateless convolution makes of `rows`.
    pub(super) fn conv_rows(
        &self,
        rows: usize,
        shape: &ConvShape,
        padding: Padding,
    ) -> Result<usize, DeviceError> {
        let (Padding::Zeros { left, right }
        | Padding::Reflect { left, right }
        | Padding::Replicate { left, right }) = padding;
        self.ensure(shape.kernel > 0 && shape.stride > 0 && shape.dilation > 0, || {
            "kernel, stride and dilation must be at least 1".to_owned()
        })?;
        if matches!(padding, Padding::Reflect { .. }) {
            self.ensure(left < rows && right < rows, || {
                format!("{rows} rows are too few to mirror {left} and {right}")
            })?;
        }
        let span = (shape.kernel - 1) * shape.dilation + 1;
        match (rows + left + right).checked_sub(span) {
            Some(rest) => Ok(rest / shape.stride + 1),
            None => self.fail(format!("{rows} rows are fewer than the kernel spans ({span})")),
        }
    }
}
