//! Ops that are matrix products: linear layers alone, in threes that share an input, into a stream; gated pairs.

use device::program::{Op, Role};
use device::{ValueId, WeightId};

use super::product::{Factor, Left, Product, whole};
use super::{Derived, Field, Lowering, Place, Storage, at, field, long, maybe_vector, value};

/// A stream that a result is added to, and what scales the result's columns on the way.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    pub(super) stream: ValueId,
    pub(super) scale: Option<WeightId>,
}

/// What a linear layer's result is added to, and where it goes: into its branch's stream where it has one.
pub(super) fn joined(
    branch: Option<Branch>,
    residual: Option<ValueId>,
    out: ValueId,
) -> (Option<ValueId>, ValueId) {
    branch.map_or((residual, out), |Branch { stream, .. }| (Some(stream), stream))
}

impl Lowering<'_> {
    /// Lowers the product at `index`; returns how many ops it took in.
    pub(super) fn dense(&mut self, index: usize) -> usize {
        match self.program.ops[index] {
            Op::Linear { input, .. } => self.linear(index, input),
            Op::GatedMlp { input, gate, up, down, out } => {
                self.gated_mlp(index, input, [gate, up, down], out)
            }
            _ => unreachable!("only products are lowered here"),
        }
    }

    /// Linear layers from `index` on that share their input, or one and the stream it is added to.
    fn linear(&mut self, index: usize, input: ValueId) -> usize {
        let group = self.siblings(index);
        let program = self.program;
        program.ops[index..index + group].iter().for_each(|op| self.forget_scales(op));
        let branch = self.linear_branch(index).filter(|_| group == 1);
        if branch.is_some() {
            self.forget_scales(&program.ops[index + 1]);
        }
        if let Some(taken) = self.library_linear(index, group, branch) {
            return taken;
        }
        let left = self.left(input);
        let mut factors = Vec::new();
        let weights = weights_of(&program.ops[index..index + group]);
        let taken = group + usize::from(branch.is_some());
        let (mut act, mut sum, mut storage, mut norm) = (None, None, Storage::F32, None);
        for op in &program.ops[index..index + group] {
            let Op::Linear { weight, bias, activation, residual, out, .. } = *op else { continue };
            let (residual, out) = joined(branch, residual, out);
            let from = match branch {
                Some(Branch { scale, .. }) => field(self.scaled_matrix(weight, scale)),
                None => self.weight_in(&weights, weight),
            };
            factors.push(Factor {
                weight: from,
                bias: maybe_vector(bias),
                out: Place::Value(out),
                cols: self.cols(out),
            });
            act = activation;
            sum = residual.map(|id| (Place::Value(id), self.storage(id)));
            storage = self.storage(out);
            let stream = group == 1 && residual.is_none_or(|stream| stream == out);
            norm = self.norm_at(index + taken, out).filter(|_| stream);
        }
        let factor = self.factor();
        let normed = self.product(Product {
            left,
            factors,
            gated: false,
            activation: act,
            residual: sum,
            out: storage,
            factor,
            norm,
        });
        taken + usize::from(normed)
    }

    /// Where what a linear layer makes goes, when the next op adds it to a stream.
    fn linear_branch(&self, index: usize) -> Option<Branch> {
        match self.program.ops[index] {
            Op::Linear { bias: None, activation: None, residual: None, out, .. } => {
                self.branch_after(index, out)
            }
            _ => None,
        }
    }

    /// The stream that the next op adds what op `index` makes to, where nothing else reads that. A scale becomes part of the
    /// matrix in bf16; in f32 results are what the reference's order of operations makes them.
    fn branch_after(&self, index: usize, out: ValueId) -> Option<Branch> {
        match self.program.ops.get(index + 1) {
            Some(&Op::AddScaled { target: stream, input, scale })
                if input == out && stream != out && self.is_last(index + 1, out) =>
            {
                (scale.is_none() || self.factor().is_bf16()).then_some(Branch { stream, scale })
            }
            _ => None,
        }
    }

    /// A matrix, its rows scaled where a scale says so.
    pub(super) fn scaled_matrix(&self, id: WeightId, scale: Option<WeightId>) -> Place {
        scale.map_or_else(|| self.matrix(id), |scale| Place::Weight(Derived::Scaled { id, scale }))
    }

    /// How many linear layers from `index` on share input and kind, and can be one launch: up to three.
    fn siblings(&self, index: usize) -> usize {
        let plain = |op: &Op| match *op {
            Op::Linear { input, activation: None, residual: None, out, .. } => {
                Some((input, self.storage(out)))
            }
            _ => None,
        };
        let Some(first) = plain(&self.program.ops[index]) else { return 1 };
        let more = self.program.ops[index + 1..].iter().take(2);
        1 + more.take_while(|op| plain(op) == Some(first)).count()
    }

    /// Where `weight` lies, one of those that are multiplied together: in bf16 they lie one below the other, so that the
    /// library can take them for one.
    fn weight_in(&self, weights: &[WeightId], weight: WeightId) -> Field {
        if weights.len() < 2 || !self.factor().is_bf16() {
            return field(self.matrix(weight));
        }
        let values = |id: &WeightId| self.catalog.weight(*id).map_or(0, |info| info.shape.iter().product());
        let before = weights.iter().take_while(|id| **id != weight).map(values).sum::<usize>();
        let bytes = (before * Storage::Bf16.bytes()) as u64;
        Field::At(Place::Weight(Derived::Stacked { ids: weights.to_vec() }), bytes)
    }

    /// A value as the left factor, brought to the factors' type.
    pub(super) fn left(&mut self, input: ValueId) -> Left {
        let (rows, cols) = (self.rows_of(input), self.cols(input));
        let place = if self.storage(input) == self.factor() {
            Place::Value(input)
        } else {
            let n = rows * cols;
            let temp = self.temp(2 * n);
            self.each("to_bf16", n, vec![value(input), at(temp.clone()), long(n)]);
            temp
        };
        Left { scale: self.scale_of(input), ..whole(place, rows, cols) }
    }

    /// `down(silu(gate x) * up x)`, and the stream it is added to, when that is the next op.
    fn gated_mlp(&mut self, index: usize, input: ValueId, weights: [WeightId; 3], out: ValueId) -> usize {
        let [gate, up, down] = weights;
        let (rows, factor) = (self.rows_of(input), self.factor());
        let inner = self.catalog.weight(gate).map_or(0, |weight| weight.shape[0]);
        let between = self.temp(rows * inner * factor.bytes());
        if !self.library_gates(input, gate, up, &between) {
            let left = self.left(input);
            let factors = [gate, up].map(|id| Factor {
                weight: self.weight_in(&[gate, up], id),
                bias: Place::Null,
                out: between.clone(),
                cols: inner,
            });
            self.product(Product {
                left,
                factors: factors.into(),
                gated: true,
                activation: None,
                residual: None,
                out: factor,
                factor,
                norm: None,
            });
        }
        let (target, scale, taken) = match self.branch_after(index, out) {
            Some(Branch { stream, scale }) => (stream, scale, 2),
            None => (out, None, 1),
        };
        let residual = (taken == 2).then(|| (Place::Value(target), self.storage(target)));
        let weight = self.scaled_matrix(down, scale);
        let storage = self.storage(target);
        let add = residual.is_some();
        if self.suits_library(rows, self.cols(target), inner) && (!add || storage == Storage::F32) {
            let cols = self.cols(target);
            self.matmul(whole(between, rows, inner), weight, cols, Place::Value(target), storage, add);
            return taken;
        }
        let down = Factor {
            weight: field(weight),
            bias: Place::Null,
            out: Place::Value(target),
            cols: self.cols(target),
        };
        let norm = residual.as_ref().and_then(|_| self.norm_at(index + taken, target));
        let normed = self.product(Product {
            left: whole(between, rows, inner),
            factors: vec![down],
            gated: false,
            activation: None,
            residual,
            out: storage,
            factor,
            norm,
        });
        taken + usize::from(normed)
    }

    /// Whether nothing reads `id` after op `index` before it is written again.
    pub(super) fn is_last(&self, index: usize, id: ValueId) -> bool {
        if self.program.outputs.contains(&id) {
            return false;
        }
        let later = self.program.ops[index + 1..].iter().flat_map(Op::operands);
        let next = later.into_iter().find(|operand| operand.value == id);
        next.is_none_or(|operand| matches!(operand.role, Role::Write))
    }
}

/// The matrices of linear layers.
fn weights_of(ops: &[Op]) -> Vec<WeightId> {
    let weight = |op: &Op| match *op {
        Op::Linear { weight, .. } => Some(weight),
        _ => None,
    };
    ops.iter().filter_map(weight).collect()
}
