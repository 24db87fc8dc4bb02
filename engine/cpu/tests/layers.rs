//! Whole layers in the proportions of the published sizes: a device takes norms, branches and keys together in ways that
//! tests of single ops do not see.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use contract::{Lane, Partition};
use device::program::{Activation, AttentionShape, Op, ProgramBuilder, Rope, Rows};
use device::{Dtype, HostTensor, PagedId, PagedSpec, Program, ValueId, WeightForm, WeightId};
use world::{Run, World, f32s, fresh, i32s};

const WIDTH: usize = 256;
const INNER: usize = 768;
const HEAD: usize = 128;
const Q: usize = 4 * HEAD;
const KV: usize = 2 * HEAD;
const LAYERS: usize = 2;
const SHAPE: AttentionShape = AttentionShape {
    heads: 4,
    kv_heads: 2,
    head_dim: HEAD,
    rope: Some(Rope { theta: 1_000_000.0 }),
    scale: 0.088_4,
};
const EPS: f32 = 1e-6;

struct Weights {
    norms: [WeightId; 2],
    head_norms: [WeightId; 2],
    q: WeightId,
    k: WeightId,
    v: WeightId,
    out: WeightId,
    mlp: [WeightId; 3],
    /// What attention's branch and the other are scaled by, column by column, where they are.
    scales: Option<[WeightId; 2]>,
}

impl Weights {
    /// Every second layer's branches are scaled, as a codec's are.
    fn layers(world: &mut World) -> Vec<Self> {
        (0..LAYERS).map(|layer| Self::random(world, layer % 2 == 1)).collect()
    }

    fn random(world: &mut World, scaled: bool) -> Self {
        let mut matrix = |out: usize, input: usize| world.weight(WeightForm::Matrix, &[out, input]);
        let [q, k, v, out] = [(Q, WIDTH), (KV, WIDTH), (KV, WIDTH), (WIDTH, Q)].map(|(o, i)| matrix(o, i));
        let mlp = [(INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)].map(|(o, i)| matrix(o, i));
        let mut vector = |width: usize| world.weight(WeightForm::Vector, &[width]);
        Self {
            norms: [0; 2].map(|_| vector(WIDTH)),
            head_norms: [0; 2].map(|_| vector(HEAD)),
            q,
            k,
            v,
            out,
            mlp,
            scales: scaled.then(|| [0; 2].map(|_| vector(WIDTH))),
        }
    }
}

/// Values that all layers use in turn.
#[derive(Clone, Copy)]
struct Scratch {
    normed: ValueId,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    attended: ValueId,
    branch: ValueId,
}

impl Scratch {
    fn new(builder: &mut ProgramBuilder) -> Self {
        let mut value = |name: &str, cols| builder.scratch(name, Rows::PerRow(1), cols);
        Self {
            normed: value("normed", WIDTH),
            q: value("q", Q),
            k: value("k", KV),
            v: value("v", KV),
            attended: value("attended", Q),
            branch: value("branch", WIDTH),
        }
    }
}

fn linear(input: ValueId, weight: WeightId, residual: Option<ValueId>, out: ValueId) -> Op {
    Op::Linear { input, weight, bias: None, activation: None, residual, out }
}

fn record(
    builder: &mut ProgramBuilder,
    weights: &Weights,
    scratch: Scratch,
    stream: ValueId,
    attention: impl FnOnce(&Weights, Scratch) -> Op,
) {
    let Scratch { normed, q, k, v, attended, branch } = scratch;
    let [before, between] = weights.norms;
    builder.push(Op::RmsNorm { input: stream, weight: before, eps: EPS, out: normed });
    for (weight, out) in [(weights.q, q), (weights.k, k), (weights.v, v)] {
        builder.push(linear(normed, weight, None, out));
    }
    builder.push(attention(weights, scratch));
    let scale = weights.scales.map(|[attention, _]| attention);
    if scale.is_some() {
        builder.push(linear(attended, weights.out, None, branch));
        builder.push(Op::AddScaled { target: stream, input: branch, scale });
    } else {
        builder.push(linear(attended, weights.out, Some(stream), stream));
    }
    builder.push(Op::RmsNorm { input: stream, weight: between, eps: EPS, out: normed });
    let [gate, up, down] = weights.mlp;
    builder.push(Op::GatedMlp { input: normed, gate, up, down, out: branch });
    let scale = weights.scales.map(|[_, mlp]| mlp);
    builder.push(Op::AddScaled { target: stream, input: branch, scale });
}

/// A matrix and its bias, a norm, a head.
type Ends = (WeightId, WeightId, WeightId, WeightId);

