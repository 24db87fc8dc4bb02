//! The same request alone, in any batch, in any admission order and in any slot gives the same codes,
//! bit for bit.

use contract::{Layout, Sampling, VoiceChoice};

use crate::engine::{Engine, Running, Utterance};
use crate::fixtures::tiny;
use crate::speech::Given;

const TEXTS: [&str; 6] = [
    "Hello there.",
    "We counted thirty boats, and then the rain came.",
    "Is the blue door open?",
    "Tea is ready.",
    "Nobody heard the second bell ring that night.",
    "Yes.",
];
const VOICES: [&str; 4] = ["clara", "marcus", "nora", "june"];
const FRAMES: usize = 40;

fn utterances(engine: &mut Engine) -> Vec<Utterance> {
    TEXTS
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let layout = if index % 2 == 0 { Layout::Streamed } else { Layout::Whole };
            let sampling = Sampling {
                temperature: Some(0.9),
                top_k: Some(if index % 3 == 0 { 0 } else { 50 }),
                top_p: Some(0.95),
                repetition_penalty: Some(1.1),
                sub_temperature: Some(0.8),
                ..Sampling::default()
            };
            let voice = VoiceChoice::Named(VOICES[index % VOICES.len()].to_owned());
            let plan = engine.plan(voice, layout, Some("english"), sampling);
            let voice = Given::nothing().encode(engine, &plan);
            let text_ids = engine.ids(text);
            Utterance { plan, voice, text_ids, seed: 1000 + index as u64, frames_max: FRAMES }
        })
        .collect()
}

fn finish(engine: &mut Engine, mut rows: Vec<Running>) -> Vec<Vec<Vec<i32>>> {
    while rows.iter().any(|row| !row.ended) {
        engine.decode(&mut rows);
    }
    rows.into_iter().map(|row| row.codes).collect()
}

#[test]
fn codes_do_not_depend_on_batch_slot_or_admission_order() {
    let mut engine = Engine::open(&tiny());
    let utterances = utterances(&mut engine);
    let alone: Vec<Vec<Vec<i32>>> =
        utterances.iter().map(|utterance| engine.speak(utterance.clone(), 2).codes).collect();
    assert!(alone.iter().any(|codes| codes.len() > 8), "the texts are too short to tell anything");

    // All at once, packed in one prefill.
    let mut rows: Vec<Running> =
        utterances.iter().zip(0..).map(|(utterance, slot)| engine.admit(utterance.clone(), slot)).collect();
    engine.prefill(&mut rows);
    assert_eq!(finish(&mut engine, rows), alone);

    // One by one while the others run, in reverse order and in other slots.
    let mut rows: Vec<Running> = Vec::new();
    for (index, utterance) in utterances.iter().enumerate().rev() {
        let mut admitted = [engine.admit(utterance.clone(), 9 - index as u32)];
        engine.prefill(&mut admitted);
        rows.extend(admitted);
        engine.decode(&mut rows);
    }
    let mut codes = finish(&mut engine, rows);
    codes.reverse();
    assert_eq!(codes, alone);

    // One by one, the steps of those that have begun riding along with the next prompt.
    let mut rows: Vec<Running> = Vec::new();
    for (utterance, slot) in utterances.iter().zip(1..) {
        let mut admitted = [engine.admit(utterance.clone(), slot)];
        engine.prefill_with_riders(&mut admitted, &mut rows);
        rows.extend(admitted);
    }
    assert_eq!(finish(&mut engine, rows), alone);
}

#[test]
fn another_seed_gives_other_codes_and_the_same_seed_the_same() {
    let mut engine = Engine::open(&tiny());
    let utterance = utterances(&mut engine).swap_remove(1);
    let first = engine.speak(utterance.clone(), 0).codes;
    assert_eq!(first, engine.speak(utterance.clone(), 7).codes);
    assert_ne!(first, engine.speak(Utterance { seed: 5, ..utterance }, 0).codes);
}

#[test]
fn a_prompt_computed_in_two_parts_gives_the_same_codes() {
    let mut engine = Engine::open(&tiny());
    let utterance = utterances(&mut engine).swap_remove(1);
    let whole = engine.speak(utterance.clone(), 4).codes;
    // The pages of slot 4 hold the whole prompt now: its beginning may be taken from there.
    let running = engine.admit(utterance, 4);
    let from = running.prompt().positions() / 2;
    let row = models::PrefillRow { from, ..running.prefill_row() };
    let inputs = engine.placed.prefill_inputs(&[row], &[]);
    let outputs = engine.stage(contract::Stage::Prefill, 0, inputs);
    let frame = engine.placed.frames(&outputs).expect("a frame").remove(0);
    assert_eq!(frame.codes, &whole[0][..]);
}
