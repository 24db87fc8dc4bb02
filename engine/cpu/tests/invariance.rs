//! A row's result is the same to the last bit alone, in any batch, on any number of threads, and however its
//! stream is cut into chunks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use contract::{Lane, Partition};
use device::program::{
    Activation, AttentionShape, ConvShape, Op, Program, ProgramBuilder, Rope, Rows, Snake,
};
use device::{Dtype, HostTensor, WeightForm, WeightId};
use world::{Run, SLOTS, World, f32s, fresh, i32s, stream_inputs};

const WIDTH: usize = 48;
const SHAPE: AttentionShape =
    AttentionShape { heads: 3, kv_heads: 1, head_dim: 16, rope: Some(Rope { theta: 10_000.0 }), scale: 0.25 };
/// Width of the head: enough work to be shared between threads even for one row.
const LOGITS: usize = 1_000;

/// Linear layers, an MLP, norms and depth attention: what a decode step is made of.
fn step(world: &mut World) -> Program {
    let mut matrix = |outputs, inputs| world.weight(WeightForm::Matrix, &[outputs, inputs]);
    let [query, mix] = [0; 2].map(|_| matrix(WIDTH, WIDTH));
    let [key, value] = [0; 2].map(|_| matrix(16, WIDTH));
    let [gate, up] = [0; 2].map(|_| matrix(200, WIDTH));
    let (down, head) = (matrix(WIDTH, 200), matrix(LOGITS, WIDTH));
    let norm = world.weight(WeightForm::Vector, &[WIDTH]);
    let row = Rows::PerRow(1);
    let mut builder = ProgramBuilder::new("step");
    let input = builder.input("input", Dtype::F32, row, WIDTH);
    let [normed, q, attended, mixed, fed] =
        ["normed", "q", "attended", "mixed", "fed"].map(|name| builder.scratch(name, row, WIDTH));
    let [k, v] = ["k", "v"].map(|name| builder.scratch(name, row, 16));
    let [keys, values] = ["keys", "values"].map(|name| builder.scratch(name, Rows::PerRow(2), 16));
    let logits = builder.scratch("logits", row, LOGITS);
    let linear = |input, weight: WeightId, residual, out| Op::Linear {
        input,
        weight,
        bias: None,
        activation: None,
        residual,
        out,
    };
    for position in 0..2 {
        let from = if position == 0 { input } else { fed };
        builder.push(Op::RmsNorm { input: from, weight: norm, eps: 1e-6, out: normed });
        builder.push(linear(normed, query, None, q));
        builder.push(linear(normed, key, None, k));
        builder.push(linear(normed, value, None, v));
        builder.push(Op::DepthAttention {
            q,
            k,
            v,
            q_norm: None,
            k_norm: None,
            norm_eps: 1e-6,
            shape: SHAPE,
            keys,
            values,
            position,
            out: attended,
        });
        builder.push(linear(attended, mix, Some(from), mixed));
        builder.push(Op::GatedMlp { input: mixed, gate, up, down, out: fed });
    }
    builder.push(linear(fed, head, None, logits));
    builder.output(fed);
    builder.output(logits);
    builder.finish()
}

#[test]
fn a_row_alone_equals_the_row_in_any_batch_on_any_number_of_threads() {
    let mut world = World::new(fresh());
    let program = step(&mut world);
    let whole = world.build(&program, 64, 0, Partition::Whole);
    let part = world.build(&program, 64, 0, Partition::Lm);
    let rows = world.random.floats(64 * WIDTH);
    let mut run = |executable, rows: &[f32]| -> Vec<Vec<f32>> {
        let inputs = vec![f32s(rows.to_vec())];
        let run = Run { lane: Lane::Lm, executable, rows: rows.len() / WIDTH, tokens: 0, inputs };
        world.run(run).unwrap().into_iter().map(floats).collect()
    };
    let alone: Vec<Vec<Vec<f32>>> = rows.chunks(WIDTH).map(|row| run(part, row)).collect();
    for count in 1..=64 {
        for executable in [whole, part] {
            let outputs = run(executable, &rows[..count * WIDTH]);
            for (output, width) in outputs.iter().zip([WIDTH, LOGITS]) {
                for (row, values) in output.chunks(width).enumerate() {
                    let single = &alone[row][usize::from(width == LOGITS)];
                    assert!(bits(values) == bits(single), "row {row} of {count}");
                }
            }
        }
    }
}

