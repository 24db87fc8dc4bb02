//! Every spoken case of the parity fixtures: the committed ones, and those in the folder that
//! `VOXLANE_PARITY_DIR` names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::{Clip, CloneMode, Layout, Stage, VoiceChoice};
use device::program::SampleBound;
use device::sampling::{SampleParams, Sampler};
use device::{HostTensor, Op, Program, StateId};
use models::{EncodeWork, SpeechPlan, VoiceFeatures};
use serde_json::Value;

use crate::engine::{Engine, Running, Utterance, greedy};
use crate::fixtures::{Fixture, assert_close, golden, tiny};
use crate::taps::{tap, writes};

const BOUND: f32 = 1e-3;
const SLOT: u32 = 5;

/// Encoder outputs taken from a fixture instead of launches, so that a difference is placed.
pub(crate) struct Given {
    speaker: Option<Vec<f32>>,
    codes: Option<Vec<i32>>,
}

impl Given {
    pub(crate) fn nothing() -> Self {
        Self { speaker: None, codes: None }
    }

    pub(crate) fn speaker(vector: Vec<f32>) -> Self {
        Self { speaker: Some(vector), codes: None }
    }

    pub(crate) fn both(vector: Vec<f32>, codes: Vec<i32>) -> Self {
        Self { speaker: Some(vector), codes: Some(codes) }
    }

