//! Attention ops and sampling, on fresh random inputs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use contract::{Lane, Partition};
use device::program::{AttentionShape, Op, Program, ProgramBuilder, Rope, Rows, SampleBound};
use device::{Dtype, PagedSpec, StateId, ValueId, WeightForm, WeightId};
use world::{World, f32s, fresh, i32s, stream_inputs};

const SHAPE: AttentionShape = AttentionShape {
    heads: 6,
    kv_heads: 2,
    head_dim: 20,
    rope: Some(Rope { theta: 10_000.0 }),
    scale: 0.223_6,
};
const Q: usize = 120;
const KV: usize = 40;

/// Heads as the published sizes have them: two to a key, 128 columns.
const PUBLISHED: AttentionShape = AttentionShape {
    heads: 4,
    kv_heads: 2,
    head_dim: 128,
    rope: Some(Rope { theta: 1_000_000.0 }),
    scale: 0.088_4,
};

/// Attention leads into a product, as in a layer, so that a device may keep its result narrow.
fn lead_out(builder: &mut ProgramBuilder, rows: Rows, attended: ValueId, weight: WeightId) {
    let out = builder.scratch("projected", rows, 24);
    builder.push(Op::Linear { input: attended, weight, bias: None, activation: None, residual: None, out });
    builder.output(out);
}

#[test]
fn heads_as_wide_as_the_published_ones_attend_over_scattered_pages() {
    let mut world = World::new(fresh());
    let norms = [0; 2].map(|_| Some(world.weight(WeightForm::Vector, &[128])));
    let project = world.weight(WeightForm::Matrix, &[24, 512]);
    let spec =
        PagedSpec { name: "kv".to_owned(), layers: 2, kv_heads: 2, head_dim: 128, page_len: 16, pages: 16 };
    let pages = world.paged(spec);
    let program = |rows| {
        let mut builder = ProgramBuilder::new("pairs");
        let [q, k, v] = [("q", 512), ("k", 256), ("v", 256)]
            .map(|(name, cols)| builder.input(name, Dtype::F32, rows, cols));
        let [positions, owner] = ["positions", "owner"].map(|name| builder.input(name, Dtype::I32, rows, 1));
        let page_table = builder.input("page_table", Dtype::I32, Rows::PerRow(1), 6);
        for layer in 0..2 {
            let out = builder.scratch("attended", rows, 512);
            let [q_norm, k_norm] = norms;
            builder.push(Op::PagedAttention {
                q,
                k,
                v,
                q_norm,
                k_norm,
                norm_eps: 1e-6,
                shape: PUBLISHED,
                pages,
                layer,
                positions,
                owner,
                page_table,
                out,
            });
            lead_out(&mut builder, rows, out, project);
        }
        builder.finish()
    };
    let (decode, packed) = (program(Rows::PerRow(1)), program(Rows::Tokens));
    let table = [9, 3, 12, 1, 7, 10, 5, 2, 8, 14, 0, 0];
    // The second context joins later, and sits one step out.
    for step in 0..90 {
        let second = if step < 30 || step == 40 { -1 } else { step - 30 - i32::from(step > 40) };
        let random = &mut world.random;
        let qkv = [512, 256, 256].map(|cols| f32s(random.floats(2 * cols)));
        let given = qkv.into_iter().chain([i32s(&[step, second]), i32s(&[0, 1]), i32s(&table)]).collect();
        world.check_on(&decode, 2, 0, given, 1e-5, Lane::Lm, Partition::Lm);
    }
    // The second context gives way to a new prompt, while the first one's step rides along; then both step.
    for (begun, rest) in [(0..35, 0..1), (35..37, 1..2)] {
        let positions: Vec<i32> = begun.clone().chain([90 + rest.start]).collect();
        let owner: Vec<i32> = begun.map(|_| 1).chain([0]).collect();
        let tokens = positions.len();
        let random = &mut world.random;
        let qkv = [512, 256, 256].map(|cols| f32s(random.floats(tokens * cols)));
        let given = qkv.into_iter().chain([i32s(&positions), i32s(&owner), i32s(&table)]).collect();
        world.check_on(&packed, 2, tokens, given, 1e-5, Lane::Lm, Partition::Lm);
    }
    for step in 0..3 {
        let random = &mut world.random;
        let qkv = [512, 256, 256].map(|cols| f32s(random.floats(2 * cols)));
        let positions = i32s(&[92 + step, 37 + step]);
        let given = qkv.into_iter().chain([positions, i32s(&[0, 1]), i32s(&table)]).collect();
        world.check_on(&decode, 2, 0, given, 1e-5, Lane::Lm, Partition::Lm);
    }
}

