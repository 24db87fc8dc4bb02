use std::collections::BTreeSet;

use device::program::{Activation, AttentionShape, ConvShape, ProgramBuilder, Rope, Snake};
use device::{Dtype, PagedSpec, StateSpec, WeightForm, WeightId};

use super::published::SIZES;
use super::*;
use crate::compile::{SOURCES, compile_all};
use crate::kernels::file_of;

const BF16: Target =
    Target { precision: Precision::Bf16, sms: 132, shared_max: 220 << 10, hopper: false, library_from: None };
const HOPPER: Target = Target { hopper: true, ..BF16 };
const F32: Target = Target { precision: Precision::F32, ..BF16 };

#[derive(Default)]
struct Bench {
    catalog: Catalog,
}

impl Bench {
    fn weight(&mut self, form: WeightForm, shape: &[usize]) -> WeightId {
        self.catalog.add_weight("w", form, shape, shape.iter().product()).expect("a good weight")
    }

    fn matrix(&mut self, out: usize, input: usize) -> WeightId {
        self.weight(WeightForm::Matrix, &[out, input])
    }

    fn lower(&self, program: &Program, batch: usize, target: Target) -> Lowered {
        program.check(&self.catalog).unwrap_or_else(|error| panic!("{error}"));
        lower(program, &self.catalog, Shape { batch, tokens: 0 }, target)
    }
}

fn kernels(lowered: &Lowered) -> Vec<&str> {
    lowered.steps.iter().map(|step| step.kernel.as_ref()).collect()
}

fn linear(input: ValueId, weight: WeightId, out: ValueId) -> Op {
    Op::Linear { input, weight, bias: None, activation: None, residual: None, out }
}

/// One decoder layer over paged attention, 64 wide, two heads of `dim` columns over `kv_heads`.
fn layer(bench: &mut Bench, kv_heads: usize, dim: usize) -> Program {
    layer_with(bench, kv_heads, dim, false)
}

/// The same, its branches scaled column by column where that is asked for.
fn layer_with(bench: &mut Bench, kv_heads: usize, dim: usize, scaled: bool) -> Program {
    let one = Rows::PerRow(1);
    let pages = bench
        .catalog
        .add_paged(PagedSpec {
            name: "p".to_owned(),
            layers: 1,
            kv_heads,
            head_dim: dim,
            page_len: 16,
            pages: 4,
        })
        .expect("a pool");
    let norm = bench.weight(WeightForm::Vector, &[64]);
    let [query, key] = [2 * dim, kv_heads * dim];
    let [q_weight, o_weight] = [bench.matrix(query, 64), bench.matrix(64, query)];
    let [k_weight, v_weight] = [0; 2].map(|_| bench.matrix(key, 64));
    let [gate, up, down] = [bench.matrix(128, 64), bench.matrix(128, 64), bench.matrix(64, 128)];
    let mut builder = ProgramBuilder::new("layer");
    let input = builder.input("input", Dtype::F32, one, 64);
    let [positions, owner, page_table] =
        ["positions", "owner", "page_table"].map(|name| builder.input(name, Dtype::I32, one, 1));
    let [stream, normed, branch] = ["stream", "normed", "branch"].map(|name| builder.scratch(name, one, 64));
    let [q, attended] = ["q", "attended"].map(|name| builder.scratch(name, one, query));
    let [k, v] = ["k", "v"].map(|name| builder.scratch(name, one, key));
    let shape = AttentionShape {
        heads: 2,
        kv_heads,
        head_dim: dim,
        rope: Some(Rope { theta: 10_000.0 }),
        scale: 0.2,
    };
    builder.push(Op::Reshape { source: input, out: stream });
    builder.push(Op::RmsNorm { input: stream, weight: norm, eps: 1e-6, out: normed });
    for (weight, out) in [(q_weight, q), (k_weight, k), (v_weight, v)] {
        builder.push(linear(normed, weight, out));
    }
    builder.push(Op::PagedAttention {
        q,
        k,
        v,
        q_norm: None,
        k_norm: None,
        norm_eps: 1e-6,
        shape,
        pages,
        layer: 0,
        positions,
        owner,
        page_table,
        out: attended,
    });
    let scale = scaled.then(|| bench.weight(WeightForm::Vector, &[64]));
    if scaled {
        builder.push(linear(attended, o_weight, branch));
        builder.push(Op::AddScaled { target: stream, input: branch, scale });
    } else {
        builder.push(Op::Linear {
            input: attended,
            weight: o_weight,
            bias: None,
            activation: None,
            residual: Some(stream),
            out: stream,
        });
    }
    builder.push(Op::RmsNorm { input: stream, weight: norm, eps: 1e-6, out: normed });
    builder.push(Op::GatedMlp { input: normed, gate, up, down, out: branch });
    builder.push(Op::AddScaled { target: stream, input: branch, scale });
    builder.output(stream);
    builder.finish()
}

