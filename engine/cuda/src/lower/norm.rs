//! A stream's RMS norm taken into the products around it: the product that writes the stream also writes it times the
//! norm's weight, with each row's squares summed by tile; the products that read the normed rows scale their results.

use device::program::{Op, Role};
use device::{ValueId, WeightId};

use super::product::suits_hopper;
use super::{Lowering, Place};

/// What a row's result is to be scaled by: `rsqrt(sum of the row of squares / columns + eps)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowScale {
    /// `[rows, tiles]`.
    pub(super) squares: Place,
    pub(super) tiles: usize,
    pub(super) eps: f32,
}

/// A norm that follows a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Norm {
    pub(super) weight: WeightId,
    pub(super) eps: f32,
    pub(super) out: ValueId,
}

impl Lowering<'_> {
    /// The norm of `stream` at op `index`, when all that reads its result can scale by rows.
    pub(super) fn norm_at(&self, index: usize, stream: ValueId) -> Option<Norm> {
        let Some(&Op::RmsNorm { input, weight, eps, out }) = self.program.ops.get(index) else { return None };
        let fits =
            input == stream && self.storage(out).is_bf16() && self.rows_of(out) == self.rows_of(stream);
        (fits && self.feeds_products(index, out)).then_some(Norm { weight, eps, out })
    }

    /// Whether only products on Hopper's matrix instructions read `id` until it is written again.
    fn feeds_products(&self, index: usize, id: ValueId) -> bool {
        if self.program.outputs.contains(&id) || !self.cols(id).is_multiple_of(8) {
            return false;
        }
        for op in &self.program.ops[index + 1..] {
            for operand in op.operands().iter().filter(|operand| operand.value == id) {
                match operand.role {
                    Role::Write => return true,
                    Role::Read if operand.field == "input" && self.suits(op) => {}
                    _ => return false,
                }
            }
        }
        true
    }

    fn suits(&self, op: &Op) -> bool {
        match *op {
            Op::Linear { input, activation, out, .. } => {
                let cols = self.cols(out);
                suits_hopper(&[cols], activation)
                    && !self.suits_library(self.rows_of(input), cols, self.cols(input))
            }
            Op::GatedMlp { input, gate, .. } => {
                let inner = self.catalog.weight(gate).map_or(0, |weight| weight.shape[0]);
                suits_hopper(&[inner], None)
                    && !self.suits_library(self.rows_of(input), inner, self.cols(input))
            }
            _ => false,
        }
    }

    /// How rows of `id` are to be scaled, when a product left them so.
    pub(super) fn scale_of(&self, id: ValueId) -> Option<RowScale> {
        self.scaled.iter().find(|(scaled, _)| *scaled == id).map(|(_, scale)| scale.clone())
    }

    /// What `op` writes is what it says from here on.
    pub(super) fn forget_scales(&mut self, op: &Op) {
        if self.scaled.is_empty() && self.parts.is_empty() {
            return;
        }
        for operand in op.operands() {
            if !matches!(operand.role, Role::Read) {
                self.scaled.retain(|(id, _)| *id != operand.value);
                self.parts.retain(|(id, _)| *id != operand.value);
            }
        }
    }
}
