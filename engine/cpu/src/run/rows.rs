//! Ops that move rows.

use device::program::Op;

use super::{Matrix, Run};
use crate::kernel;

impl Run<'_> {
    pub(super) fn moves(&self, op: &Op) {
        match *op {
            Op::Embed { table, ids, out, accumulate } => {
                let (ids, out) = (self.value(ids), self.value(out));
                let table = self.exe.memory.raw(table);
                for row in self.member.share(out.rows, out.cols) {
                    let target = out.row_mut(row);
                    if !accumulate {
                        target.fill(0.0);
                    }
                    look_up(table, ids.ints()[row], target);
                }
            }
            Op::EmbedSum { ref tables, codes, out, accumulate } => {
                let (codes, out) = (self.value(codes), self.value(out));
                for row in self.member.share(out.rows, out.cols * tables.len()) {
                    let target = out.row_mut(row);
                    if !accumulate {
                        target.fill(0.0);
                    }
                    for (group, &table) in tables.iter().enumerate() {
                        look_up(self.exe.memory.raw(table), codes.ints()[row * codes.cols + group], target);
                    }
                }
            }
            Op::GatherRows { source, rows, out, accumulate } => {
                let (source, rows, out) = (self.value(source), self.value(rows), self.value(out));
                for row in self.member.share(out.rows, out.cols) {
                    let target = out.row_mut(row);
                    match (usize::try_from(rows.ints()[row]), accumulate) {
                        (Ok(from), true) => kernel::add(target, source.row(from)),
                        (Ok(from), false) => target.copy_from_slice(source.row(from)),
                        (Err(_), true) => {}
                        (Err(_), false) => target.fill(0.0),
                    }
                }
            }
            Op::Slice { source, first, out } => {
                let (source, out) = (self.value(source), self.value(out));
                for row in self.member.share(out.rows, out.cols) {
                    out.row_mut(row).copy_from_slice(&source.row(row)[first..first + out.cols]);
                }
            }
            Op::Place { source, out, first } => {
                let (source, out) = (self.value(source), self.value(out));
                for row in self.member.share(source.rows, source.cols) {
                    out.row_mut(row)[first..first + source.cols].copy_from_slice(source.row(row));
                }
            }
            Op::Reshape { source, out } => {
                let (source, out) = (self.value(source), self.value(out));
                for row in self.member.share(out.rows, out.cols) {
                    // SAFETY: both hold the same number of words.
                    let from =
                        unsafe { std::slice::from_raw_parts(source.ptr().add(row * out.cols), out.cols) };
                    out.row_mut(row).copy_from_slice(from);
                }
            }
            Op::Repeat { source, out } => {
                let (source, out) = (self.value(source), self.value(out));
                let times = out.rows / source.rows;
                for row in self.member.share(out.rows, out.cols) {
                    out.row_mut(row).copy_from_slice(source.row(row / times));
                }
            }
            Op::LoadState { state, slots, out } => {
                let (slots, out) = (self.value(slots), self.value(out));
                let state = &self.exe.memory.states[state.0 as usize];
                for row in self.member.share(out.rows, out.cols) {
                    // SAFETY: a row of the state is as wide as `out`; this launch holds the slot.
                    let from = unsafe {
                        std::slice::from_raw_parts(state.row(slots.ints()[row]).cast::<f32>(), out.cols)
                    };
                    out.row_mut(row).copy_from_slice(from);
                }
            }
            Op::StoreState { state, slots, source, active } => {
                let (slots, source) = (self.value(slots), self.value(source));
                let active = active.map(|active| self.value(active));
                let state = &self.exe.memory.states[state.0 as usize];
                for row in self.member.share(source.rows, source.cols) {
                    if active.is_none_or(|active| active.ints()[row] != 0) {
                        // SAFETY: as above; slots of one launch differ.
                        let target = unsafe {
                            let row = state.row(slots.ints()[row]).cast::<f32>();
                            std::slice::from_raw_parts_mut(row, source.cols)
                        };
                        target.copy_from_slice(source.row(row));
                    }
                }
            }
            Op::Equals { ids, id, flags } => {
                let (ids, flags) = (self.value(ids), self.value(flags));
                for row in self.member.share(flags.rows, 1) {
                    flags.ints_mut(row..row + 1)[0] = i32::from(ids.ints()[row * ids.cols] == id);
                }
            }
            Op::MaskRows { source, valid, frames, out } => {
                self.mask(self.value(source), self.value(valid), frames, self.value(out))
            }
            _ => {}
        }
    }

    fn mask(&self, source: Matrix, valid: Matrix, frames: usize, out: Matrix) {
        let steps = out.rows / self.batch;
        for row in self.member.share(out.rows, out.cols) {
            let (context, step) = (row / steps, row % steps);
            let kept = valid.ints()[context].max(0) as usize * (steps / frames);
            if step < kept {
                out.row_mut(row).copy_from_slice(source.row(row));
            } else {
                out.row_mut(row).fill(0.0);
            }
        }
    }
}

/// Adds row `id` of a table; a negative id is nothing. Panics outside the table.
fn look_up(table: &[f32], id: i32, target: &mut [f32]) {
    if let Ok(id) = usize::try_from(id) {
        let width = target.len();
        let rows = table.len() / width;
        assert!(id < rows, "id {id} is outside a table of {rows} rows");
        kernel::add(target, &table[id * width..(id + 1) * width]);
    }
}
