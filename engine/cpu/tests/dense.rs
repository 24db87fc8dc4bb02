//! Ops that move rows, linear layers, norms and elementwise ops, on fresh random inputs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use device::program::{Activation, Op, ProgramBuilder, Rows, Snake};
use device::{Dtype, WeightForm};
use world::{World, f32s, fresh, i32s};

const ROWS: [usize; 4] = [1, 3, 8, 64];

#[test]
fn linear_layers_match_plain_sums_at_any_width() {
    let mut world = World::new(fresh());
    let narrow = [(1, 7), (5, 24), (16, 16), (40, 33), (130, 64), (256, 384), (264, 1_032)];
    let narrow = narrow.into_iter().map(|(outputs, inputs)| (outputs, inputs, &ROWS[..]));
    // As many rows as take the widest tiles of a device.
    let wide: [(_, _, &[usize]); 4] =
        [(192, 520, &[12, 20, 40, 100, 200]), (320, 512, &[300]), (288, 72, &[300]), (776, 3_080, &[260])];
    for (outputs, inputs, all_rows) in narrow.chain(wide) {
        let weight = world.weight(WeightForm::Matrix, &[outputs, inputs]);
        let bias = world.weight(WeightForm::Vector, &[outputs]);
        for &rows in all_rows {
            let mut builder = ProgramBuilder::new("linear");
            let input = builder.input("input", Dtype::F32, Rows::PerRow(1), inputs);
            let residual = builder.input("residual", Dtype::F32, Rows::PerRow(1), outputs);
            let outs = ["plain", "biased", "added", "bent"].map(|name| {
                builder.scratch(&format!("{name} {rows}x{inputs}x{outputs}"), Rows::PerRow(1), outputs)
            });
            let variants = [
                (None, None, None),
                (Some(bias), None, None),
                (Some(bias), None, Some(residual)),
                (Some(bias), Some(Activation::Silu), Some(residual)),
            ];
            for (&out, (bias, activation, residual)) in outs.iter().zip(variants) {
                builder.push(Op::Linear { input, weight, bias, activation, residual, out });
                builder.output(out);
            }
            let inputs =
                vec![f32s(world.random.floats(rows * inputs)), f32s(world.random.floats(rows * outputs))];
            world.check(&builder.finish(), rows, 0, inputs, 1e-5);
        }
    }
}

#[test]
fn weights_stored_in_half_the_bits_multiply_the_same() {
    let mut world = World::new(fresh());
    for (outputs, inputs) in [(24, 16), (130, 64)] {
        let coarse = |x: &f32| f32::from_bits(x.to_bits() & 0xFFFF_0000);
        let data = world.random.floats(outputs * inputs).iter().map(coarse).collect();
        let weight = world.weight_of(WeightForm::Matrix, &[outputs, inputs], data);
        for rows in ROWS {
            let mut builder = ProgramBuilder::new("half");
            let input = builder.input("input", Dtype::F32, Rows::PerRow(1), inputs);
            let out = builder.scratch("out", Rows::PerRow(1), outputs);
            builder.push(Op::Linear { input, weight, bias: None, activation: None, residual: None, out });
            builder.output(out);
            let inputs = vec![f32s(world.random.floats(rows * inputs))];
            world.check(&builder.finish(), rows, 0, inputs, 1e-5);
        }
    }
}

#[test]
fn a_residual_may_be_added_in_place() {
    let mut world = World::new(fresh());
    let weight = world.weight(WeightForm::Matrix, &[24, 24]);
    let mut builder = ProgramBuilder::new("in place");
    let input = builder.input("input", Dtype::F32, Rows::PerRow(1), 24);
    let sum = builder.scratch("sum", Rows::PerRow(1), 24);
    builder.push(Op::Activate { input, activation: Activation::Relu, out: sum });
    builder.push(Op::Linear { input, weight, bias: None, activation: None, residual: Some(sum), out: sum });
    builder.output(sum);
    let inputs = vec![f32s(world.random.floats(5 * 24))];
    world.check(&builder.finish(), 5, 0, inputs, 1e-5);
}

#[test]
fn gated_mlps_and_norms_match() {
    let mut world = World::new(fresh());
    let (width, inner) = (48, 104);
    let gate = world.weight(WeightForm::Matrix, &[inner, width]);
    let up = world.weight(WeightForm::Matrix, &[inner, width]);
    let down = world.weight(WeightForm::Matrix, &[width, inner]);
    let weight = world.weight(WeightForm::Vector, &[width]);
    let bias = world.weight(WeightForm::Vector, &[width]);
    for rows in ROWS {
        let mut builder = ProgramBuilder::new("mlp");
        let input = builder.input("input", Dtype::F32, Rows::PerRow(1), width);
        let [a, b, c] = ["mlp", "rms", "layer"].map(|name| builder.scratch(name, Rows::PerRow(1), width));
        builder.push(Op::GatedMlp { input, gate, up, down, out: a });
        builder.push(Op::RmsNorm { input, weight, eps: 1e-6, out: b });
        builder.push(Op::LayerNorm { input, weight, bias, eps: 1e-6, out: c });
        for out in [a, b, c] {
            builder.output(out);
        }
        let inputs = vec![f32s(world.random.floats(rows * width))];
        world.check(&builder.finish(), rows, 0, inputs, 2e-5);
    }
}

