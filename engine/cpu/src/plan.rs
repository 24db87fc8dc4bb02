//! Where a program's values lie in a lane's arena, and which stretches of ops run one batch row at a time.
//!
//! Late stages of a codec hold thousands of rows a context. Run for the whole batch at once they would
//! stream tens of megabytes through memory op by op, and no op boundary (where a lane yields) would come for
//! tens of milliseconds. Such a stretch runs to its end for one context before the next.

use std::ops::Range;

use device::layout::{Block, pack};
use device::program::{Op, Padding, Program, Role, Rows, ValueId};
use device::{Catalog, WeightId};

use crate::memory::LINE;

/// Rows a batch row must have in some operand for its op to belong to a stretch run row by row.
const WIDE_ROWS: usize = 32;

/// Bounds of one executable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) members: usize,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A launch input.
    Input(usize),
    /// In the arena, for one batch row at a time.
    Local(usize),
    /// Named by no op.
    Nowhere,
    /// In the arena, for the whole batch.
    Whole(usize),
}

/// Consecutive ops run for the whole batch, or (`wide`) to the end for each batch row in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) ops: Range<usize>,
    pub(crate) wide: bool,
}

/// The layout of one executable.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) places: Vec<Place>,
    /// Working memory of each op: offset in the arena.
    pub(crate) temps: Vec<usize>,
    pub(crate) stretches: Vec<Stretch>,
    /// Words of arena needed.
    pub(crate) words: usize,
}

impl Plan {
    /// `program` has been checked.
    pub(crate) fn new(program: &Program, catalog: &Catalog, bounds: Bounds) -> Self {
        let stretches = stretches(program);
        let stretch_of = |op: usize| stretches.iter().position(|s| s.ops.contains(&op)).unwrap_or(0);
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; program.values.len()];
        for (index, op) in program.ops.iter().enumerate() {
            for operand in op.operands() {
                let life = lives[operand.value.0 as usize].get_or_insert((index, index));
                life.1 = index;
            }
        }
        let mut blocks = Vec::new();
        let mut places = vec![Place::Nowhere; program.values.len()];
        let mut owners = Vec::new();
        for (index, value) in program.values.iter().enumerate() {
            let id = ValueId(index as u32);
            if let Some(input) = program.inputs.iter().position(|&input| input == id) {
                places[index] = Place::Input(input);
                continue;
            }
            let Some((mut from, mut to)) = lives[index] else { continue };
            let (first, last) = (stretch_of(from), stretch_of(to));
            let output = program.outputs.contains(&id);
            let local = first == last && stretches[first].wide && !output;
            if !local {
                // Rows of other contexts are still to come while a stretch repeats.
                if stretches[first].wide {
                    from = stretches[first].ops.start;
                }
                if stretches[last].wide {
                    to = stretches[last].ops.end - 1;
                }
            }
            if output {
                to = program.ops.len();
            }
            let batch = if local { 1 } else { bounds.batch };
            let words = rows(value.rows, batch, bounds.tokens) * value.cols;
            blocks.push(Block::new(from, to, words));
            owners.push((index, local));
        }
        for (index, op) in program.ops.iter().enumerate() {
            let batch = if stretches[stretch_of(index)].wide { 1 } else { bounds.batch };
            let words = temp_words(program, catalog, op, Bounds { batch, ..bounds });
            blocks.push(Block::new(index, index, words));
        }
        let words = pack(&mut blocks, LINE);
        for (&(value, local), block) in owners.iter().zip(&blocks) {
            places[value] = if local { Place::Local(block.offset) } else { Place::Whole(block.offset) };
        }
        let temps = blocks[owners.len()..].iter().map(|block| block.offset).collect();
        Self { places, temps, stretches, words }
    }
}

pub(crate) fn rows(rows: Rows, batch: usize, tokens: usize) -> usize {
    rows.count(batch, tokens)
}

fn stretches(program: &Program) -> Vec<Stretch> {
    let mut list: Vec<Stretch> = Vec::new();
    for (index, op) in program.ops.iter().enumerate() {
        let mut tallest = 0;
        let mut separable = !matches!(op, Op::GatherRows { .. } | Op::PagedAttention { .. });
        for operand in op.operands() {
            match program.value(operand.value).rows {
                Rows::PerRow(n) => tallest = tallest.max(n),
                Rows::Tokens | Rows::Fixed(_) => separable = false,
            }
            // A depth transformer's cache outlives the op.
            separable &= operand.role != Role::Scratch;
        }
        let wide = separable && tallest >= WIDE_ROWS;
        match list.last_mut() {
            Some(last) if last.wide == wide => last.ops.end = index + 1,
            _ => list.push(Stretch { ops: index..index + 1, wide }),
        }
    }
    list
}

/// Working memory of one op. Parts inside it are laid out by the op itself, each on its own cache line.
fn temp_words(program: &Program, catalog: &Catalog, op: &Op, bounds: Bounds) -> usize {
    let count = |id: ValueId| rows(program.value(id).rows, bounds.batch, bounds.tokens);
    let cols = |id: ValueId| program.value(id).cols;
    let outputs = |id: WeightId| catalog.weight(id).map_or(0, |weight| weight.shape[0]);
    let carried = |input: ValueId, history: usize| (count(input) + bounds.batch * history) * cols(input);
    match *op {
        Op::GatedMlp { input, gate, .. } => 2 * line(count(input) * outputs(gate)),
        Op::PagedAttention { q, pages, page_table, .. } => {
            let length = catalog.paged(pages).map_or(0, |spec| spec.page_len) * cols(page_table);
            line(count(q) * cols(q)) + bounds.members * line(length)
        }
        Op::DepthAttention { q, keys, .. } => {
            line(count(q) * cols(q)) + bounds.members * line(count(keys) / bounds.batch)
        }
        Op::WindowAttention { q, k, window, .. } => {
            line(count(q) * cols(q)) + line(count(k) * cols(k)) + bounds.members * line(window)
        }
        Op::LocalAttention { q, k, window, .. } => {
            line(count(q) * cols(q)) + line(count(k) * cols(k)) + bounds.members * line(window.min(count(q)))
        }
        Op::CausalConv { input, ref shape, .. } => carried(input, (shape.kernel - 1) * shape.dilation),
        Op::CausalDepthwiseConv { input, kernel, .. } => carried(input, kernel - 1),
        Op::CausalConvTranspose { input, kernel, stride, .. } => carried(input, kernel / stride - 1),
        Op::Conv { input, padding, .. } | Op::DepthwiseConv { input, padding, .. } => {
            let (left, right) = padding_rows(padding);
            (count(input) + left + right) * cols(input)
        }
        Op::LogMel { n_fft, out, .. } => line(count(out) * n_fft) + 2 * line(count(out) * (n_fft / 2 + 1)),
        _ => 0,
    }
}

/// Rounds up to whole cache lines.
pub(crate) fn line(words: usize) -> usize {
    words.next_multiple_of(LINE)
}

pub(crate) fn padding_rows(padding: Padding) -> (usize, usize) {
    match padding {
        Padding::Zeros { left, right }
        | Padding::Reflect { left, right }
        | Padding::Replicate { left, right } => (left, right),
    }
}