#[test]
fn a_frames_own_keys_are_met_by_heads_as_wide_as_the_published_ones() {
    let mut world = World::new(fresh());
    let norms = [0; 2].map(|_| Some(world.weight(WeightForm::Vector, &[128])));
    let project = world.weight(WeightForm::Matrix, &[24, 512]);
    let mut builder = ProgramBuilder::new("frame");
    let [keys, values] = ["keys", "values"].map(|name| builder.scratch(name, Rows::PerRow(12), 256));
    let mut sizes = Vec::new();
    for (position, steps) in [(0, 2)].into_iter().chain((2..12).map(|position| (position, 1))) {
        let rows = Rows::PerRow(steps);
        let [q, k, v] = [("q", 512), ("k", 256), ("v", 256)].map(|(name, cols)| {
            sizes.push(steps * cols);
            builder.input(name, Dtype::F32, rows, cols)
        });
        let out = builder.scratch("attended", rows, 512);
        let [q_norm, k_norm] = norms;
        builder.push(Op::DepthAttention {
            q,
            k,
            v,
            q_norm,
            k_norm,
            norm_eps: 1e-6,
            shape: PUBLISHED,
            keys,
            values,
            position,
            out,
        });
        lead_out(&mut builder, rows, out, project);
    }
    let program = builder.finish();
    for rows in [1, 5] {
        let inputs = sizes.iter().map(|size| f32s(world.random.floats(rows * size))).collect();
        world.check(&program, rows, 0, inputs, 1e-5);
    }
}

#[test]
fn paged_attention_prefills_and_decodes_over_scattered_pages() {
    let mut world = World::new(fresh());
    let norms = [0; 2].map(|_| Some(world.weight(WeightForm::Vector, &[20])));
    let spec =
        PagedSpec { name: "kv".to_owned(), layers: 2, kv_heads: 2, head_dim: 20, page_len: 4, pages: 16 };
    let pages = world.paged(spec);
    let program = |rows| {
        let mut builder = ProgramBuilder::new("paged");
        let [q, k, v] =
            [("q", Q), ("k", KV), ("v", KV)].map(|(name, cols)| builder.input(name, Dtype::F32, rows, cols));
        let [positions, owner] = ["positions", "owner"].map(|name| builder.input(name, Dtype::I32, rows, 1));
        let page_table = builder.input("page_table", Dtype::I32, Rows::PerRow(1), 4);
        for layer in 0..2 {
            let out = builder.scratch("out", rows, Q);
            let [q_norm, k_norm] = norms;
            builder.push(Op::PagedAttention {
                q,
                k,
                v,
                q_norm,
                k_norm,
                norm_eps: 1e-6,
                shape: SHAPE,
                pages,
                layer,
                positions,
                owner,
                page_table,
                out,
            });
            builder.output(out);
        }
        builder.finish()
    };
    let (prefill, decode) = (program(Rows::Tokens), program(Rows::PerRow(1)));
    let table = [9, 3, 12, 1, 5, 2, 8, 14];
    let lengths = [6, 3];
    let tokens: usize = lengths.iter().sum();
    let owner: Vec<i32> = lengths.iter().zip(0..).flat_map(|(&n, context)| vec![context; n]).collect();
    let positions: Vec<i32> = lengths.iter().flat_map(|&n| 0..n as i32).collect();
    let inputs = |world: &mut World, rows: usize, positions: &[i32], owner: &[i32]| {
        let random = &mut world.random;
        let qkv = [Q, KV, KV].map(|cols| f32s(random.floats(rows * cols)));
        qkv.into_iter().chain([i32s(positions), i32s(owner), i32s(&table)]).collect::<Vec<_>>()
    };
    let given = inputs(&mut world, tokens, &positions, &owner);
    world.check_on(&prefill, 2, tokens, given, 1e-5, Lane::Lm, Partition::Whole);
    for step in 0..6 {
        // A row without a position neither appends nor attends.
        let second = if step == 2 { -1 } else { 3 + step };
        let given = inputs(&mut world, 2, &[6 + step, second], &[0, 1]);
        world.check_on(&decode, 2, 0, given, 1e-5, Lane::Lm, Partition::Lm);
        if step == 2 {
            let given = inputs(&mut world, 2, &[6 + step, 3 + step], &[0, 1]);
            world.check_on(&decode, 2, 0, given, 1e-5, Lane::Lm, Partition::Lm);
        }
    }
}

#[test]
fn a_depth_transformer_keeps_its_keys_for_one_launch() {
    let mut world = World::new(fresh());
    let norms = [0; 2].map(|_| Some(world.weight(WeightForm::Vector, &[20])));
    let mut builder = ProgramBuilder::new("depth");
    let [keys, values] = ["keys", "values"].map(|name| builder.scratch(name, Rows::PerRow(5), KV));
    let mut sizes = Vec::new();
    for (position, steps) in [(0, 2), (2, 1), (3, 1), (4, 1)] {
        let rows = Rows::PerRow(steps);
        let [q, k, v] = [("q", Q), ("k", KV), ("v", KV)].map(|(name, cols)| {
            sizes.push(steps * cols);
            builder.input(name, Dtype::F32, rows, cols)
        });
        let out = builder.scratch("out", rows, Q);
        let [q_norm, k_norm] = norms;
        builder.push(Op::DepthAttention {
            q,
            k,
            v,
            q_norm,
            k_norm,
            norm_eps: 1e-6,
            shape: SHAPE,
            keys,
            values,
            position,
            out,
        });
        builder.output(out);
    }
    let program = builder.finish();
    for rows in [1, 5] {
        let inputs = sizes.iter().map(|size| f32s(world.random.floats(rows * size))).collect();
        world.check(&program, rows, 0, inputs, 1e-5);
    }
}