#[test]
fn norms_between_the_products_of_a_layer_match() {
    let mut world = World::new(fresh());
    let (width, inner) = (128, 264);
    let norms = [0; 2].map(|_| world.weight(WeightForm::Vector, &[width]));
    let first = world.weight(WeightForm::Matrix, &[width, 64]);
    let [gate, up] = [0; 2].map(|_| world.weight(WeightForm::Matrix, &[inner, width]));
    let down = world.weight(WeightForm::Matrix, &[width, inner]);
    let [q, k] = [0; 2].map(|_| world.weight(WeightForm::Matrix, &[72, width]));
    for rows in [1, 3, 8, 12, 30, 64, 100, 200, 300] {
        let one = Rows::PerRow(1);
        let mut builder = ProgramBuilder::new("layer");
        let input = builder.input("input", Dtype::F32, one, 64);
        let added = builder.input("added", Dtype::F32, one, width);
        let [stream, normed, branch] =
            ["stream", "normed", "branch"].map(|name| builder.scratch(name, one, width));
        let [q_out, k_out] =
            ["q", "k"].map(|name| builder.scratch(&format!("{name} of {rows} rows"), one, 72));
        let linear = |input, weight, residual, out| Op::Linear {
            input,
            weight,
            bias: None,
            activation: None,
            residual,
            out,
        };
        builder.push(Op::Clamp { input: added, low: -9.0, high: 9.0, out: stream });
        builder.push(linear(input, first, Some(stream), stream));
        builder.push(Op::RmsNorm { input: stream, weight: norms[0], eps: 1e-5, out: normed });
        builder.push(Op::GatedMlp { input: normed, gate, up, down, out: branch });
        builder.push(Op::AddScaled { target: stream, input: branch, scale: None });
        builder.push(Op::RmsNorm { input: stream, weight: norms[1], eps: 1e-5, out: normed });
        builder.push(linear(normed, q, None, q_out));
        builder.push(linear(normed, k, None, k_out));
        for out in [stream, q_out, k_out] {
            builder.output(out);
        }
        let random = &mut world.random;
        let inputs = vec![f32s(random.floats(rows * 64)), f32s(random.floats(rows * width))];
        world.check(&builder.finish(), rows, 0, inputs, 5e-5);
    }
}

#[test]
fn elementwise_ops_match() {
    let mut world = World::new(fresh());
    let width = 37;
    let [alpha, beta, scale] = [0; 3].map(|_| world.weight(WeightForm::Vector, &[width]));
    let snake = Snake { alpha, beta };
    for rows in ROWS {
        let mut builder = ProgramBuilder::new("elementwise");
        let a = builder.input("a", Dtype::F32, Rows::PerRow(2), width);
        let same = builder.input("same", Dtype::F32, Rows::PerRow(2), width);
        let one = builder.input("one", Dtype::F32, Rows::PerRow(1), width);
        let mut next = |name: &str| {
            let out = builder.scratch(name, Rows::PerRow(2), width);
            builder.output(out);
            out
        };
        let activations = [
            Activation::Elu,
            Activation::GeluErf,
            Activation::Relu,
            Activation::Sigmoid,
            Activation::Silu,
            Activation::Tanh,
        ];
        let activated = activations.map(|activation| (activation, next(&format!("{activation:?}"))));
        let [clamped, snaked, product, spread, sum, scaled] =
            ["clamped", "snaked", "product", "spread", "sum", "scaled"].map(next);
        for (activation, out) in activated {
            builder.push(Op::Activate { input: a, activation, out });
        }
        builder.push(Op::Clamp { input: a, low: -0.25, high: 0.5, out: clamped });
        builder.push(Op::SnakeBeta { input: a, snake, out: snaked });
        builder.push(Op::Multiply { a, b: same, out: product });
        builder.push(Op::Multiply { a, b: one, out: spread });
        builder.push(Op::Clamp { input: a, low: -9.0, high: 9.0, out: sum });
        builder.push(Op::AddScaled { target: sum, input: same, scale: None });
        builder.push(Op::SnakeBeta { input: same, snake, out: scaled });
        builder.push(Op::AddScaled { target: scaled, input: a, scale: Some(scale) });
        let wide = |world: &mut World, spread: f32, n: usize| {
            f32s(world.random.floats(n * width).iter().map(|x| spread * x).collect())
        };
        let inputs = vec![
            wide(&mut world, 6.0, 2 * rows),
            wide(&mut world, 1.0, 2 * rows),
            wide(&mut world, 1.0, rows),
        ];
        world.check(&builder.finish(), rows, 0, inputs, 1e-5);
    }
}

