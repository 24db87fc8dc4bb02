//! One kernel launch as data: names instead of addresses, so that lowering needs no device.

use std::borrow::Cow;

use device::{PagedId, StateId, ValueId, WeightId};

use super::Ready;

/// A weight in the form a kernel reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Derived {
    /// As uploaded.
    Plain { id: WeightId, bf16: bool },
    /// `[out, taps, in]`.
    Conv { id: WeightId, bf16: bool },
    /// `[kernel, channels]`.
    Depthwise { id: WeightId },
    /// `[stride * out, taps, in]`.
    Transposed { id: WeightId, stride: usize, bf16: bool },
    /// A vector written out `times` times.
    Repeated { id: WeightId, times: usize },
    /// `exp(alpha)`.
    SnakeAlpha { alpha: WeightId, beta: WeightId },
    /// `1 / (exp(beta) + 1e-9)`.
    SnakeInverse { alpha: WeightId, beta: WeightId },
    /// Each row of a matrix times its value of a vector, in bf16.
    Scaled { id: WeightId, scale: WeightId },
    /// Matrices with the same columns, one below the other, in bf16.
    Stacked { ids: Vec<WeightId> },
    /// A table's rows as readers of drawn ids want them.
    Ready(Ready),
    /// Addresses of tables.
    Tables { ids: Vec<WeightId>, bf16: bool },
    /// `theta^(-2i/dim)` for half a head; `theta` by its bits.
    Frequencies { theta: u32, dim: usize },
}

/// What an address stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Null,
    Value(ValueId),
    Temp(usize),
    Weight(Derived),
    State(StateId),
    Pages(PagedId),
    /// Zeroed words that every launch leaves zeroed.
    Counters,
    /// Memory the library works in.
    Workspace,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Field {
    /// A place, and bytes into it.
    At(Place, u64),
    I32(i32),
    I64(i64),
    F32(f32),
}

/// A kernel's argument: one value, or a struct in C's layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    One(Field),
    Struct(Vec<Field>),
}

/// `out [rows, cols] = left [rows, depth] @ weight [cols, depth]^T`, both in bf16, added to what stands in `out` when
/// asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Matmul {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) depth: usize,
    pub(crate) out_bf16: bool,
    pub(crate) add: bool,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// A product by the library: left, weight, out, workspace are its arguments, and the rest is the library's to choose.
    pub(crate) library: Option<Matmul>,
    pub(crate) kernel: Cow<'static, str>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    /// Blocks along z that share a cluster; 1 for none.
    pub(crate) cluster: u32,
    pub(crate) args: Vec<Arg>,
}

impl Field {
    const fn size(&self) -> usize {
        match self {
            Self::At(..) | Self::I64(_) => 8,
            Self::I32(_) | Self::F32(_) => 4,
        }
    }

    fn bytes(&self, resolve: &mut impl FnMut(&Place) -> u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        match self {
            Self::At(Place::Null, _) => {}
            Self::At(place, offset) => bytes = (resolve(place) + offset).to_le_bytes(),
            Self::I64(value) => bytes = value.to_le_bytes(),
            Self::I32(value) => bytes[..4].copy_from_slice(&value.to_le_bytes()),
            Self::F32(value) => bytes[..4].copy_from_slice(&value.to_le_bytes()),
        }
        bytes
    }

    fn place(&self) -> Option<&Place> {
        match self {
            Self::At(place, _) => Some(place),
            _ => None,
        }
    }
}

impl Arg {
    /// The argument's bytes as C lays them out, in words of 8.
    pub(crate) fn words(&self, resolve: &mut impl FnMut(&Place) -> u64) -> Vec<u64> {
        let fields = match self {
            Self::One(field) => std::slice::from_ref(field),
            Self::Struct(fields) => fields,
        };
        let mut bytes: Vec<u8> = Vec::with_capacity(8 * fields.len());
        for field in fields {
            bytes.resize(bytes.len().next_multiple_of(field.size()), 0);
            bytes.extend_from_slice(&field.bytes(resolve)[..field.size()]);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        bytes.chunks_exact(8).map(word).collect()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        let fields = match self {
            Self::One(field) => std::slice::from_ref(field),
            Self::Struct(fields) => fields,
        };
        fields.iter().filter_map(Field::place)
    }
}

impl Step {
    /// Every place the launch touches.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.args.iter().flat_map(Arg::places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_is_laid_out_as_c_does() {
        let fields =
            vec![Field::I32(1), Field::At(Place::Temp(0), 8), Field::I32(2), Field::I32(3), Field::F32(1.0)];
        let words = Arg::Struct(fields).words(&mut |_| 0x1000);
        assert_eq!(words, [1, 0x1008, 2 | 3 << 32, u64::from(1.0f32.to_bits())]);
    }
}
