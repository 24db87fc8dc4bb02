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
/// One after the other, courses take these in turn.
const SLOTS: std::ops::Range<u32> = 0..8;

/// Enough that a processor's share does not hang on a few: of one utterance's draws, those that a rounding turns come
/// together.
const CASES: [(&str, Layout, &str); 18] = [
    ("Hello there.", Layout::Whole, "clara"),
    ("Your order number is 1664, and it will arrive on Monday.", Layout::Streamed, "june"),
    ("The morning train was late again, so we walked along the river.", Layout::Whole, "marcus"),
    ("We counted thirty boats, and then the rain came.", Layout::Streamed, "nora"),
    ("Nobody heard the second bell ring that night.", Layout::Whole, "clara"),
    ("Is the blue door open?", Layout::Streamed, "marcus"),
    ("Please hold the line while I look up your booking.", Layout::Whole, "june"),
    ("The baker closes at six, but the side door stays open until seven.", Layout::Streamed, "clara"),
    ("She wrote three letters and sent only one of them.", Layout::Whole, "nora"),
    ("Turn left at the old mill, then follow the stream.", Layout::Streamed, "june"),
    ("What time does the last ferry leave on Sundays?", Layout::Whole, "marcus"),
    ("I am sorry, that seat has already been taken.", Layout::Streamed, "nora"),
    ("Two small dogs slept under the kitchen table.", Layout::Whole, "clara"),
    ("The password must have at least twelve letters.", Layout::Streamed, "marcus"),
    ("Rain is expected in the north, with some sun later on.", Layout::Whole, "june"),
    ("He folded the map and put it back into his coat.", Layout::Streamed, "clara"),
    ("Your parcel was left with a neighbour at number nine.", Layout::Whole, "nora"),
    ("Can you hear the river from up here?", Layout::Streamed, "june"),
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

/// Prompts of one prefill, and of one beside which steps ride.
const PREFILLED_AT_ONCE: usize = 16;
const PREFILLED_BESIDE_RIDERS: usize = 4;

/// Logits at every draw, in order, of each course, while a processor is led along all of them at once.
fn logits(engine: &mut Engine, courses: &[&Course], first_slot: u32) -> Vec<Vec<Vec<f32>>> {
    logits_of(engine, courses, first_slot, false)
}

/// The same; `riding`, contexts that have begun step along with the prompts of those that begin.
fn logits_of(engine: &mut Engine, courses: &[&Course], first_slot: u32, riding: bool) -> Vec<Vec<Vec<f32>>> {
    engine.rewrite = led;
    let admit = |(slot, course): (u32, &&Course)| engine.admit(course.utterance.clone(), slot);
    let mut rows: Vec<_> = (first_slot..).zip(courses).map(admit).collect();
    let mut seen = vec![Vec::new(); courses.len()];
    let at_once = if riding { PREFILLED_BESIDE_RIDERS } else { PREFILLED_AT_ONCE };
    for from in (0..rows.len()).step_by(at_once) {
        let (begun, rest) = rows.split_at_mut(from);
        let count = rest.len().min(at_once);
        let begin: Vec<_> = (from..).zip(&mut rest[..count]).collect();
        let step = if riding { unfinished(begun, courses) } else { Vec::new() };
        lead(engine, courses, begin, step, &mut seen);
    }
    loop {
        let step = unfinished(&mut rows, courses);
        if step.is_empty() {
            return seen;
        }
        lead(engine, courses, Vec::new(), step, &mut seen);
    }
}

/// Those whose course goes on, by number.
fn unfinished<'a>(rows: &'a mut [Running], courses: &[&Course]) -> Vec<(usize, &'a mut Running)> {
    let goes_on = |(at, row): &(usize, &mut Running)| row.codes.len() < courses[*at].codes.len();
    rows.iter_mut().enumerate().filter(goes_on).collect()
}

/// One launch along each row's next frame: its logits are added to what was seen.
fn lead(
    engine: &mut Engine,
    courses: &[&Course],
    begin: Vec<(usize, &mut Running)>,
    mut step: Vec<(usize, &mut Running)>,
    seen: &mut [Vec<Vec<f32>>],
) {
    let texts: Vec<_> = step.iter_mut().map(|(_, row)| row.take_text()).collect();
    let steps = step.iter().zip(texts);
    let (stage, inputs) = if begin.is_empty() {
        let rows: Vec<_> = steps.map(|((_, row), text)| row.decode_row(text)).collect();
        (Stage::Decode, engine.placed.decode_inputs(&rows))
    } else {
        let riders: Vec<_> = steps.map(|((_, row), text)| row.decode_row(text)).collect();
        let prompts: Vec<_> = begin.iter().map(|(_, row)| row.prefill_row()).collect();
        (Stage::Prefill, engine.placed.prefill_inputs(&prompts, &riders))
    };
    let begun = begin.len();
    let rows: Vec<_> = begin.into_iter().chain(step).collect();
    let codes: Vec<&[i32]> = rows.iter().map(|(at, row)| &courses[*at].codes[row.codes.len()][..]).collect();
    let StageInputs { rows: count, tokens, mut inputs } = inputs;
    let groups = codes[0].len();
    inputs.extend((0..groups).map(|group| HostTensor::I32(codes.iter().map(|codes| codes[group]).collect())));
    let mut outputs = engine.stage(stage, 0, StageInputs { rows: count, tokens, inputs });
    for output in outputs.split_off(1) {
        let HostTensor::F32(values) = output else { panic!("logits are numbers") };
        let width = values.len() / codes.len();
        values.chunks(width).zip(&rows).for_each(|(values, (at, _))| seen[*at].push(values.to_vec()));
    }
    assert_eq!(outputs, [HostTensor::I32(codes.concat())], "it goes where it is led");
    engine.commit_led(rows.into_iter().map(|(_, row)| row).collect(), begun, &outputs);
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
    SLOTS.cycle().zip(CASES).map(course).collect()
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
        let [expected, found] = [&mut cpu, &mut device]
            .map(|engine| logits(engine, &[course], case as u32 % SLOTS.end).remove(0));
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
    let expected: Vec<_> = SLOTS
        .cycle()
        .zip(&courses)
        .map(|(slot, course)| logits(&mut cpu, &[course], slot).remove(0))
        .collect();
    let crowd: Vec<&Course> = courses.iter().cycle().take(CROWD).collect();
    let mut agreement = Agreement::default();
    for (row, found) in logits(&mut device, &crowd, 0).iter().enumerate() {
        let case = row % courses.len();
        agreement.compare(case, &expected[case], found, courses[case].codes[0].len());
    }
    agreement.check("64 rows at once");
}

#[test]
fn it_would_have_drawn_them_in_steps_that_ride_along_with_prompts_too() {
    let (mut speaker, mut cpu) = (Engine::on_cpu(&tiny()), Engine::on_cpu(&tiny()));
    let mut device = Engine::open_for(&tiny(), CROWD as u32);
    let courses = courses(&mut speaker);
    let expected: Vec<_> = SLOTS
        .cycle()
        .zip(&courses)
        .map(|(slot, course)| logits(&mut cpu, &[course], slot).remove(0))
        .collect();
    let crowd: Vec<&Course> = courses.iter().cycle().take(CROWD).collect();
    let mut agreement = Agreement::default();
    for (row, found) in logits_of(&mut device, &crowd, 0, true).iter().enumerate() {
        let case = row % courses.len();
        agreement.compare(case, &expected[case], found, courses[case].codes[0].len());
    }
    agreement.check("64 rows that begin four at a time while the others' steps ride along");
}