#[test]
fn a_decoder_layer_is_seven_launches() {
    let mut bench = Bench::default();
    let program = layer(&mut bench, 2, 32);
    let lowered = bench.lower(&program, 8, BF16);
    let product = "product_tensor_16x64";
    let expected =
        ["copy_ff", "rms_norm_fb", product, "attend_bb_1", product, "rms_norm_fb", product, product];
    assert_eq!(kernels(&lowered), expected);
    let f32 = bench.lower(&program, 8, F32);
    assert_eq!(f32.steps.len(), lowered.steps.len());
    assert!(
        kernels(&f32).iter().all(|kernel| !kernel.ends_with("_fb") && !kernel.contains("tensor")),
        "{f32:?}"
    );
}

#[test]
fn on_hopper_the_second_norm_of_a_layer_is_part_of_the_products_around_it() {
    let mut bench = Bench::default();
    let program = layer(&mut bench, 1, 128);
    let lowered = bench.lower(&program, 8, HOPPER);
    let product = "product_rows_8";
    let gated = "product_rows_gated_8";
    let expected = ["copy_ff", "rms_norm_fb", product, "attend_pair_pages", product, gated, product];
    assert_eq!(kernels(&lowered), expected);
}

#[test]
fn each_reader_of_normed_rows_scales_them_by_the_norm_that_came_last() {
    let mut bench = Bench::default();
    let norm = bench.weight(WeightForm::Vector, &[64]);
    let [first, second, third] = [0; 3].map(|_| bench.matrix(64, 64));
    let one = Rows::PerRow(1);
    let mut builder = ProgramBuilder::new("chain");
    let input = builder.input("input", Dtype::F32, one, 64);
    let [stream, normed, out] = ["stream", "normed", "out"].map(|name| builder.scratch(name, one, 64));
    builder.push(Op::Reshape { source: input, out: stream });
    for weight in [first, second] {
        let residual = Some(stream);
        builder.push(Op::Linear { input, weight, bias: None, activation: None, residual, out: stream });
        builder.push(Op::RmsNorm { input: stream, weight: norm, eps: 1e-6, out: normed });
        builder.push(linear(normed, third, out));
    }
    builder.output(out);
    let lowered = bench.lower(&builder.finish(), 4, HOPPER);
    let products: Vec<_> = lowered.steps.iter().filter(|step| step.kernel.contains("product")).collect();
    assert_eq!(products.len(), 4);
    for pair in products.chunks(2) {
        let temps = |step: &Step| -> Vec<Place> {
            step.places().filter(|place| matches!(place, Place::Temp(_))).cloned().collect()
        };
        let (written, read) = (temps(pair[0]), temps(pair[1]));
        assert_eq!(written.last(), read.last(), "the sums of squares");
    }
}

