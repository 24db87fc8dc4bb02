//! Draws, one row at a time, by [`device::sampling`].

use std::cell::RefCell;

use device::program::Op;
use device::sampling::{Draw, SampleParams, Sampler};

use super::Run;

thread_local! {
    /// Kept so that the frame path does not allocate.
    static SAMPLER: RefCell<Sampler> = RefCell::new(Sampler::default());
}

impl<'a> Run<'a> {
    pub(super) fn sampling(&self, op: &'a Op) {
        let Op::Sample { logits, params, seeds, step, draw, bound, allow_keep, history, slots, out, column } =
            op
        else {
            return;
        };
        let [logits, params, seeds, step, slots, out] =
            [logits, params, seeds, step, slots, out].map(|&id| self.value(id));
        let allow_keep = allow_keep.map(|id| self.value(id));
        for row in self.member.share(out.rows, 16 * logits.cols) {
            let step = step.ints()[row].max(0) as u32;
            let low = seeds.ints()[2 * row] as u32;
            let high = seeds.ints()[2 * row + 1] as u32;
            let draw = Draw { seed: u64::from(high) << 32 | u64::from(low), step, draw: *draw };
            let params = params.row(row);
            let params = SampleParams::from_row([params[0], params[1], params[2], params[3]]);
            let flags = history.map(|state| {
                let flags = self.exe.memory.states[state.0 as usize].row(slots.ints()[row]).cast::<i32>();
                // SAFETY: as many flags as logits; this launch holds the slot, one member its row.
                unsafe { std::slice::from_raw_parts_mut(flags, logits.cols) }
            });
            let allow = allow_keep.is_none_or(|allow| allow.ints()[row] != 0);
            let history = match flags {
                Some(flags) => {
                    if step == 0 {
                        flags.fill(0);
                    }
                    Some(flags)
                }
                None => None,
            };
            let drawn = SAMPLER.with_borrow_mut(|sampler| {
                sampler.draw(logits.row(row), params, history.as_deref(), bound.as_ref(), allow, draw)
            });
            if let Some(flags) = history {
                flags[drawn as usize] = 1;
            }
            out.ints_mut(row..row + 1)[*column] = drawn as i32;
        }
    }
}
