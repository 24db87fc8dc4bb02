//! Teacher forcing: another processor is led along the CPU's own codes, and asked at every draw which code it
//! would have taken. Run against the CPU itself unless `VOXLANE_TEST_DEVICE` names a device.

use contract::{Layout, Stage, VoiceChoice};
use device::program::{Rows, Value};
use device::{Dtype, HostTensor, Op, Program, ValueId};
use models::StageInputs;

use crate::engine::{Engine, Running, Utterance, greedy, is_bf16};
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

/// An utterance and the codes a processor is led along.
struct Course {
    utterance: Utterance,
    codes: Vec<Vec<i32>>,
}

/// Rows of one prefill.
const PREFILLED_AT_ONCE: usize = 16;

/// Logits at every draw, in order, of each course, while a processor is led along all of them at once.
fn logits(engine: &mut Engine, courses: &[&Course], first_slot: u32) -> Vec<Vec<Vec<f32>>> {
    engine.rewrite = led;
    let admit = |(slot, course): (u32, &&Course)| engine.admit(course.utterance.clone(), slot);
    let mut rows: Vec<_> = (first_slot..).zip(courses).map(admit).collect();
    let mut seen = vec![Vec::new(); courses.len()];
    for (at, rows) in rows.chunks_mut(PREFILLED_AT_ONCE).enumerate() {
        let from = at * PREFILLED_AT_ONCE;
        let inputs = engine.placed.prefill_inputs(&rows.iter().map(Running::prefill_row).collect::<Vec<_>>());
        let codes: Vec<_> = (from..from + rows.len()).map(|course| &courses[course].codes[0][..]).collect();
        let drawn = lead(engine, Stage::Prefill, inputs, rows.iter_mut().collect(), &codes);
        (from..).zip(drawn).for_each(|(course, drawn)| seen[course].extend(drawn));
    }
    for frame in 1..courses.iter().map(|course| course.codes.len()).max().unwrap_or(0) {
        let live: Vec<usize> = (0..courses.len()).filter(|&at| courses[at].codes.len() > frame).collect();
        let mut stepping: Vec<_> =
            rows.iter_mut().enumerate().filter(|(at, _)| live.contains(at)).map(|(_, row)| row).collect();
        let texts: Vec<_> = stepping.iter_mut().map(|row| row.take_text()).collect();
        let inputs: Vec<_> = stepping.iter().zip(texts).map(|(row, text)| row.decode_row(text)).collect();
        let inputs = engine.placed.decode_inputs(&inputs);
        let codes: Vec<_> = live.iter().map(|&at| &courses[at].codes[frame][..]).collect();
        let drawn = lead(engine, Stage::Decode, inputs, stepping, &codes);
        live.into_iter().zip(drawn).for_each(|(course, drawn)| seen[course].extend(drawn));
    }
    seen
}

/// One launch along one frame of codes a row; the logits of each row's draws.
fn lead(
    engine: &mut Engine,
    stage: Stage,
    inputs: StageInputs,
    rows: Vec<&mut Running>,
    codes: &[&[i32]],
) -> Vec<Vec<Vec<f32>>> {
    let StageInputs { rows: count, tokens, mut inputs } = inputs;
    let groups = codes[0].len();
    inputs.extend((0..groups).map(|group| HostTensor::I32(codes.iter().map(|codes| codes[group]).collect())));
    let mut outputs = engine.stage(stage, 0, StageInputs { rows: count, tokens, inputs });
    let mut drawn = vec![Vec::new(); codes.len()];
    for output in outputs.split_off(1) {
        let HostTensor::F32(values) = output else { panic!("logits are numbers") };
        let width = values.len() / codes.len();
        values.chunks(width).zip(&mut drawn).for_each(|(values, drawn)| drawn.push(values.to_vec()));
    }
    assert_eq!(outputs, [HostTensor::I32(codes.concat())], "it goes where it is led");
    engine.commit_stepped(rows, stage == Stage::Decode, &outputs);
    drawn
}