#[test]
fn a_norm_that_something_else_reads_too_stays_a_launch() {
    let mut bench = Bench::default();
    let norm = bench.weight(WeightForm::Vector, &[64]);
    let [first, second] = [0; 2].map(|_| bench.matrix(64, 64));
    let build = |read_again: bool| {
        let mut builder = ProgramBuilder::new("two");
        let one = Rows::PerRow(1);
        let input = builder.input("input", Dtype::F32, one, 64);
        let [stream, normed, out, copy] =
            ["stream", "normed", "out", "copy"].map(|name| builder.scratch(name, one, 64));
        builder.push(Op::Reshape { source: input, out: stream });
        let residual = Some(stream);
        builder.push(Op::Linear {
            input,
            weight: first,
            bias: None,
            activation: None,
            residual,
            out: stream,
        });
        builder.push(Op::RmsNorm { input: stream, weight: norm, eps: 1e-6, out: normed });
        builder.push(linear(normed, second, out));
        if read_again {
            builder.push(Op::Reshape { source: normed, out: copy });
            builder.output(copy);
        }
        builder.output(out);
        kernels(&bench.lower(&builder.finish(), 4, HOPPER))
            .iter()
            .filter(|name| name.contains("norm"))
            .count()
    };
    assert_eq!((build(false), build(true)), (0, 1));
}

#[test]
fn an_activation_keeps_a_layer_to_itself() {
    let mut bench = Bench::default();
    let [a, b] = [0; 2].map(|_| bench.matrix(64, 64));
    let mut builder = ProgramBuilder::new("two");
    let input = builder.input("input", Dtype::F32, Rows::PerRow(1), 64);
    let [first, second] = ["first", "second"].map(|name| builder.scratch(name, Rows::PerRow(1), 64));
    builder.push(linear(input, a, first));
    builder.push(Op::Linear {
        input,
        weight: b,
        bias: None,
        activation: Some(Activation::Silu),
        residual: None,
        out: second,
    });
    builder.output(first);
    builder.output(second);
    assert_eq!(bench.lower(&builder.finish(), 1, F32).steps.len(), 2);
}

#[test]
fn values_alive_together_never_overlap() {
    let mut bench = Bench::default();
    let program = layer(&mut bench, 2, 32);
    for batch in [1, 3, 64] {
        let lowered = bench.lower(&program, batch, BF16);
        for (index, step) in lowered.steps.iter().enumerate() {
            let mut seen: Vec<(usize, usize)> = Vec::new();
            for place in step.places() {
                let range = match place {
                    Place::Value(id) => lowered.values[id.0 as usize].map(|at| (at, at + batch * 64 * 2)),
                    Place::Temp(temp) => Some((lowered.temps[*temp], lowered.temps[*temp] + 2 * batch)),
                    _ => None,
                };
                let Some(range) = range.filter(|range| !seen.contains(range)) else { continue };
                let clear = seen.iter().all(|other| range.1 <= other.0 || other.1 <= range.0);
                assert!(clear, "step {index} ({}) touches overlapping memory", step.kernel);
                assert!(range.1 <= lowered.bytes, "step {index} reaches past the arena");
                seen.push(range);
            }
        }
    }
}