fn window_program(steps: usize, window: usize, state: StateId) -> Program {
    let mut builder = ProgramBuilder::new("window");
    let rows = Rows::PerRow(steps);
    let [q, k, v] =
        [("q", Q), ("k", KV), ("v", KV)].map(|(name, cols)| builder.input(name, Dtype::F32, rows, cols));
    let [slots, start, valid] = stream_inputs(&mut builder);
    let out = builder.scratch("out", rows, Q);
    builder.push(Op::WindowAttention { q, k, v, shape: SHAPE, window, state, slots, start, valid, out });
    builder.output(out);
    builder.finish()
}

#[test]
fn window_attention_carries_what_is_valid() {
    let mut world = World::new(fresh());
    let window = 7;
    let state = world.state(2 * (window - 1) * KV, Dtype::F32);
    let slots = [3, 0, 5];
    let mut starts = [0; 3];
    for steps in [2, 10, 4, 4, 1, 10] {
        let program = window_program(steps, window, state);
        let valid: Vec<i32> = (0..3).map(|_| 1 + world.random.below(steps) as i32).collect();
        let random = &mut world.random;
        let qkv = [Q, KV, KV].map(|cols| f32s(random.floats(3 * steps * cols)));
        let inputs = qkv.into_iter().chain([i32s(&slots), i32s(&starts), i32s(&valid)]).collect();
        world.check(&program, 3, 0, inputs, 1e-5);
        starts.iter_mut().zip(&valid).for_each(|(start, valid)| *start += valid);
    }
}

#[test]
fn local_attention_sees_its_window() {
    let mut world = World::new(fresh());
    for (rows, window) in [(1, 4), (9, 4), (30, 12), (5, 50)] {
        let mut builder = ProgramBuilder::new("local");
        let fixed = Rows::Fixed(rows);
        let [q, k, v] =
            [("q", Q), ("k", KV), ("v", KV)].map(|(name, cols)| builder.input(name, Dtype::F32, fixed, cols));
        let out = builder.scratch("out", fixed, Q);
        builder.push(Op::LocalAttention { q, k, v, shape: SHAPE, window, out });
        builder.output(out);
        let random = &mut world.random;
        let inputs = [Q, KV, KV].map(|cols| f32s(random.floats(rows * cols))).to_vec();
        world.check(&builder.finish(), 1, 0, inputs, 1e-5);
    }
}

#[test]
fn sampling_draws_what_the_pure_function_draws_and_marks_it() {
    draw(64, |score| score);
    // Of many that tie with the last one kept, all may be drawn.
    draw(3_000, |score| (score * 64.0).round() / 64.0);
    draw(3_000, |score| (score * 4.0).round() / 4.0);
}

fn draw(vocabulary: usize, rounded: fn(f32) -> f32) {
    let mut world = World::new(fresh());
    let history = world.state(vocabulary, Dtype::I32);
    let mut builder = ProgramBuilder::new("sample");
    let row = Rows::PerRow(1);
    let logits = builder.input("logits", Dtype::F32, row, vocabulary);
    let params = builder.input("params", Dtype::F32, row, 4);
    let seeds = builder.input("seeds", Dtype::I32, row, 2);
    let [step, slots, allow] = ["step", "slots", "allow"].map(|name| builder.input(name, Dtype::I32, row, 1));
    let out = builder.value("out", Dtype::I32, row, 2);
    let bound = Some(SampleBound { suppress_from: 48, suppress_to: 64, keep: Some(50) });
    for (column, history, bound) in [(0, Some(history), bound), (1, None, None)] {
        builder.push(Op::Sample {
            logits,
            params,
            seeds,
            step,
            draw: column as u32,
            bound,
            allow_keep: Some(allow),
            history,
            slots,
            out,
            column,
        });
    }
    builder.output(out);
    let program = builder.finish();
    for step in [0, 1, 2, 3, 0, 1] {
        let random = &mut world.random;
        let inputs = vec![
            f32s(random.floats(3 * vocabulary).into_iter().map(rounded).collect()),
            f32s(vec![0.9, 50.0, 1.0, 1.05, 0.0, 0.0, 1.0, 1.3, 1.5, 10.0, 0.8, 1.0]),
            i32s(&random.ids(6, 1 << 30)),
            i32s(&[step; 3]),
            i32s(&[2, 5, 0]),
            i32s(&[1, 0, 1]),
        ];
        world.check(&program, 3, 0, inputs, 0.0);
    }
}
