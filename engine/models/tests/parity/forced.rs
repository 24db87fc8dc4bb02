//! Teacher forcing: another processor is led along the CPU's own codes, and asked at every draw which code it
//! would have taken. Run against the CPU itself unless `VOXLANE_TEST_DEVICE` names a device.

use contract::{Layout, Stage, VoiceChoice};
use device::program::{Rows, Value};
use device::{Dtype, HostTensor, Op, Program, ValueId};
use models::StageInputs;

use crate::engine::{Engine, Utterance, greedy, is_bf16};
use crate::fixtures::tiny;
use crate::speech::Given;

/// What a processor in f32 may turn around: the CPU was as good as undecided.
const MARGIN: f32 = 1e-4;
/// Codes in a thousand that a processor in bf16 must agree on.
const AGREEMENT_PERMILLE: usize = 990;
const FRAMES: usize = 60;

const CASES: [(&str, Layout, &str); 6] = [
    ("Hello there.", Layout::Whole, "clara"),
    ("Your order number is 1664, and it will arrive on Monday.", Layout::Streamed, "june"),
    ("The morning train was late again, so we walked along the river.", Layout::Whole, "marcus"),
    ("We counted thirty boats, and then the rain came.", Layout::Streamed, "nora"),
    ("Nobody heard the second bell ring that night.", Layout::Whole, "clara"),
    ("Is the blue door open?", Layout::Streamed, "marcus"),
];

/// The served program, with two things more at every draw: its logits are an output, and what was drawn is
/// replaced by an input.
fn led(mut program: Program) -> Program {
    let mut ops = Vec::with_capacity(program.ops.len());
    for op in std::mem::take(&mut program.ops) {
        let draw = match op {
            Op::Sample { logits, out, .. } => Some((logits, out)),
            _ => None,
        };
        ops.push(op);
        let Some((logits, out)) = draw else { continue };
        let width = program.value(logits).cols;
        let mut value = |name: &str, dtype, cols| {
            let id = ValueId(program.values.len() as u32);
            program.values.push(Value { name: name.to_owned(), dtype, rows: Rows::PerRow(1), cols });
            id
        };
        let given = value("given", Dtype::I32, 1);
        let seen = value("seen", Dtype::F32, width);
        program.inputs.push(given);
        program.outputs.push(seen);
        ops.push(Op::Place { source: logits, out: seen, first: 0 });
        ops.push(Op::Place { source: given, out, first: 0 });
    }
    program.ops = ops;
    program
}

/// Logits at every draw, in order, while a processor is led along `codes`.
fn logits(engine: &mut Engine, utterance: &Utterance, codes: &[Vec<i32>], slot: u32) -> Vec<Vec<f32>> {
    engine.rewrite = led;
    let mut row = engine.admit(utterance.clone(), slot);
    let mut seen = Vec::new();
    for (frame, codes) in codes.iter().enumerate() {
        let (stage, StageInputs { rows, tokens, mut inputs }) = if frame == 0 {
            (Stage::Prefill, engine.placed.prefill_inputs(&[row.prefill_row()]))
        } else {
            let text = row.take_text();
            (Stage::Decode, engine.placed.decode_inputs(&[row.decode_row(text)]))
        };
        inputs.extend(codes.iter().map(|code| HostTensor::I32(vec![*code])));
        let mut outputs = engine.stage(stage, 0, StageInputs { rows, tokens, inputs });
        for output in outputs.split_off(1) {
            let HostTensor::F32(values) = output else { panic!("logits are numbers") };
            seen.push(values);
        }
        assert_eq!(outputs, [HostTensor::I32(codes.clone())], "it goes where it is led");
        engine.commit_one(&mut row, frame > 0, &outputs);
    }
    seen
}

/// The most likely id, and by how much it leads.
fn top(logits: &[f32]) -> (usize, f32) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    (order[0], logits[order[0]] - logits[order[1]])
}

#[test]
fn a_processor_that_is_led_along_the_cpus_codes_would_have_drawn_them_too() {
    let (mut speaker, mut cpu) = (Engine::on_cpu(&tiny()), Engine::on_cpu(&tiny()));
    let mut device = Engine::open(&tiny());
    let (mut draws, mut alike, mut undecided) = (0, 0, 0);
    for (slot, (text, layout, voice)) in (0..).zip(CASES) {
        let plan = speaker.plan(VoiceChoice::Named(voice.to_owned()), layout, Some("English"), greedy());
        let voice = Given::nothing().encode(&mut speaker, &plan);
        let text_ids = speaker.ids(text);
        let utterance = Utterance { plan, voice, text_ids, seed: 0, frames_max: FRAMES };
        let codes = speaker.speak(utterance.clone(), slot).codes;
        assert!(codes.len() > 8, "{text:?} is too short to tell anything");
        let expected = logits(&mut cpu, &utterance, &codes, slot);
        let found = logits(&mut device, &utterance, &codes, slot);
        assert_eq!(expected.len(), codes.len() * codes[0].len());
        assert_eq!(expected.len(), found.len());
        for (draw, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let ((best, margin), (other, _)) = (top(expected), top(found));
            draws += 1;
            alike += usize::from(best == other);
            undecided += usize::from(margin <= MARGIN);
            let (frame, group) = (draw / codes[0].len(), draw % codes[0].len());
            let decided = is_bf16() || margin <= MARGIN;
            assert!(
                decided || best == other,
                "{text:?}, frame {frame}, codebook {group}: {best} leads by {margin}, but {other} was preferred"
            );
        }
    }
    let precision = if is_bf16() { "bf16" } else { "f32" };
    println!("{precision}: {alike} of {draws} draws alike, {undecided} of them all but undecided");
    assert!(draws > 1_000, "{draws} draws are too few");
    assert!(alike * 1_000 >= draws * AGREEMENT_PERMILLE, "{alike} of {draws} draws alike");
}
