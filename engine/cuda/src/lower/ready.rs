//! What follows the lookup of a drawn id, where it depends on the id alone (the row brought to another width, and its norm),
//! is worked out once for every id of the table; a draw then copies its id's row.

use device::program::{Op, Program, ProgramBuilder, Rows};
use device::{Catalog, Dtype, ValueId, WeightId};

use super::Lowering;

/// A table's rows as whoever reads them wants them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ready {
    pub(crate) table: WeightId,
    /// Weight and bias of the product behind the lookup.
    pub(crate) projection: Option<(WeightId, Option<WeightId>)>,
    /// Weight of the RMS norm behind it, and epsilon's bits. Without one the rows are a stream, in f32.
    pub(crate) norm: Option<(WeightId, u32)>,
    /// Whether the rows are kept in bf16.
    pub(crate) bf16: bool,
}

/// Rows that a draw copies in place of the ops behind it.
pub(super) struct ReadyRows {
    /// What is copied, and to where.
    pub(super) rows: Vec<(Ready, ValueId)>,
    /// Ops this stands for.
    pub(super) taken: usize,
}

impl Ready {
    /// Ids in, rows out: the ops these rows stand for.
    pub(crate) fn program(&self, catalog: &Catalog) -> Program {
        let shape = |id: WeightId| catalog.weight(id).map_or([0, 0], |info| [info.shape[0], info.shape[1]]);
        let mut builder = ProgramBuilder::new("rows of a table");
        let row = Rows::PerRow(1);
        let ids = builder.input("ids", Dtype::I32, row, 1);
        let mut out = builder.scratch("embedded", row, shape(self.table)[1]);
        builder.push(Op::Embed { table: self.table, ids, out, accumulate: false });
        if let Some((weight, bias)) = self.projection {
            let input = out;
            out = builder.scratch("stream", row, shape(weight)[0]);
            builder.push(Op::Linear { input, weight, bias, activation: None, residual: None, out });
        }
        if let Some((weight, eps)) = self.norm {
            let (input, eps) = (out, f32::from_bits(eps));
            out = builder.scratch("normed", row, builder.shape(input).cols);
            builder.push(Op::RmsNorm { input, weight, eps, out });
        }
        builder.output(out);
        builder.finish()
    }
}

impl Lowering<'_> {
    /// The rows that stand for the ops from `index` on, where these look a drawn `id` up and make a stream of it.
    pub(super) fn ready_at(&self, index: usize, id: ValueId) -> Option<ReadyRows> {
        let op = |after: usize| self.program.ops.get(index + after);
        let Some(&Op::Embed { table, ids, out: embedded, accumulate: false }) = op(0) else { return None };
        let (projection, stream) = match op(1) {
            Some(&Op::Linear { input, weight, bias, activation: None, residual: None, out })
                if input == embedded =>
            {
                (Some((weight, bias)), out)
            }
            Some(&Op::Reshape { source, out })
                if source == embedded && self.cols(out) == self.cols(source) =>
            {
                (None, out)
            }
            _ => return None,
        };
        let a_row_each = |value: ValueId| self.rows_of(value) == self.shape.batch;
        let fits = ids == id && self.cols(id) == 1 && a_row_each(stream) && self.is_last(index + 1, embedded);
        if !fits || self.storage(stream).is_bf16() || !self.cols(stream).is_multiple_of(COLS) {
            return None;
        }
        let ready = Ready { table, projection, norm: None, bf16: false };
        let mut rows = vec![(ready.clone(), stream)];
        if let Some(&Op::RmsNorm { input, weight, eps, out }) = op(2)
            && input == stream
            && a_row_each(out)
            && self.storage(out) == self.factor()
        {
            let (norm, bf16) = (Some((weight, eps.to_bits())), self.storage(out).is_bf16());
            rows.push((Ready { norm, bf16, ..ready }, out));
        }
        Some(ReadyRows { taken: 1 + rows.len(), rows })
    }
}

/// Columns of a multiple of which rows are copied 16 bytes at a time, in either type.
const COLS: usize = 8;