/// The most likely id, and by how much it leads.
fn top(logits: &[f32]) -> (usize, f32) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    (order[0], logits[order[0]] - logits[order[1]])
}

/// The cases as the CPU speaks them.
fn courses(speaker: &mut Engine) -> Vec<Course> {
    let course = |(slot, (text, layout, voice)): (u32, (&str, Layout, &str))| {
        let plan = speaker.plan(VoiceChoice::Named(voice.to_owned()), layout, Some("English"), greedy());
        let voice = Given::nothing().encode(speaker, &plan);
        let text_ids = speaker.ids(text);
        let utterance = Utterance { plan, voice, text_ids, seed: 0, frames_max: FRAMES };
        let codes = speaker.speak(utterance.clone(), slot).codes;
        assert!(codes.len() > 8, "{text:?} is too short to tell anything");
        Course { utterance, codes }
    };
    (0..).zip(CASES).map(course).collect()
}

/// How draws compare.
#[derive(Default)]
struct Agreement {
    draws: usize,
    alike: usize,
    undecided: usize,
}

impl Agreement {
    #[track_caller]
    fn compare(&mut self, case: usize, expected: &[Vec<f32>], found: &[Vec<f32>], groups: usize) {
        assert_eq!(expected.len(), found.len());
        for (draw, (expected, found)) in expected.iter().zip(found).enumerate() {
            let ((best, margin), (other, _)) = (top(expected), top(found));
            self.draws += 1;
            self.alike += usize::from(best == other);
            self.undecided += usize::from(margin <= MARGIN);
            let (text, frame, group) = (CASES[case].0, draw / groups, draw % groups);
            assert!(
                is_bf16() || margin <= MARGIN || best == other,
                "{text:?}, frame {frame}, codebook {group}: {best} leads by {margin}, but {other} was preferred"
            );
        }
    }

    #[track_caller]
    fn check(&self, how: &str) {
        let Self { draws, alike, undecided } = self;
        let precision = if is_bf16() { "bf16" } else { "f32" };
        println!("{precision}, {how}: {alike} of {draws} draws alike, {undecided} of them all but undecided");
        assert!(*draws > 1_000, "{draws} draws are too few");
        assert!(alike * 1_000 >= draws * AGREEMENT_PERMILLE, "{alike} of {draws} draws alike");
    }
}

#[test]
fn a_processor_that_is_led_along_the_cpus_codes_would_have_drawn_them_too() {
    let (mut speaker, mut cpu) = (Engine::on_cpu(&tiny()), Engine::on_cpu(&tiny()));
    let mut device = Engine::open(&tiny());
    let mut agreement = Agreement::default();
    for (case, course) in courses(&mut speaker).iter().enumerate() {
        let [expected, found] =
            [&mut cpu, &mut device].map(|engine| logits(engine, &[course], case as u32).remove(0));
        let groups = course.codes[0].len();
        assert_eq!(expected.len(), course.codes.len() * groups);
        agreement.compare(case, &expected, &found, groups);
    }
    agreement.check("one row at a time");
}

/// Rows at once: buckets of some size, whose products have tiles of their own on a GPU.
const CROWD: usize = 64;

#[test]
fn it_would_have_drawn_them_in_a_large_batch_too() {
    let (mut speaker, mut cpu) = (Engine::on_cpu(&tiny()), Engine::on_cpu(&tiny()));
    let mut device = Engine::open_for(&tiny(), CROWD as u32);
    let courses = courses(&mut speaker);
    let expected: Vec<_> =
        (0..).zip(&courses).map(|(slot, course)| logits(&mut cpu, &[course], slot).remove(0)).collect();
    let crowd: Vec<&Course> = courses.iter().cycle().take(CROWD).collect();
    let mut agreement = Agreement::default();
    for (row, found) in logits(&mut device, &crowd, 0).iter().enumerate() {
        let case = row % courses.len();
        agreement.compare(case, &expected[case], found, courses[case].codes[0].len());
    }
    agreement.check("64 rows at once");
}
