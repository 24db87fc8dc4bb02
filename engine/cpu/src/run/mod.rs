//! Replays an op list with the live row count.
//!
//! Every member of the team runs every op on its own share of rows, columns or heads, and meets the others
//! after it. Which share a member takes never changes the arithmetic of an element.

mod attention;
mod conv;
mod dense;
mod encode;
mod rows;
mod sample;

use std::ops::Range;

use device::HostTensor;
use device::program::{Op, Rows, ValueId};

use crate::executable::Executable;
use crate::plan::{self, Place};
use crate::team::Member;

/// One launch as one member sees it.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    exe: &'a Executable,
    inputs: &'a [HostTensor],
    arena: *mut f32,
    /// Live batch rows: all, or 1 while a stretch repeats for each.
    batch: usize,
    /// First batch row in view.
    first: usize,
    tokens: usize,
    member: Member<'a>,
    /// Working memory of the op at hand.
    temp: *mut f32,
}

/// A live value, or a part of working memory: `rows * cols` words in the arena or in a launch input.
///
/// Slices of it are handed out unchecked by the compiler. What keeps them apart: a checked program never
/// names a value as operand and result of one op, except where the same element is read before it is written
/// by the same member; members write only their own share; and they meet between ops.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    start: *mut f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    life: std::marker::PhantomData<&'a f32>,
}

impl<'a> Matrix<'a> {
    pub(crate) fn ptr(&self) -> *mut f32 {
        self.start
    }

    /// All values of some rows.
    pub(crate) fn get(&self, rows: Range<usize>) -> &'a [f32] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        // SAFETY: in bounds; see the type for aliasing.
        unsafe { std::slice::from_raw_parts(self.start.add(rows.start * self.cols), rows.len() * self.cols) }
    }

    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        self.get(row..row + 1)
    }

    #[allow(clippy::mut_from_ref)]
    pub(crate) fn get_mut(&self, rows: Range<usize>) -> &'a mut [f32] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        // SAFETY: in bounds; see the type for aliasing.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(rows.start * self.cols), rows.len() * self.cols)
        }
    }

    #[allow(clippy::mut_from_ref)]
    pub(crate) fn row_mut(&self, row: usize) -> &'a mut [f32] {
        self.get_mut(row..row + 1)
    }

    /// The same words as integers.
    pub(crate) fn ints(&self) -> &'a [i32] {
        // SAFETY: one word each, every bit pattern valid; in bounds.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.rows * self.cols) }
    }

    #[allow(clippy::mut_from_ref)]
    pub(crate) fn ints_mut(&self, rows: Range<usize>) -> &'a mut [i32] {
        let words = self.get_mut(rows);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }
}

impl<'a> Run<'a> {
    /// # Safety
    /// `arena` holds the plan's words and outlives the run; only members of one team, each with its own
    /// index, run over it at a time; inputs have been admitted by `exe`.
    pub(crate) unsafe fn new(
        exe: &'a Executable,
        inputs: &'a [HostTensor],
        batch: usize,
        tokens: usize,
        arena: *mut f32,
        member: Member<'a>,
    ) -> Self {
        Self { exe, inputs, arena, batch, first: 0, tokens, member, temp: arena }
    }

    /// Runs all ops. `pause` is called between ops: a lane yields there.
    pub(crate) fn all(mut self, pause: impl Fn()) {
        for stretch in &self.exe.plan.stretches {
            if stretch.wide {
                let batch = std::mem::replace(&mut self.batch, 1);
                for row in 0..batch {
                    self.first = row;
                    self.ops(stretch.ops.clone(), &pause);
                }
                self.first = 0;
                self.batch = batch;
            } else {
                self.ops(stretch.ops.clone(), &pause);
            }
        }
    }

    fn ops(&mut self, ops: Range<usize>, pause: &impl Fn()) {
        for index in ops {
            pause();
            // SAFETY: the plan's offsets lie inside the arena.
            self.temp = unsafe { self.arena.add(self.exe.plan.temps[index]) };
            self.op(&self.exe.program.ops[index]);
            self.member.barrier();
        }
    }

    fn op(&self, op: &'a Op) {
        match op {
            Op::Linear { .. }
            | Op::GatedMlp { .. }
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::AddScaled { .. }
            | Op::Multiply { .. }
            | Op::Activate { .. }
            | Op::Clamp { .. }
            | Op::SnakeBeta { .. } => self.dense(op),
            Op::PagedAttention { .. }
            | Op::DepthAttention { .. }
            | Op::WindowAttention { .. }
            | Op::LocalAttention { .. } => self.attention(op),
            Op::CausalConv { .. }
            | Op::CausalDepthwiseConv { .. }
            | Op::CausalConvTranspose { .. }
            | Op::Conv { .. }
            | Op::DepthwiseConv { .. } => self.convolution(op),
            Op::Statistics { .. }
            | Op::SoftmaxOverTime { .. }
            | Op::LogMel { .. }
            | Op::QuantizeResidual { .. } => self.encoder(op),
            Op::Sample { .. } => self.sampling(op),
            _ => self.moves(op),
        }
    }

    /// The live part of a value.
    fn value(&self, id: ValueId) -> Matrix<'a> {
        let value = self.exe.program.value(id);
        let mut rows = plan::rows(value.rows, self.batch, self.tokens);
        if let (Rows::Fixed(_), Place::Input(input)) = (value.rows, self.exe.plan.places[id.0 as usize]) {
            // A launch may bring a part of a table.
            rows = self.inputs[input].len() / value.cols;
        }
        let first = if self.first == 0 { 0 } else { plan::rows(value.rows, self.first, 0) * value.cols };
        // SAFETY: places lie inside the arena, inputs were admitted with their live sizes.
        let start = unsafe {
            match self.exe.plan.places[id.0 as usize] {
                Place::Input(input) => match &self.inputs[input] {
                    HostTensor::F32(data) => data.as_ptr().cast_mut().add(first),
                    HostTensor::I32(data) => data.as_ptr().cast_mut().cast::<f32>().add(first),
                },
                Place::Local(offset) => self.arena.add(offset),
                Place::Whole(offset) => self.arena.add(offset + first),
                Place::Nowhere => unreachable!("ops name only placed values"),
            }
        };
        Matrix { start, rows, cols: value.cols, life: std::marker::PhantomData }
    }

    /// A part of the op's working memory, `offset` words in.
    fn temp(&self, offset: usize, rows: usize, cols: usize) -> Matrix<'a> {
        // SAFETY: ops lay out what the plan reserved for them.
        let start = unsafe { self.temp.add(offset) };
        Matrix { start, rows, cols, life: std::marker::PhantomData }
    }

    /// Copies what is wanted of each row of an output out.
    pub(crate) fn pieces(&self, id: ValueId, wanted: &[usize]) -> Vec<device::Piece> {
        let value = self.value(id);
        device::Piece::of_rows(value.get(0..value.rows), wanted)
    }

    /// Copies an output out, whole batch.
    pub(crate) fn output(&self, id: ValueId) -> HostTensor {
        let value = self.value(id);
        match self.exe.program.value(id).dtype {
            device::Dtype::F32 => HostTensor::F32(value.get(0..value.rows).to_vec()),
            device::Dtype::I32 => HostTensor::I32(value.ints().to_vec()),
        }
    }
}