/// What leads into the layers, with a bias, and out of them.
fn ends(world: &mut World) -> Ends {
    let lead_in = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let bias = world.weight(WeightForm::Vector, &[WIDTH]);
    let norm = world.weight(WeightForm::Vector, &[WIDTH]);
    (lead_in, bias, norm, world.weight(WeightForm::Matrix, &[192, WIDTH]))
}

/// Three positions of a frame through all layers, and what a head makes of each.
fn frame_program(layers: &[Weights], (lead_in, bias, norm, head): Ends) -> Program {
    let one = Rows::PerRow(1);
    let mut builder = ProgramBuilder::new("frame");
    let keys: Vec<_> =
        (0..2 * LAYERS).map(|n| builder.scratch(&format!("keys {n}"), Rows::PerRow(4), KV)).collect();
    for position in 0..3 {
        let input = builder.input(&format!("input {position}"), Dtype::F32, one, WIDTH);
        let [fed, stream] = ["fed", "stream"].map(|name| builder.scratch(name, one, WIDTH));
        builder.push(Op::Activate { input, activation: Activation::Silu, out: fed });
        let activation = Some(Activation::Silu);
        let bias = Some(bias);
        builder.push(Op::Linear {
            input: fed,
            weight: lead_in,
            bias,
            activation,
            residual: None,
            out: stream,
        });
        let scratch = Scratch::new(&mut builder);
        for (layer, weights) in layers.iter().enumerate() {
            record(&mut builder, weights, scratch, stream, |weights, scratch| Op::DepthAttention {
                q: scratch.q,
                k: scratch.k,
                v: scratch.v,
                q_norm: Some(weights.head_norms[0]),
                k_norm: Some(weights.head_norms[1]),
                norm_eps: EPS,
                shape: SHAPE,
                keys: keys[2 * layer],
                values: keys[2 * layer + 1],
                position,
                out: scratch.attended,
            });
        }
        builder.push(Op::RmsNorm { input: stream, weight: norm, eps: EPS, out: scratch.normed });
        let out = builder.scratch(&format!("out {position}"), one, 192);
        builder.push(linear(scratch.normed, head, None, out));
        builder.output(out);
    }
    builder.finish()
}

#[test]
fn layers_over_a_frames_own_keys_match() {
    let mut world = World::new(fresh());
    let layers = Weights::layers(&mut world);
    let ends = ends(&mut world);
    let program = frame_program(&layers, ends);
    for rows in [1, 5, 17, 64, 70, 130, 200] {
        let inputs = (0..3).map(|_| f32s(world.random.floats(rows * WIDTH))).collect();
        world.check_on(&program, rows, 0, inputs, 1e-4, Lane::Lm, Partition::Lm);
    }
}