/// A residual unit as a published codec has it.
fn unit(bench: &mut Bench, channels: usize) -> Program {
    let wide = bench.weight(WeightForm::Conv, &[channels, channels, 7]);
    let point = bench.weight(WeightForm::Conv, &[channels, channels, 1]);
    let [alpha, beta] = [0; 2].map(|_| bench.weight(WeightForm::Vector, &[channels]));
    let state = StateSpec { name: "s".to_owned(), width: 6 * channels, dtype: Dtype::F32 };
    let state = bench.catalog.add_state(state).expect("a state");
    let mut builder = ProgramBuilder::new("unit");
    let rows = Rows::PerRow(200);
    let input = builder.input("input", Dtype::F32, rows, channels);
    let [slots, start, valid] =
        ["slots", "start", "valid"].map(|name| builder.input(name, Dtype::I32, Rows::PerRow(1), 1));
    let [mid, between, out] = ["mid", "between", "out"].map(|name| builder.scratch(name, rows, channels));
    let mut conv = |input, weight, kernel, snake, residual, state, out| {
        builder.push(Op::CausalConv {
            input,
            weight,
            bias: None,
            shape: ConvShape { kernel, stride: 1, dilation: 1 },
            snake,
            residual,
            state,
            slots,
            start,
            valid,
            frames: 2,
            out,
        });
    };
    let snake = Some(Snake { alpha, beta });
    conv(input, point, 1, None, None, None, mid);
    conv(mid, wide, 7, snake, None, Some(state), between);
    conv(between, point, 1, snake, Some(mid), None, out);
    builder.output(out);
    builder.finish()
}

#[test]
fn products_of_many_rows_go_to_the_library_with_q_k_and_v_as_one_and_norms_by_themselves() {
    let mut bench = Bench::default();
    let program = layer(&mut bench, 1, 128);
    let target = Target { library_from: Some(96), ..HOPPER };
    let few = bench.lower(&program, 80, target);
    assert!(few.steps.iter().all(|step| step.library.is_none()), "{:?}", kernels(&few));
    let many = bench.lower(&program, 96, target);
    let layer_of = ["rms_norm_wide", "matmul", "attend_pair_pages", "matmul"];
    let mlp = ["matmul", "gated_silu", "matmul"];
    let names = kernels(&many);
    assert!(names.windows(4).any(|names| names[1..] == layer_of[1..]), "{names:?}");
    assert!(names.windows(3).any(|names| names == mlp), "{names:?}");
    let shapes: Vec<_> = many
        .steps
        .iter()
        .filter_map(|step| step.library)
        .map(|it| (it.rows, it.cols, it.depth, it.add))
        .collect();
    // Two query heads and one of keys and of values; out; gate and up; down.
    assert_eq!(
        shapes,
        [(96, 512, 64, false), (96, 64, 256, true), (96, 256, 64, false), (96, 64, 128, true)]
    );
    let sms_alone = bench.lower(&program, 96, HOPPER);
    assert!(sms_alone.steps.iter().all(|step| step.library.is_none()));
    assert!(
        bench
            .lower(&program, 96, Target { precision: Precision::F32, ..target })
            .steps
            .iter()
            .all(|it| it.library.is_none())
    );
}

#[test]
fn a_scaled_branch_joins_its_stream_within_the_product_that_makes_it_in_bf16_alone() {
    let mut bench = Bench::default();
    let (plain, scaled) = (layer(&mut bench, 1, 128), layer_with(&mut bench, 1, 128, true));
    let added =
        |lowered: &Lowered| kernels(lowered).iter().filter(|name| name.contains("add_scaled")).count();
    for target in [BF16, HOPPER, Target { library_from: Some(72), ..HOPPER }] {
        for rows in [8, 80] {
            let lowered = bench.lower(&scaled, rows, target);
            assert_eq!(added(&lowered), 0, "{:?}", kernels(&lowered));
            assert_eq!(kernels(&lowered), kernels(&bench.lower(&plain, rows, target)));
            let weights = lowered.steps.iter().flat_map(Step::places);
            let weights = weights.filter(|place| matches!(place, Place::Weight(Derived::Scaled { .. })));
            assert_eq!(weights.count(), 2);
        }
    }
    assert_eq!(added(&bench.lower(&scaled, 8, F32)), 2);
}

