//! Programs are checked when they are built, and print as text.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use device::program::{Activation, AttentionShape, ConvShape, Padding, ProgramBuilder, Rows, SampleBound};
use device::{Catalog, Dtype, Op, PagedSpec, Program, StateSpec, ValueId, WeightForm, WeightId};

struct Fixture {
    catalog: Catalog,
    matrix: WeightId,
    table: WeightId,
    vector: WeightId,
}

fn fixture() -> Fixture {
    let mut catalog = Catalog::default();
    let matrix = catalog.add_weight("head.weight", WeightForm::Matrix, &[6, 4, 1], 24).unwrap();
    let table = catalog.add_weight("embed.weight", WeightForm::Table, &[10, 4], 40).unwrap();
    let vector = catalog.add_weight("head.bias", WeightForm::Vector, &[2, 3], 6).unwrap();
    Fixture { catalog, matrix, table, vector }
}

fn linear(input: ValueId, weight: WeightId, bias: Option<WeightId>, out: ValueId) -> Op {
    Op::Linear { input, weight, bias, activation: None, residual: None, out }
}

/// Two values and one op over them, then the check's text.
fn refused(fixture: &Fixture, record: impl FnOnce(&mut ProgramBuilder, ValueId, ValueId)) -> String {
    let mut builder = ProgramBuilder::new("test");
    let ids = builder.input("ids", Dtype::I32, Rows::PerRow(1), 1);
    let x = builder.scratch("x", Rows::PerRow(1), 4);
    builder.push(Op::Embed { table: fixture.table, ids, out: x, accumulate: false });
    record(&mut builder, ids, x);
    builder.finish().check(&fixture.catalog).unwrap_err().to_string()
}

fn good(fixture: &Fixture) -> Program {
    let mut builder = ProgramBuilder::new("decode");
    let ids = builder.input("ids", Dtype::I32, Rows::PerRow(1), 1);
    let x = builder.scratch("x", Rows::PerRow(1), 4);
    let y = builder.scratch("y", Rows::PerRow(1), 6);
    builder.push(Op::Embed { table: fixture.table, ids, out: x, accumulate: false });
    builder.push(Op::Embed { table: fixture.table, ids, out: x, accumulate: true });
    builder.push(Op::Linear {
        input: x,
        weight: fixture.matrix,
        bias: Some(fixture.vector),
        activation: Some(Activation::Silu),
        residual: None,
        out: y,
    });
    builder.output(y);
    builder.finish()
}

#[test]
fn a_sound_program_passes_and_prints_one_line_an_op() {
    let fixture = fixture();
    let program = good(&fixture);
    program.check(&fixture.catalog).unwrap();
    let text = "decode(%0.ids:I32[B, 1])
  %1.x:F32[B, 4] = embed(ids=%0.ids; table=w1)
  %1.x + = embed(ids=%0.ids; table=w1)
  %2.y:F32[B, 6] = linear(input=%1.x; weight=w0, bias=w2, activation=Silu)
  -> %2.y
";
    assert_eq!(program.to_string(), text);
}

#[test]
fn faults_name_the_op_and_the_value() {
    let fixture = fixture();
    let text = refused(&fixture, |b, _, x| {
        let y = b.scratch("y", Rows::PerRow(1), 5);
        b.push(linear(x, fixture.matrix, None, y));
    });
    assert_eq!(
        text,
        "program test, op 1: linear: weight head.weight is Matrix [6, 4], but must be Matrix [5, 4]"
    );
    let text = refused(&fixture, |b, _, x| {
        let y = b.scratch("y", Rows::Tokens, 6);
        b.push(linear(x, fixture.matrix, None, y));
    });
    assert!(text.contains("x has B rows, but y has N"), "{text}");
    let text = refused(&fixture, |b, ids, _| {
        let y = b.scratch("y", Rows::PerRow(1), 6);
        b.push(linear(ids, fixture.matrix, None, y));
    });
    assert!(text.contains("ids is I32, but must be F32"), "{text}");
    let text = refused(&fixture, |b, _, x| {
        let y = b.scratch("y", Rows::PerRow(1), 6);
        b.push(linear(x, WeightId(77), None, y));
    });
    assert!(text.contains("weight 77 does not exist"), "{text}");
    let text = refused(&fixture, |b, _, x| {
        let y = b.scratch("y", Rows::PerRow(1), 6);
        b.push(linear(x, fixture.matrix, Some(fixture.table), y));
    });
    assert!(text.contains("embed.weight is Table [10, 4], but must be Vector [6]"), "{text}");
}