    /// Runs the plan's encoding, with what is given in place of launches.
    pub(crate) fn encode(&self, engine: &mut Engine, plan: &SpeechPlan) -> Option<Arc<VoiceFeatures>> {
        let mut job = engine.placed.encode(plan.clip.as_ref()?).unwrap_or_else(|error| panic!("{error}"));
        let mut launched = 0;
        loop {
            let work = job.next();
            let outputs = match (&work, launched, &self.speaker, &self.codes) {
                (EncodeWork::Launch { .. }, 0, Some(speaker), _) => vec![HostTensor::F32(speaker.clone())],
                (EncodeWork::Launch { .. }, 1, _, Some(codes)) => vec![HostTensor::I32(codes.clone())],
                _ => match engine.encode_step(work.clone()) {
                    Ok(outputs) => outputs,
                    Err(features) => return Some(features),
                },
            };
            launched += usize::from(matches!(work, EncodeWork::Launch { .. }));
            job.outputs(outputs).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// One utterance with what its steps held.
pub(crate) struct Observed {
    pub(crate) codes: Vec<Vec<i32>>,
    /// Backbone's normed hidden state, per frame.
    pub(crate) hidden: Vec<Vec<f32>>,
    /// First head's logits, per frame.
    pub(crate) logits: Vec<Vec<f32>>,
    /// The other heads' logits, for the frames asked for, in order.
    pub(crate) sub_logits: Vec<Vec<f32>>,
}

impl Observed {
    /// Speaks in [`SLOT`]; `sub_frames` are the frames whose lower heads are looked at.
    pub(crate) fn speak(engine: &mut Engine, utterance: Utterance, sub_frames: &[usize]) -> Self {
        let mut observed =
            Self { codes: Vec::new(), hidden: Vec::new(), logits: Vec::new(), sub_logits: Vec::new() };
        let prefill = engine.placed.program(Stage::Prefill, 0).expect("prefill");
        let decode = engine.placed.program(Stage::Decode, 0).expect("decode");
        let mut running = engine.admit(utterance, SLOT);
        let mut program = &prefill;
        loop {
            let text = (!running.codes.is_empty()).then(|| running.take_text());
            let inputs = match text {
                None => engine.placed.prefill_inputs(&[running.prefill_row()], &[]),
                Some(text) => engine.placed.decode_inputs(&[running.decode_row(text)]),
            };
            if sub_frames.contains(&running.codes.len()) {
                // Each look draws the first code anew; the penalty must not see those draws.
                let history = history(program);
                let before = engine.backend.read_state(history, SLOT).expect("the state exists");
                for head in 0..writes(program, "depth.logits") {
                    let outputs = engine.run(&tap(program.clone(), "depth.logits", head), inputs.clone());
                    observed.sub_logits.push(floats(&outputs[0]));
                    engine.backend.write_state(history, SLOT, &before).expect("the state exists");
                }
            }
            let outputs = engine.run(&with_outputs(program, &["hidden", "logits"]), inputs);
            let before = running.codes.len();
            engine.commit_led(vec![&mut running], usize::from(text.is_none()), &outputs[..1]);
            if running.codes.len() > before {
                observed.hidden.push(floats(&outputs[1]));
                observed.logits.push(floats(&outputs[2]));
            }
            if running.ended {
                break;
            }
            program = &decode;
        }
        observed.codes = running.codes;
        observed
    }
}

/// The state in which a program's first head keeps the ids drawn.
fn history(program: &Program) -> StateId {
    program
        .ops
        .iter()
        .find_map(|op| match op {
            Op::Sample { history, .. } => *history,
            _ => None,
        })
        .expect("a head with a history")
}

fn with_outputs(program: &Program, names: &[&str]) -> Program {
    let mut program = program.clone();
    for name in names {
        let value =
            program.values.iter().position(|value| value.name == *name).expect("a value of that name");
        program.outputs.push(device::ValueId(value as u32));
    }
    program
}

fn floats(tensor: &HostTensor) -> Vec<f32> {
    match tensor {
        HostTensor::F32(values) => values.clone(),
        HostTensor::I32(_) => panic!("expected floats"),
    }
}

fn folders() -> Vec<PathBuf> {
    let mut folders = vec![golden().join("parity")];
    folders.extend(std::env::var_os("VOXLANE_PARITY_DIR").map(PathBuf::from));
    folders
}

fn cases(folder: &Path, kind: &str) -> Vec<Value> {
    let path = folder.join("manifest.json");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let manifest: Value =
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases = manifest["cases"].as_array().expect("cases").clone();
    let cases: Vec<Value> = cases.into_iter().filter(|case| case["kind"] == kind).collect();
    assert!(!cases.is_empty(), "{} holds no {kind} case", path.display());
    cases
}

pub(crate) fn text<'a>(case: &'a Value, key: &str) -> Option<&'a str> {
    case[key].as_str()
}

fn checkpoint(folder: &Path, case: &Value) -> PathBuf {
    match text(case, "checkpoint").expect("a checkpoint") {
        "tiny" => tiny(),
        other => folder.join("checkpoints").join(other),
    }
}

fn clip(case: &Value) -> Arc<Clip> {
    let voice = text(case, "voice").expect("a voice");
    let path = tiny().join(format!("voices/{voice}.wav"));
    let reader = hound::WavReader::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let sample_rate = reader.spec().sample_rate;
    let samples = reader.into_samples::<i16>().map(|s| f32::from(s.expect("a sample")) / 32_768.0).collect();
    Arc::new(Clip {
        samples,
        sample_rate,
        transcript: text(case, "ref_text").map(str::to_owned),
        hash: [1; 16],
    })
}

fn utterance(engine: &mut Engine, case: &Value, fixture: &Fixture) -> Utterance {
    let layout = match text(case, "layout").expect("a layout") {
        "nonstreaming" => Layout::Whole,
        "streaming" => Layout::Streamed,
        other => panic!("layout {other}"),
    };
    let voice = match (text(case, "voice"), text(case, "speaker")) {
        (Some(_), _) if case["icl"] == true => {
            VoiceChoice::Reference { clip: clip(case), mode: CloneMode::InContext }
        }
        (Some(_), _) => VoiceChoice::Reference { clip: clip(case), mode: CloneMode::Speaker },
        (None, Some(speaker)) => VoiceChoice::Named(speaker.to_owned()),
        (None, None) => VoiceChoice::Default,
    };
    // The reference drops instructions silently where the model has none; here they are refused.
    let takes_instructions = text(case, "checkpoint") != Some("custom_voice_identity");
    let instructions = text(case, "instruct").filter(|_| takes_instructions);
    let mut sampling = greedy();
    sampling.repetition_penalty =
        case["decoding"]["repetition_penalty"].as_f64().map(|penalty| penalty as f32);
    let plan = engine.plan_instructed(voice, layout, text(case, "language"), instructions, sampling);
    let given = Given {
        speaker: fixture.has("speaker_embedding").then(|| fixture.floats("speaker_embedding")),
        codes: fixture.has("ref_codes").then(|| fixture.ints("ref_codes")),
    };
    let voice = given.encode(engine, &plan);
    let text_ids = engine.ids(text(case, "text").expect("a text"));
    let ids = fixture.ints("input_ids");
    assert_eq!(text_ids.iter().map(|&id| id as i32).collect::<Vec<_>>(), ids[3..ids.len() - 5], "text ids");
    // The reference drops the frame of its last token.
    let tokens = case["decoding"]["max_new_tokens"].as_u64().expect("max_new_tokens") as usize;
    Utterance { plan, voice, text_ids, seed: 0, frames_max: tokens - 1 }
}

/// Rows of `found` that the fixture keeps of `name`, against them.
fn compare(what: &str, fixture: &Fixture, name: &str, found: &[Vec<f32>]) {
    let rows: Vec<f32> = fixture.kept_rows(name).into_iter().flat_map(|row| found[row].clone()).collect();
    assert_close(&format!("{what}: {name}"), &rows, &fixture.floats(name), BOUND);
}

fn check_speech(engine: &mut Engine, case: &Value, fixture: &Fixture) {
    let name = text(case, "name").expect("a name");
    let utterance = utterance(engine, case, fixture);
    let voice = utterance.voice.clone();
    check_prefill(engine, name, utterance.clone(), fixture);

    // The committed folder keeps lower heads' logits of some cases only. Looking at them runs a step
    // several times; two frames tell as much as all.
    let sub_frames = if fixture.has("cp.logits") { fixture.kept_rows("cp.logits") } else { Vec::new() };
    let sub_frames: Vec<usize> = sub_frames.into_iter().filter(|frame| *frame < 2).collect();
    let observed = Observed::speak(engine, utterance, &sub_frames);
    check_codes(name, &observed.codes, fixture);
    compare(name, fixture, "hidden", &observed.hidden);
    compare(name, fixture, "logits", &observed.logits);
    if !sub_frames.is_empty() {
        let width = fixture.shape("cp.logits")[1..].iter().product::<usize>() * sub_frames.len();
        let expected = &fixture.floats("cp.logits")[..width];
        assert_close(&format!("{name}: cp.logits"), &observed.sub_logits.concat(), expected, BOUND);
    }

    let start = engine.prime(voice.as_deref(), SLOT);
    let sound = engine.sound(&observed.codes, &[2, 4, 10], SLOT, start);
    let frames: Vec<Vec<f32>> =
        sound.chunks_exact(engine.facts.samples_per_frame as usize).map(<[f32]>::to_vec).collect();
    compare(name, fixture, "pcm", &frames);
    let rms: Vec<f32> = frames
        .iter()
        .map(|frame| (frame.iter().map(|s| s * s).sum::<f32>() / frame.len() as f32).sqrt())
        .collect();
    assert_close(&format!("{name}: pcm.rms"), &rms, &fixture.floats("pcm.rms"), BOUND);
}

/// Says where codes part, and how sure the reference was there.
fn check_codes(name: &str, found: &[Vec<i32>], fixture: &Fixture) {
    let groups = fixture.shape("codes")[1];
    let expected: Vec<Vec<i32>> = fixture.ints("codes").chunks_exact(groups).map(<[i32]>::to_vec).collect();
    let margins = fixture.floats("codes.margin");
    for (frame, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if let Some(group) = (0..groups).find(|&group| found[group] != expected[group]) {
            let margin = margins[frame * groups + group];
            panic!("{name}: frame {frame}, code {group} differs; the reference's margin there is {margin:e}");
        }
    }
    assert_eq!(found.len(), expected.len(), "{name}: frames");
}

fn check_prefill(engine: &mut Engine, name: &str, utterance: Utterance, fixture: &Fixture) {
    let running: Running = engine.admit(utterance, SLOT);
    let program = engine.placed.program(Stage::Prefill, 0).expect("prefill");
    let mut look = |value: &str, nth: usize| {
        let inputs = engine.placed.prefill_inputs(&[running.prefill_row()], &[]);
        floats(&engine.run(&tap(program.clone(), value, nth), inputs)[0])
    };
    let width = fixture.shape("prefill.hidden")[1];
    let split = |values: Vec<f32>| values.chunks_exact(width).map(<[f32]>::to_vec).collect::<Vec<_>>();
    if fixture.has("prefill.inputs_embeds") {
        compare(name, fixture, "prefill.inputs_embeds", &split(look("stream", 3)));
    }
    compare(name, fixture, "prefill.hidden", &split(look("normed", 0)));
}

/// Runs `check` on every case of a kind, one engine a checkpoint, and names all cases that failed.
pub(crate) fn for_each_case(kind: &str, mut check: impl FnMut(&mut Engine, &Value, &Fixture)) {
    let (mut ran, mut failed) = (0, Vec::new());
    for folder in folders() {
        let mut cases = cases(&folder, kind);
        cases.sort_by_key(|case| text(case, "checkpoint").map(str::to_owned));
        let mut opened: Option<(PathBuf, Engine)> = None;
        for case in &cases {
            let wanted = checkpoint(&folder, case);
            if opened.as_ref().is_none_or(|(path, _)| *path != wanted) {
                let engine = Engine::open(&wanted);
                opened = Some((wanted, engine));
            }
            let Some((_, engine)) = &mut opened else { unreachable!("opened above") };
            let fixture = Fixture::read(&folder.join(text(case, "file").expect("a file")));
            let checked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(engine, case, &fixture)));
            ran += 1;
            if checked.is_err() {
                failed.push(fixture.name);
            }
        }
    }
    println!("{ran} {kind} cases");
    assert!(failed.is_empty(), "{} of {ran} {kind} cases differ: {failed:#?}", failed.len());
}

