//! Element types of values on the device. A program knows f32 and i32; in bf16 a value that only feeds matrix
//! products, or only runs between convolutions, is kept in 16 bits.

use device::program::{Op, Operand, Program, Role};
use device::{Dtype, ValueId};

/// How numbers are kept and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32 on plain cores: for comparing with references.
    F32,
    /// Weights and what feeds products in bf16, sums in f32 on tensor cores.
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Bf16,
    F32,
    I32,
}

impl Storage {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }

    pub(crate) const fn is_bf16(self) -> bool {
        matches!(self, Self::Bf16)
    }

    /// As kernel names say it.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Bf16 => 'b',
            Self::F32 | Self::I32 => 'f',
        }
    }
}

/// One entry per value.
pub(crate) fn storages(program: &Program, precision: Precision) -> Vec<Storage> {
    let mut list: Vec<Storage> = program
        .values
        .iter()
        .map(|value| if value.dtype == Dtype::I32 { Storage::I32 } else { Storage::F32 })
        .collect();
    if precision == Precision::F32 {
        return list;
    }
    let mut uses: Vec<Vec<(&Op, Operand)>> = vec![Vec::new(); program.values.len()];
    for op in &program.ops {
        for operand in op.operands() {
            uses[operand.value.0 as usize].push((op, operand));
        }
    }
    for (index, uses) in uses.iter().enumerate() {
        let id = ValueId(index as u32);
        let fixed = program.inputs.contains(&id) || program.outputs.contains(&id);
        let narrow = program.value(id).cols == 1;
        if list[index] != Storage::F32 || fixed || narrow {
            continue;
        }
        let feeds = uses.iter().any(|(op, operand)| is_factor(op, operand));
        if feeds && uses.iter().all(|(op, operand)| takes_bf16(op, operand)) {
            list[index] = Storage::Bf16;
        }
    }
    list
}

/// What a matrix product multiplies.
fn is_factor(op: &Op, operand: &Operand) -> bool {
    match op {
        Op::Linear { .. } | Op::GatedMlp { .. } => operand.field == "input",
        Op::CausalConv { .. } | Op::CausalConvTranspose { .. } => {
            matches!(operand.field, "input" | "residual")
        }
        _ => false,
    }
}

/// Whether the kernel of `op` reads or writes this operand in bf16.
fn takes_bf16(op: &Op, operand: &Operand) -> bool {
    match op {
        Op::Linear { .. } | Op::GatedMlp { .. } => matches!(operand.field, "input" | "out"),
        Op::CausalConv { .. } | Op::CausalConvTranspose { .. } => true,
        Op::PagedAttention { .. } | Op::DepthAttention { .. } | Op::WindowAttention { .. } => {
            operand.field == "out"
        }
        Op::Embed { accumulate, .. } | Op::EmbedSum { accumulate, .. } => !accumulate,
        Op::GatherRows { accumulate, .. } => operand.field == "source" || !accumulate,
        Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Activate { .. }
        | Op::Slice { .. }
        | Op::Place { .. }
        | Op::Reshape { .. } => operand.role != Role::Update,
        Op::CausalDepthwiseConv { .. } => operand.field == "out",
        _ => false,
    }
}