#[test]
fn wide_stages_of_a_codec_are_not_laid_out_first_where_a_block_holds_their_window() {
    let mut bench = Bench::default();
    let program = unit(&mut bench, 96);
    let lowered = bench.lower(&program, 4, BF16);
    let names = kernels(&lowered);
    assert_eq!(names[2..], ["conv_window_96", "carry_eight", "conv_window_96"], "{names:?}");
    assert_eq!(kernels(&bench.lower(&program, 4, HOPPER))[2..], ["unit_hopper_96", "carry_eight"]);
    let small = Target { shared_max: 48 << 10, ..BF16 };
    assert!(!kernels(&bench.lower(&program, 4, small)).contains(&"conv_window_96"));
    assert!(!kernels(&bench.lower(&program, 4, F32)).contains(&"conv_window_96"));
}

#[test]
fn a_convolution_into_sound_that_adds_to_what_is_there_is_no_launch_that_adds_nothing() {
    let sound = |adds: bool| {
        let mut bench = Bench::default();
        let [point, last] = [64, 1].map(|outs| bench.weight(WeightForm::Conv, &[outs, 64, 1]));
        let [alpha, beta] = [0; 2].map(|_| bench.weight(WeightForm::Vector, &[64]));
        let (mut builder, rows) = (ProgramBuilder::new("sound"), Rows::PerRow(200));
        let [wide, before] =
            [("wide", 64), ("before", 1)].map(|(name, cols)| builder.input(name, Dtype::F32, rows, cols));
        let [slots, start, valid] =
            ["slots", "start", "valid"].map(|name| builder.input(name, Dtype::I32, Rows::PerRow(1), 1));
        let [mid, out] = [("mid", 64), ("out", 1)].map(|(name, cols)| builder.scratch(name, rows, cols));
        let (shape, state, frames) = (ConvShape { kernel: 1, stride: 1, dilation: 1 }, None, 2);
        for (input, weight, snake, residual, out) in [
            (wide, point, None, None, mid),
            (mid, last, Some(Snake { alpha, beta }), adds.then_some(before), out),
        ] {
            let bias = None;
            builder.push(Op::CausalConv {
                input,
                weight,
                bias,
                shape,
                snake,
                residual,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            });
        }
        builder.output(out);
        let lowered = bench.lower(&builder.finish(), 4, HOPPER);
        kernels(&lowered).contains(&"conv_one")
    };
    assert_eq!([false, true].map(sound), [true, false]);
}

#[test]
fn every_kernel_a_lowering_names_is_in_the_machine_code_it_is_looked_up_in() {
    let code = |architecture| compile_all(architecture, None).unwrap_or_else(|error| panic!("{error}"));
    let holds = |code: &[Vec<u8>], name: &str| {
        let entry = format!(".text.{name}\0");
        let file = SOURCES.iter().position(|(file, _)| *file == file_of(name)).map(|at| &code[at]);
        file.is_some_and(|code| code.windows(entry.len()).any(|window| window == entry.as_bytes()))
    };
    let mut bench = Bench::default();
    let programs =
        [layer(&mut bench, 2, 32), layer(&mut bench, 1, 128), unit(&mut bench, 192), unit(&mut bench, 24)];
    for (architecture, targets) in [("sm_90", [BF16, F32]), ("sm_90a", [HOPPER, F32])] {
        let code = code(architecture);
        assert!(!holds(&code, "no_such_kernel"));
        let mut names = BTreeSet::new();
        for (_, size) in &*SIZES {
            size.each(targets[0], |_, _, lowered| {
                names.extend(kernels(lowered).into_iter().map(str::to_owned))
            });
        }
        for program in &programs {
            for target in targets {
                for batch in [2, 12, 20, 50, 100, 200] {
                    for library_from in [None, Some(50)] {
                        let lowered = bench.lower(program, batch, Target { library_from, ..target });
                        names.extend(kernels(&lowered).into_iter().map(str::to_owned));
                    }
                }
            }
        }
        for name in names.into_iter().filter(|name| name != library::LIBRARY) {
            assert!(
                holds(&code, &name),
                "there is no kernel {name} in {} for {architecture}",
                file_of(&name)
            );
        }
    }
}