#[test]
fn rows_that_are_given_the_same_are_answered_the_same_bit_for_bit_wherever_they_stand() {
    let mut world = World::new(fresh());
    let layers = Weights::layers(&mut world);
    let ends = ends(&mut world);
    let program = frame_program(&layers, ends);
    for rows in [3, 60, 120, 250, 500] {
        let executable = world.build(&program, rows, 0, Partition::Lm);
        let mut given = || f32s(world.random.floats(WIDTH).repeat(rows));
        let inputs = vec![given(), given(), given()];
        let outputs = world.run(Run { lane: Lane::Lm, executable, rows, tokens: 0, inputs }).unwrap();
        for (position, output) in outputs.iter().enumerate() {
            let HostTensor::F32(values) = output else { panic!("numbers") };
            let (first, bits) =
                (&values[..192], |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            let differs = values.chunks(192).position(|row| bits(row) != bits(first));
            assert_eq!(differs, None, "position {position} of {rows} rows");
        }
        world.backend.release(executable);
    }
}

fn pool(world: &mut World) -> PagedId {
    let spec = PagedSpec {
        name: "kv".to_owned(),
        layers: LAYERS,
        kv_heads: 2,
        head_dim: HEAD,
        page_len: 16,
        pages: 1200,
    };
    world.paged(spec)
}

#[test]
fn layers_over_pages_match_step_after_step() {
    let mut world = World::new(fresh());
    let layers = Weights::layers(&mut world);
    let (lead_in, bias, norm, head) = ends(&mut world);
    for rows in [1, 6, 66, 140] {
        let pages = pool(&mut world);
        let one = Rows::PerRow(1);
        let mut builder = ProgramBuilder::new("step");
        let input = builder.input("input", Dtype::F32, one, WIDTH);
        let [positions, owner] = ["positions", "owner"].map(|name| builder.input(name, Dtype::I32, one, 1));
        let page_table = builder.input("page_table", Dtype::I32, one, 8);
        let [fed, stream] = ["fed", "stream"].map(|name| builder.scratch(name, one, WIDTH));
        builder.push(Op::Activate { input, activation: Activation::Silu, out: fed });
        builder.push(Op::Linear {
            input: fed,
            weight: lead_in,
            bias: Some(bias),
            activation: None,
            residual: None,
            out: stream,
        });
        let scratch = Scratch::new(&mut builder);
        for (layer, weights) in layers.iter().enumerate() {
            record(&mut builder, weights, scratch, stream, |weights, scratch| Op::PagedAttention {
                q: scratch.q,
                k: scratch.k,
                v: scratch.v,
                q_norm: Some(weights.head_norms[0]),
                k_norm: Some(weights.head_norms[1]),
                norm_eps: EPS,
                shape: SHAPE,
                pages,
                layer,
                positions,
                owner,
                page_table,
                out: scratch.attended,
            });
        }
        builder.push(Op::RmsNorm { input: stream, weight: norm, eps: EPS, out: scratch.normed });
        let out = builder.scratch("out", one, 192);
        builder.push(linear(scratch.normed, head, None, out));
        builder.output(out);
        let program = builder.finish();
        let table: Vec<i32> = (0..rows as i32 * 8).map(|place| 1 + (place * 7) % 1199).collect();
        let owners: Vec<i32> = (0..rows as i32).collect();
        for step in 0..20 {
            // Each sits out every ninth step, not all the same one.
            let at = |row: i32| if (step + row) % 9 == 8 { -1 } else { step - ((step + row) / 9 - row / 9) };
            let place: Vec<i32> = (0..rows as i32).map(at).collect();
            let given =
                vec![f32s(world.random.floats(rows * WIDTH)), i32s(&place), i32s(&owners), i32s(&table)];
            world.check_on(&program, rows, 0, given, 1e-4, Lane::Lm, Partition::Lm);
        }
    }
}

/// A greedy draw, and the drawn id's row made the stream of a layer; `projected` from another width, else as it is.
fn drawn_row(world: &mut World, projected: bool, rows: usize) {
    const IDS: usize = 90;
    let (_, bias, norm, head) = ends(world);
    let width = if projected { 2 * WIDTH } else { WIDTH };
    let table = world.weight(WeightForm::Table, &[IDS, width]);
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, width]);
    let one = Rows::PerRow(1);
    let mut builder = ProgramBuilder::new("drawn row");
    let logits = builder.input("logits", Dtype::F32, one, IDS);
    let params = builder.input("params", Dtype::F32, one, 4);
    let seeds = builder.input("seeds", Dtype::I32, one, 2);
    let [step, slots] = ["step", "slots"].map(|name| builder.input(name, Dtype::I32, one, 1));
    let [id, codes] =
        [("id", 1), ("codes", 3)].map(|(name, cols)| builder.value(name, Dtype::I32, one, cols));
    let [embedded, stream, normed, out] =
        [("embedded", width), ("stream", WIDTH), ("normed", WIDTH), ("out", 192)]
            .map(|(name, cols)| builder.scratch(name, one, cols));
    let before = builder.input("codes.before", Dtype::I32, one, 3);
    builder.push(Op::Reshape { source: before, out: codes });
    for column in 1..3 {
        builder.push(Op::Sample {
            logits,
            params,
            seeds,
            step,
            draw: column as u32,
            bound: None,
            allow_keep: None,
            history: None,
            slots,
            out: id,
            column: 0,
        });
        builder.push(Op::Place { source: id, out: codes, first: column });
        builder.push(Op::Embed { table, ids: id, out: embedded, accumulate: false });
        builder.push(if projected {
            let (activation, residual) = (None, None);
            Op::Linear { input: embedded, weight, bias: Some(bias), activation, residual, out: stream }
        } else {
            Op::Reshape { source: embedded, out: stream }
        });
        builder.push(Op::RmsNorm { input: stream, weight: norm, eps: EPS, out: normed });
        builder.push(linear(normed, head, None, out));
    }
    [codes, stream, out].into_iter().for_each(|value| builder.output(value));
    let inputs = vec![
        f32s(world.random.floats(rows * IDS)),
        f32s([0.0, 50.0, 1.0, 1.0].repeat(rows)),
        i32s(&world.random.ids(2 * rows, 1 << 30)),
        i32s(&vec![3; rows]),
        i32s(&vec![0; rows]),
        i32s(&vec![0; 3 * rows]),
    ];
    world.check_on(&builder.finish(), rows, 0, inputs, 1e-5, Lane::Lm, Partition::Lm);
}

#[test]
fn a_drawn_ids_row_becomes_a_stream_as_lookup_product_and_norm_make_it() {
    let mut world = World::new(fresh());
    for projected in [true, false] {
        for rows in [1, 6, 66, 140] {
            drawn_row(&mut world, projected, rows);
        }
    }
}