/// Every op that streams, at several widths, the last ones tall enough to run row by row.
struct Codec {
    weights: Vec<WeightId>,
    states: Vec<device::StateId>,
}

impl Codec {
    const INPUT: usize = 24;
    /// Samples a frame.
    const SAMPLES: usize = 40;

    fn new(world: &mut World) -> Self {
        let conv = |shape: &[usize]| (WeightForm::Conv, shape.to_vec());
        let vector = |width| (WeightForm::Vector, vec![width]);
        let weights = [
            conv(&[48, 24, 3]),
            (WeightForm::Matrix, vec![16, 48]),
            (WeightForm::Depthwise, vec![48, 1, 7]),
            (WeightForm::ConvTranspose, vec![48, 32, 16]),
            conv(&[32, 32, 7]),
            (WeightForm::ConvTranspose, vec![32, 16, 10]),
            conv(&[16, 16, 7]),
            conv(&[16, 16, 1]),
            conv(&[1, 16, 7]),
            vector(48),
            vector(32),
            vector(16),
        ]
        .map(|(form, shape)| world.weight(form, &shape));
        let widths = [2 * 24, 2 * 6 * 16, 6 * 48, 48, 6 * 3 * 32, 32, 6 * 9 * 16, 6 * 16];
        let states = widths.map(|width| world.state(width, Dtype::F32));
        Self { weights: weights.to_vec(), states: states.to_vec() }
    }

    fn program(&self, frames: usize) -> Program {
        let (w, s) = (&self.weights, &self.states);
        let mut builder = ProgramBuilder::new("codec");
        let input = builder.input("input", Dtype::F32, Rows::PerRow(frames), Self::INPUT);
        let [slots, start, valid] = stream_inputs(&mut builder);
        let snake = |i: usize| Some(Snake { alpha: w[i], beta: w[i] });
        let conv = |kernel, dilation| ConvShape { kernel, stride: 1, dilation };
        let mut value =
            |name: &str, factor: usize, cols| builder.scratch(name, Rows::PerRow(factor * frames), cols);
        let (a, q) = (value("a", 1, 48), value("q", 1, 48));
        let [k, v] = ["k", "v"].map(|name| value(name, 1, 16));
        let (b, c) = (value("b", 1, 48), value("c", 1, 48));
        let (d, e) = (value("d", 8, 32), value("e", 8, 32));
        let [f, g, h] = ["f", "g", "h"].map(|name| value(name, 40, 16));
        let (pcm, out) = (value("pcm", 40, 1), value("out", 40, 1));
        let stream = |input, weight, shape, snake, residual, state, out| Op::CausalConv {
            input,
            weight,
            bias: None,
            shape,
            snake,
            residual,
            state,
            slots,
            start,
            valid,
            frames,
            out,
        };
        let up = |input, weight, kernel, stride, snake, state, out| Op::CausalConvTranspose {
            input,
            weight,
            bias: None,
            kernel,
            stride,
            snake,
            state: Some(state),
            slots,
            start,
            valid,
            frames,
            out,
        };
        builder.push(stream(input, w[0], conv(3, 1), None, None, Some(s[0]), a));
        builder.push(Op::Activate { input: a, activation: Activation::Tanh, out: q });
        for out in [k, v] {
            let (weight, activation) = (w[1], Some(Activation::Tanh));
            builder.push(Op::Linear { input: a, weight, bias: None, activation, residual: None, out });
        }
        builder.push(Op::WindowAttention {
            q,
            k,
            v,
            shape: SHAPE,
            window: 7,
            state: s[1],
            slots,
            start,
            valid,
            out: b,
        });
        builder.push(Op::CausalDepthwiseConv {
            input: b,
            weight: w[2],
            bias: Some(w[9]),
            kernel: 7,
            state: s[2],
            slots,
            start,
            valid,
            frames,
            out: c,
        });
        builder.push(up(c, w[3], 16, 8, snake(9), s[3], d));
        builder.push(stream(d, w[4], conv(7, 3), snake(10), Some(d), Some(s[4]), e));
        builder.push(up(e, w[5], 10, 5, snake(10), s[5], f));
        builder.push(stream(f, w[6], conv(7, 9), snake(11), None, Some(s[6]), g));
        builder.push(stream(g, w[7], conv(1, 1), snake(11), Some(f), None, h));
        builder.push(stream(h, w[8], conv(7, 1), None, None, Some(s[7]), pcm));
        builder.push(Op::MaskRows { source: pcm, valid, frames, out });
        builder.output(out);
        builder.finish()
    }
}