#[test]
fn every_spoken_case_equals_the_reference() {
    let mut with_lower_heads = 0;
    for_each_case("speech", |engine, case, fixture| {
        with_lower_heads += usize::from(fixture.has("cp.logits"));
        check_speech(engine, case, fixture);
    });
    assert!(with_lower_heads >= 10, "only {with_lower_heads} cases hold logits of the lower heads");
}

#[test]
fn codec_runs_past_its_attention_window_equal_the_reference() {
    for_each_case("codec", |engine, case, fixture| {
        let name = text(case, "name").expect("a name");
        let groups = fixture.shape("codes")[1];
        let codes: Vec<Vec<i32>> = fixture.ints("codes").chunks_exact(groups).map(<[i32]>::to_vec).collect();
        let sound = engine.sound(&codes, &[10], 4, 0);
        let frames: Vec<Vec<f32>> =
            sound.chunks_exact(engine.facts.samples_per_frame as usize).map(<[f32]>::to_vec).collect();
        compare(name, fixture, "pcm", &frames);
    });
}

#[test]
fn processed_distributions_equal_the_reference() {
    for folder in folders() {
        for case in cases(&folder, "processors") {
            let fixture = Fixture::read(&folder.join(text(&case, "file").expect("a file")));
            let number = |key: &str| case[key].as_u64().expect("a number") as u32;
            for (index, row) in case["rows"].as_array().expect("rows").iter().enumerate() {
                let logits = fixture.floats(&format!("{index}.logits"));
                let history: Vec<u64> =
                    row["history"].as_array().expect("history").iter().filter_map(Value::as_u64).collect();
                let bound = SampleBound {
                    suppress_from: number("suppressed_from"),
                    suppress_to: logits.len() as u32,
                    keep: Some(number("eos")),
                };
                let allow_keep = history.len() as u64 >= case["min_new_tokens"].as_u64().expect("a number");
                let setting = |key: &str| row[key].as_f64().expect("a number") as f32;
                let params = SampleParams::from_row(
                    ["temperature", "top_k", "top_p", "repetition_penalty"].map(setting),
                );
                let mut flags = vec![0; logits.len()];
                history.iter().for_each(|&id| flags[id as usize] = 1);
                let found = distribution(&logits, params, &flags, Some(&bound), allow_keep);
                assert_close(
                    &format!("row {index}"),
                    &found,
                    &fixture.floats(&format!("{index}.probs")),
                    BOUND,
                );
            }
        }
    }
}