#[test]
fn values_are_written_before_they_are_read_and_inputs_never() {
    let fixture = fixture();
    let text = refused(&fixture, |b, _, _| {
        let (y, z) = (b.scratch("y", Rows::PerRow(1), 4), b.scratch("z", Rows::PerRow(1), 4));
        b.push(Op::Activate { input: y, activation: Activation::Relu, out: z });
    });
    assert!(text.contains("input y is read before it is written"), "{text}");
    let text = refused(&fixture, |b, _, x| {
        let (part, y) = (b.scratch("part", Rows::PerRow(1), 2), b.scratch("y", Rows::PerRow(1), 4));
        b.push(Op::Slice { source: x, first: 0, out: part });
        b.push(Op::Place { source: part, out: y, first: 2 });
        b.output(y);
    });
    assert!(text.contains("output y is never written in full"), "{text}");
    let text = refused(&fixture, |b, _, x| {
        let input = b.input("given", Dtype::F32, Rows::PerRow(1), 4);
        b.push(Op::AddScaled { target: input, input: x, scale: None });
    });
    assert!(text.contains("given is an input and cannot be written"), "{text}");
    let text = refused(&fixture, |b, _, x| {
        b.push(Op::GatherRows { source: x, rows: ValueId(0), out: x, accumulate: false });
    });
    assert!(text.contains("x is also an operand"), "{text}");
    let text = refused(&fixture, |b, _, x| b.push(Op::Slice { source: x, first: 3, out: ValueId(99) }));
    assert!(text.contains("value 99 is not of this program"), "{text}");
}

#[test]
fn states_pages_and_heads_must_fit() {
    let mut fixture = fixture();
    let state = fixture
        .catalog
        .add_state(StateSpec { name: "history".to_owned(), width: 9, dtype: Dtype::F32 })
        .unwrap();
    let spec =
        PagedSpec { name: "kv".to_owned(), layers: 1, kv_heads: 1, head_dim: 4, page_len: 8, pages: 3 };
    let pages = fixture.catalog.add_paged(spec).unwrap();
    let conv = fixture.catalog.add_weight("conv", WeightForm::Conv, &[4, 4, 3], 48).unwrap();
    let text = refused(&fixture, |b, ids, x| {
        let y = b.scratch("y", Rows::PerRow(1), 4);
        let shape = ConvShape { kernel: 3, stride: 1, dilation: 2 };
        b.push(Op::CausalConv {
            input: x,
            weight: conv,
            bias: None,
            shape,
            snake: None,
            residual: None,
            state: Some(state),
            slots: ids,
            start: ids,
            valid: ids,
            frames: 1,
            out: y,
        });
    });
    assert!(text.contains("state history holds 9 F32 values a slot, but 16 F32 are needed"), "{text}");
    let text = refused(&fixture, |b, ids, x| {
        let y = b.scratch("y", Rows::PerRow(1), 4);
        let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 4, rope: None, scale: 0.5 };
        b.push(Op::PagedAttention {
            q: x,
            k: x,
            v: x,
            q_norm: None,
            k_norm: None,
            norm_eps: 0.0,
            shape,
            pages,
            layer: 1,
            positions: ids,
            owner: ids,
            page_table: ids,
            out: y,
        });
    });
    assert!(text.contains("pool kv has 1 layers of 1 x 4, but layer 1 of 1 x 4 is asked"), "{text}");
    let text = refused(&fixture, |b, ids, x| {
        let params = b.input("params", Dtype::F32, Rows::PerRow(1), 4);
        let seeds = b.input("seeds", Dtype::I32, Rows::PerRow(1), 2);
        let out = b.value("out", Dtype::I32, Rows::PerRow(1), 1);
        let bound = Some(SampleBound { suppress_from: 0, suppress_to: 4, keep: None });
        b.push(Op::Sample {
            logits: x,
            params,
            seeds,
            step: ids,
            draw: 0,
            bound,
            allow_keep: None,
            history: None,
            slots: ids,
            out,
            column: 0,
        });
    });
    assert!(text.contains("every id is suppressed"), "{text}");
    let text = refused(&fixture, |b, _, _| {
        let input = b.input("clip", Dtype::F32, Rows::Fixed(2), 4);
        let out = b.scratch("y", Rows::Fixed(2), 4);
        let shape = ConvShape { kernel: 3, stride: 1, dilation: 1 };
        let padding = Padding::Reflect { left: 2, right: 0 };
        b.push(Op::Conv { input, weight: conv, bias: None, shape, padding, activation: None, out });
    });
    assert!(text.contains("2 rows are too few to mirror 2 and 0"), "{text}");
}

#[test]
fn weights_must_fit_their_form() {
    let mut catalog = Catalog::default();
    let mut add = |form, shape: &[usize], count| catalog.add_weight("w", form, shape, count).map(|_| ());
    assert!(add(WeightForm::Matrix, &[2, 3], 6).is_ok());
    assert!(add(WeightForm::Matrix, &[2, 3, 2], 12).is_err());
    assert!(add(WeightForm::Depthwise, &[4, 2, 7], 56).is_err());
    let error = add(WeightForm::Conv, &[2, 3], 6).unwrap_err().to_string();
    assert_eq!(error, "tensor w: shape [2, 3] cannot be used as Conv");
    let error = add(WeightForm::Table, &[2, 3], 5).unwrap_err().to_string();
    assert_eq!(error, "tensor w: shape [2, 3] does not describe the 5 values given");
    assert!(add(WeightForm::Vector, &[usize::MAX, 3], 5).is_err());
}