#[test]
fn rows_move_where_they_are_told() {
    let mut world = World::new(fresh());
    let (width, vocabulary) = (24, 50);
    let tables = [0; 3].map(|_| world.weight(WeightForm::Table, &[vocabulary, width]));
    for rows in [1, 4] {
        let mut builder = ProgramBuilder::new("rows");
        let ids = builder.input("ids", Dtype::I32, Rows::PerRow(1), 1);
        let codes = builder.input("codes", Dtype::I32, Rows::PerRow(1), 4);
        let picks = builder.input("picks", Dtype::I32, Rows::Tokens, 1);
        let valid = builder.input("valid", Dtype::I32, Rows::PerRow(1), 1);
        let [one, sum, placed] =
            ["one", "sum", "placed"].map(|name| builder.scratch(name, Rows::PerRow(1), width));
        let gathered = builder.scratch("gathered", Rows::Tokens, width);
        let part = builder.scratch("part", Rows::PerRow(1), 8);
        let rest = builder.scratch("rest", Rows::PerRow(1), width - 8);
        let tall = builder.scratch("tall", Rows::PerRow(4), width / 4);
        let masked = builder.scratch("masked", Rows::PerRow(4), width / 4);
        let repeated = builder.scratch("repeated", Rows::PerRow(3), width);
        let flags = builder.value("flags", Dtype::I32, Rows::PerRow(1), 1);
        let columns = builder.value("columns", Dtype::I32, Rows::PerRow(1), 2);
        builder.push(Op::Embed { table: tables[0], ids, out: one, accumulate: false });
        builder.push(Op::EmbedSum { tables: tables.to_vec(), codes, out: sum, accumulate: false });
        builder.push(Op::Embed { table: tables[1], ids, out: sum, accumulate: true });
        builder.push(Op::GatherRows { source: sum, rows: picks, out: gathered, accumulate: false });
        builder.push(Op::GatherRows { source: one, rows: picks, out: gathered, accumulate: true });
        builder.push(Op::Slice { source: sum, first: 3, out: part });
        builder.push(Op::Slice { source: one, first: 8, out: rest });
        builder.push(Op::Place { source: part, out: placed, first: width - 8 });
        builder.push(Op::Place { source: rest, out: placed, first: 0 });
        builder.push(Op::Reshape { source: placed, out: tall });
        builder.push(Op::MaskRows { source: tall, valid, frames: 2, out: masked });
        builder.push(Op::Repeat { source: one, out: repeated });
        builder.push(Op::Equals { ids: codes, id: 7, flags });
        builder.push(Op::Slice { source: codes, first: 2, out: columns });
        for out in [one, sum, gathered, placed, masked, repeated, flags, columns] {
            builder.output(out);
        }
        let random = &mut world.random;
        let mut ids = random.ids(rows, vocabulary);
        ids[0] = -1;
        let mut codes = random.ids(4 * rows, vocabulary);
        codes[0] = 7;
        codes[1] = -1;
        let mut picks = random.ids(9, rows);
        picks[4] = -1;
        let valid = random.ids(rows, 3);
        let inputs = vec![i32s(&ids), i32s(&codes), i32s(&picks), i32s(&valid)];
        world.check(&builder.finish(), rows, 9, inputs, 1e-6);
    }
}

#[test]
fn states_are_read_and_written_by_slot() {
    let mut world = World::new(fresh());
    let floats = world.state(12, Dtype::F32);
    let ints = world.state(3, Dtype::I32);
    let mut builder = ProgramBuilder::new("states");
    let slots = builder.input("slots", Dtype::I32, Rows::PerRow(1), 1);
    let active = builder.input("active", Dtype::I32, Rows::PerRow(1), 1);
    let new = builder.input("new", Dtype::F32, Rows::PerRow(1), 12);
    let codes = builder.input("codes", Dtype::I32, Rows::PerRow(1), 3);
    let old = builder.scratch("old", Rows::PerRow(1), 12);
    let old_codes = builder.value("old codes", Dtype::I32, Rows::PerRow(1), 3);
    builder.push(Op::LoadState { state: floats, slots, out: old });
    builder.push(Op::LoadState { state: ints, slots, out: old_codes });
    builder.push(Op::StoreState { state: floats, slots, source: new, active: Some(active) });
    builder.push(Op::StoreState { state: ints, slots, source: codes, active: None });
    builder.output(old);
    builder.output(old_codes);
    let program = builder.finish();
    for slots in [[4, 0, 2], [0, 4, 5], [3, 1, 4]] {
        let random = &mut world.random;
        let inputs =
            vec![i32s(&slots), i32s(&[1, 0, 1]), f32s(random.floats(36)), i32s(&random.ids(9, 1_000))];
        world.check(&program, 3, 0, inputs, 0.0);
    }
}
