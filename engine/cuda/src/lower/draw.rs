//! Draws, with what becomes of the drawn id at once.

use device::ValueId;
use device::program::Op;

use super::ready::ReadyRows;
use super::{Arg, Derived, Field, Lowering, Place, field, int_field, maybe};

/// Bytes the kernel copies at a time.
const PIECE: usize = 16;
/// Tables the kernel copies a row of.
const COPIED_MAX: usize = 2;

impl Lowering<'_> {
    /// Lowers the draw at `index`, with the id's place among others and its row of a table where those follow; returns
    /// how many ops that was.
    pub(super) fn draw(&mut self, index: usize) -> usize {
        let &Op::Sample {
            logits,
            params,
            seeds,
            step,
            draw,
            ref bound,
            allow_keep,
            history,
            slots,
            out,
            column,
        } = &self.program.ops[index]
        else {
            unreachable!("only draws are lowered here")
        };
        let mut taken = 1;
        let placed = self.placed_at(index + taken, out);
        taken += usize::from(placed.is_some());
        let (copied, ops) = self.copied_at(index + taken, out);
        taken += ops;
        self.program.ops[index..index + taken].iter().for_each(|op| self.forget_scales(op));

        let vocabulary = self.cols(logits);
        let id = |id: u32| Field::I32(i32::try_from(id).unwrap_or(i32::MAX));
        let (from, to, keep) = match bound {
            Some(bound) => {
                (id(bound.suppress_from), id(bound.suppress_to), bound.keep.map_or(Field::I32(-1), id))
            }
            None => (Field::I32(0), Field::I32(0), Field::I32(-1)),
        };
        let mut fields = vec![
            field(Place::Value(logits)),
            field(Place::Value(params)),
            field(Place::Value(seeds)),
            field(Place::Value(step)),
            maybe(allow_keep),
            field(history.map_or(Place::Null, Place::State)),
            field(Place::Value(slots)),
            field(Place::Value(out)),
            int_field(self.cols(out)),
            int_field(column),
            int_field(vocabulary),
            id(draw),
            from,
            to,
            keep,
        ];
        let (codes, first) = placed.unzip();
        fields.extend([
            maybe(codes),
            int_field(codes.map_or(0, |codes| self.cols(codes))),
            int_field(first.unwrap_or(0)),
        ]);
        for which in 0..COPIED_MAX {
            match copied.get(which) {
                Some(&Copied { pieces, ref table, rows }) => {
                    fields.extend([int_field(pieces), field(table.clone()), field(Place::Value(rows))]);
                }
                None => fields.extend([int_field(0), field(Place::Null), field(Place::Null)]),
            }
        }
        let shared = 2 * vocabulary.next_power_of_two() * size_of::<u64>();
        self.launch("sample", [self.shape.batch, 1, 1], 256, shared, vec![Arg::Struct(fields)]);
        taken
    }

    /// Where among other values the op at `index` places an id alone.
    fn placed_at(&self, index: usize, id: ValueId) -> Option<(ValueId, usize)> {
        match self.program.ops.get(index) {
            Some(&Op::Place { source, out, first }) if source == id && self.cols(id) == 1 => {
                Some((out, first))
            }
            _ => None,
        }
    }

    /// The rows of tables that a draw copies for what follows at `index`, and how many ops that stands for.
    fn copied_at(&self, index: usize, id: ValueId) -> (Vec<Copied>, usize) {
        if let Some(ReadyRows { rows, taken }) = self.ready_at(index, id) {
            let copied = |(ready, out): (_, ValueId)| {
                let bytes = self.cols(out) * self.storage(out).bytes();
                Copied { pieces: bytes / PIECE, table: Place::Weight(Derived::Ready(ready)), rows: out }
            };
            return (rows.into_iter().map(copied).collect(), taken);
        }
        let embedded = self.embedded_at(index, id);
        let taken = usize::from(embedded.is_some());
        (embedded.into_iter().collect(), taken)
    }

    /// The row the op at `index` looks an id up in, where it is a plain copy.
    fn embedded_at(&self, index: usize, id: ValueId) -> Option<Copied> {
        let Some(&Op::Embed { table, ids, out, accumulate: false }) = self.program.ops.get(index) else {
            return None;
        };
        let bytes = self.cols(out) * self.factor().bytes();
        let copies = ids == id
            && self.cols(id) == 1
            && self.storage(out) == self.factor()
            && self.rows_of(out) == self.shape.batch
            && bytes.is_multiple_of(PIECE);
        let table = Place::Weight(Derived::Plain { id: table, bf16: self.factor().is_bf16() });
        copies.then_some(Copied { pieces: bytes / PIECE, table, rows: out })
    }
}

/// A row of a table, copied by a draw.
struct Copied {
    /// Of [`PIECE`] bytes.
    pieces: usize,
    table: Place,
    rows: ValueId,
}
