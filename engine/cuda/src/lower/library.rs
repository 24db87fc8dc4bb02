//! Products by the library (cuBLASLt). It has better tiles for many rows than the kernels here; these take norms, sums and
//! gates in, which outweighs that for few rows.

use device::program::{Op, Role};
use device::{ValueId, WeightId};

use super::dense::{Branch, joined};
use super::product::Left;
use super::{Arg, Derived, Field, Lowering, Matmul, Place, Step, Storage, at, int, long};

/// What the library's launches are called.
pub(crate) const LIBRARY: &str = "matmul";
/// Columns a thread gates.
const GATED: usize = 8;

/// Where a value lies that is some columns of a wider result in f32.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) field: Field,
    /// Values from a row to the next.
    pub(super) stride: usize,
}

impl Lowering<'_> {
    /// Whether the library multiplies so many rows into so many columns.
    pub(super) fn suits_library(&self, rows: usize, cols: usize, depth: usize) -> bool {
        let many = self.target.library_from.is_some_and(|from| rows >= from);
        many && self.factor().is_bf16() && cols.is_multiple_of(8) && depth.is_multiple_of(8)
    }

    /// Linear layers from `index` on that share their input, or one with the branch it is, by the library; how many ops that
    /// took, if it can.
    pub(super) fn library_linear(
        &mut self,
        index: usize,
        group: usize,
        branch: Option<Branch>,
    ) -> Option<usize> {
        let Op::Linear { input, activation: None, residual, out, .. } = self.program.ops[index] else {
            return None;
        };
        let (residual, out) = joined(branch, residual, out);
        let ops = &self.program.ops[index..index + group];
        let outs: Vec<(WeightId, ValueId)> = ops
            .iter()
            .filter_map(|op| match *op {
                Op::Linear { weight, bias: None, out, .. } => Some((weight, out)),
                _ => None,
            })
            .collect();
        let cols: usize = outs.iter().map(|(_, out)| self.cols(*out)).sum();
        let (rows, depth) = (self.rows_of(input), self.cols(input));
        let in_place = residual.is_none_or(|stream| stream == out && self.storage(out) == Storage::F32);
        if outs.len() < group
            || !in_place
            || !self.suits_library(rows, cols, depth)
            || self.scale_of(input).is_some()
        {
            return None;
        }
        if group == 1 {
            let left = self.left(input);
            let weight = self.scaled_matrix(outs[0].0, branch.and_then(|branch| branch.scale));
            self.matmul(left, weight, cols, Place::Value(out), self.storage(out), residual.is_some());
            return Some(1 + usize::from(branch.is_some()));
        }
        if outs
            .iter()
            .any(|(_, out)| self.storage(*out).is_bf16() || !self.feeds_attention(index + group, *out))
        {
            return None;
        }
        let left = self.left(input);
        let (weights, outs): (Vec<_>, Vec<_>) = outs.into_iter().unzip();
        let whole = self.temp(rows * cols * Storage::F32.bytes());
        self.matmul(
            left,
            Place::Weight(Derived::Stacked { ids: weights }),
            cols,
            whole.clone(),
            Storage::F32,
            false,
        );
        let mut first = 0;
        for out in outs {
            let field = Field::At(whole.clone(), (first * Storage::F32.bytes()) as u64);
            self.parts.push((out, Part { field, stride: cols }));
            first += self.cols(out);
        }
        Some(group)
    }

    /// Gate and up of a gated pair, by the library, and their product into `between`; whether it can.
    pub(super) fn library_gates(
        &mut self,
        input: ValueId,
        gate: WeightId,
        up: WeightId,
        between: &Place,
    ) -> bool {
        let inner = self.catalog.weight(gate).map_or(0, |weight| weight.shape[0]);
        let (rows, depth) = (self.rows_of(input), self.cols(input));
        if !self.suits_library(rows, 2 * inner, depth)
            || !inner.is_multiple_of(GATED)
            || self.scale_of(input).is_some()
        {
            return false;
        }
        let left = self.left(input);
        let both = self.temp(rows * 2 * inner * Storage::Bf16.bytes());
        let weight = Place::Weight(Derived::Stacked { ids: vec![gate, up] });
        self.matmul(left, weight, 2 * inner, both.clone(), Storage::Bf16, false);
        let n = rows * inner;
        let args = vec![at(both), at(between.clone()), int(inner), long(n)];
        let blocks = n.div_ceil(GATED * super::THREADS as usize);
        self.launch("gated_silu", [blocks, 1, 1], super::THREADS, 0, args);
        true
    }

    pub(super) fn matmul(
        &mut self,
        left: Left,
        weight: Place,
        cols: usize,
        out: Place,
        storage: Storage,
        add: bool,
    ) {
        let Left { at: rows_at, rows, cin: depth, .. } = left;
        let args = [rows_at, weight, out, Place::Workspace].map(|place| Arg::One(Field::At(place, 0)));
        self.steps.push(Step {
            library: Some(Matmul { rows, cols, depth, out_bf16: storage.is_bf16(), add }),
            kernel: LIBRARY.into(),
            grid: [1, 1, 1],
            block: 1,
            shared: 0,
            cluster: 1,
            args: args.into(),
        });
    }

    pub(super) fn matrix(&self, id: WeightId) -> Place {
        Place::Weight(Derived::Plain { id, bf16: self.factor().is_bf16() })
    }

    /// Where a value's rows lie, and how many values lie from one to the next.
    pub(super) fn rows_at(&self, id: ValueId) -> (Field, usize) {
        let part = self.parts.iter().find(|(part, _)| *part == id);
        part.map_or_else(
            || (Field::At(Place::Value(id), 0), self.cols(id)),
            |(_, part)| (part.field.clone(), part.stride),
        )
    }

    /// Whether only attention reads `id` from op `index` on until it is written again.
    fn feeds_attention(&self, index: usize, id: ValueId) -> bool {
        if self.program.outputs.contains(&id) {
            return false;
        }
        for op in &self.program.ops[index..] {
            for operand in op.operands().iter().filter(|operand| operand.value == id) {
                let attends = matches!(
                    op,
                    Op::PagedAttention { .. }
                        | Op::DepthAttention { .. }
                        | Op::WindowAttention { .. }
                        | Op::LocalAttention { .. }
                );
                match operand.role {
                    Role::Write => return true,
                    Role::Read if attends => {}
                    _ => return false,
                }
            }
        }
        true
    }
}