#[test]
fn a_stream_cut_anywhere_equals_the_stream_in_one_piece() {
    let mut world = World::new(fresh());
    let codec = Codec::new(&mut world);
    let total = 37;
    let lengths = [2, 4, 10];
    let chunks = lengths.map(|length| world.build(&codec.program(length), 3, 0, Partition::Whole));
    let alone = lengths.map(|length| world.build(&codec.program(length), 1, 0, Partition::Background));
    let whole = world.build(&codec.program(total), 1, 0, Partition::Background);
    let streams: Vec<Vec<f32>> = (0..3).map(|_| world.random.floats(total * Codec::INPUT)).collect();
    let expected: Vec<Vec<f32>> = (0..3)
        .map(|context| {
            let inputs = vec![f32s(streams[context].clone()), i32s(&[0]), i32s(&[0]), i32s(&[total as i32])];
            let run = Run { lane: Lane::Background, executable: whole, rows: 1, tokens: 0, inputs };
            floats(world.run(run).unwrap().remove(0))
        })
        .collect();
    for round in 0..4 {
        // Slots still hold the last round's histories: a start of 0 must not see them.
        let slots = [round, SLOTS as i32 - 1, 4];
        let mut done = [0; 3];
        let mut made = vec![Vec::new(); 3];
        while done.iter().any(|&frames| frames < total) {
            let pick = world.random.below(3);
            let length = lengths[pick];
            let waiting: Vec<usize> = (0..3).filter(|&context| done[context] < total).collect();
            let members = if world.random.below(3) == 0 { waiting[..1].to_vec() } else { waiting };
            let valid: Vec<usize> =
                members.iter().map(|&c| (1 + world.random.below(length)).min(total - done[c])).collect();
            let mut input = Vec::new();
            for (&context, &valid) in members.iter().zip(&valid) {
                let first = done[context] * Codec::INPUT;
                let mut frames = streams[context][first..first + valid * Codec::INPUT].to_vec();
                // What lies behind the valid frames must not matter.
                frames.resize(length * Codec::INPUT, 9.0);
                input.extend(frames);
            }
            let list = |values: Vec<usize>| i32s(&values.iter().map(|&x| x as i32).collect::<Vec<_>>());
            let inputs = vec![
                f32s(input),
                i32s(&members.iter().map(|&c| slots[c]).collect::<Vec<_>>()),
                list(members.iter().map(|&c| done[c]).collect()),
                list(valid.clone()),
            ];
            let single = members.len() == 1;
            let (lane, executable) =
                if single { (Lane::Background, alone[pick]) } else { (Lane::Urgent, chunks[pick]) };
            let rows = members.len();
            let pcm = floats(world.run(Run { lane, executable, rows, tokens: 0, inputs }).unwrap().remove(0));
            for ((&context, valid), pcm) in members.iter().zip(valid).zip(pcm.chunks(length * Codec::SAMPLES))
            {
                let (kept, rest) = pcm.split_at(valid * Codec::SAMPLES);
                made[context].extend_from_slice(kept);
                assert!(rest.iter().all(|&x| x == 0.0), "rows past the valid ones are silent");
                done[context] += valid;
            }
        }
        for (context, (made, expected)) in made.iter().zip(&expected).enumerate() {
            // On a GPU a running softmax sums in the order its keys lie, which the cut decides.
            let same = |a: f32, b: f32| {
                a.to_bits() == b.to_bits() || world::cuda_device().is_some() && (a - b).abs() < 1e-4
            };
            let first = made.iter().zip(expected).position(|(&a, &b)| !same(a, b));
            assert_eq!(first, None, "context {context}, round {round}: first sample that differs");
        }
    }
}

fn floats(tensor: HostTensor) -> Vec<f32> {
    match tensor {
        HostTensor::F32(values) => values,
        HostTensor::I32(values) => panic!("{} integers", values.len()),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