/// Probabilities of all ids.
fn distribution(
    logits: &[f32],
    params: SampleParams,
    history: &[i32],
    bound: Option<&SampleBound>,
    allow_keep: bool,
) -> Vec<f32> {
    let mut dense = vec![0.0; logits.len()];
    let mut sampler = Sampler::default();
    for candidate in sampler.distribution(logits, params, Some(history), bound, allow_keep) {
        dense[candidate.id as usize] = candidate.probability;
    }
    dense
}

#[test]
fn distributions_along_a_sampled_history_equal_the_reference() {
    for_each_case("distribution", |engine, case, fixture| {
        let name = text(case, "name").expect("a name");
        let groups = engine.facts.code_groups as usize;
        let setting = |key: &str| case["decoding"][key].as_f64().expect("a number") as f32;
        let head =
            SampleParams::from_row(["temperature", "top_k", "top_p", "repetition_penalty"].map(setting));
        let sub = ["subtalker_temperature", "subtalker_top_k", "subtalker_top_p"].map(setting);
        let sub = SampleParams::from_row([sub[0], sub[1], sub[2], 1.0]);
        let codes = fixture.ints("codes");
        let bound = first_head_bound(engine);
        let (logits, probs) = (fixture.floats("logits"), fixture.floats("probs"));
        let vocab = fixture.shape("logits")[1];
        for (row, frame) in fixture.kept_rows("logits").into_iter().enumerate() {
            let mut history = vec![0; vocab];
            (0..frame).for_each(|earlier| history[codes[earlier * groups] as usize] = 1);
            let range = row * vocab..(row + 1) * vocab;
            let found = distribution(&logits[range.clone()], head, &history, Some(&bound), frame >= 2);
            assert_close(&format!("{name}: frame {frame}"), &found, &probs[range], BOUND);
        }
        let (logits, probs) = (fixture.floats("cp.logits"), fixture.floats("cp.probs"));
        let vocab = fixture.shape("cp.logits")[2];
        for (row, (logits, probs)) in logits.chunks_exact(vocab).zip(probs.chunks_exact(vocab)).enumerate() {
            let found = distribution(logits, sub, &vec![0; vocab], None, false);
            assert_close(&format!("{name}: lower head {row}"), &found, probs, BOUND);
        }
    });
}

/// The bound the decode program itself gives its first head.
fn first_head_bound(engine: &Engine) -> SampleBound {
    let program = engine.placed.program(Stage::Decode, 0).expect("decode");
    program
        .ops
        .iter()
        .find_map(|op| match op {
            Op::Sample { bound, .. } => *bound,
            _ => None,
        })
        .expect("the first head is bounded")
}
