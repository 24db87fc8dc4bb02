//! Prompts do not depend on how much of the text is known, and take what they need of it.

use std::sync::Arc;

use contract::{Clip, CloneMode, EngineError, Layout, VoiceChoice};
use models::{Prompt, SpeechPlan, VoiceFeatures};

use crate::engine::{Engine, greedy};
use crate::fixtures::{Fixture, golden, tiny};
use crate::speech::Given;

const TEXT: &str = "The bakery opens at seven, and the second bell rings at nine in the evening, twice.";

fn clip(transcript: &str) -> Arc<Clip> {
    let samples = (0..24_000).map(|i| (i as f32 * 0.05).sin() * 0.1).collect();
    Arc::new(Clip { samples, sample_rate: 24_000, transcript: Some(transcript.to_owned()), hash: [7; 16] })
}

/// A plan in context whose reference has `frames` frames, without running the encoders.
fn in_context(
    engine: &mut Engine,
    layout: Layout,
    transcript: &str,
    frames: usize,
) -> (SpeechPlan, Option<Arc<VoiceFeatures>>) {
    let choice = VoiceChoice::Reference { clip: clip(transcript), mode: CloneMode::InContext };
    let plan = engine.plan(choice, layout, None, greedy());
    let fixture = Fixture::read(&golden().join("tiny/intermediate_0.safetensors"));
    let groups = engine.facts.code_groups as usize;
    let codes = fixture.ints("encoder.codes")[..frames * groups].to_vec();
    let voice = Given::both(fixture.floats("spk.embedding"), codes).encode(engine, &plan);
    (plan, voice)
}

fn prompt(
    engine: &Engine,
    plan: &SpeechPlan,
    voice: Option<&VoiceFeatures>,
    ids: &[u32],
    over: bool,
) -> Prompt {
    engine.placed.prompt(plan, voice, ids, over).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_streamed_prompt_holds_exactly_the_first_text_id() {
    let mut engine = Engine::open(&tiny());
    let plan = engine.plan(VoiceChoice::Default, Layout::Streamed, None, greedy());
    let voice = Given::speaker(vec![0.5; 384]).encode(&mut engine, &plan);
    let ids = engine.ids(TEXT);
    assert_eq!(engine.placed.text_ids_needed(&plan, voice.as_deref()), Some(1));
    let first = prompt(&engine, &plan, voice.as_deref(), &ids[..1], false);
    assert_eq!(first, prompt(&engine, &plan, voice.as_deref(), &ids, true));
    assert_eq!((first.text_ids_used, first.text_end_used), (1, false));
    assert_eq!(first.shared_positions, first.positions() - 1);
}

#[test]
fn a_whole_prompt_holds_all_text_and_its_end() {
    let mut engine = Engine::open(&tiny());
    let plan = engine.plan(VoiceChoice::Default, Layout::Whole, None, greedy());
    let voice = Given::speaker(vec![0.5; 384]).encode(&mut engine, &plan);
    let ids = engine.ids(TEXT);
    assert_eq!(engine.placed.text_ids_needed(&plan, voice.as_deref()), None);
    let whole = prompt(&engine, &plan, voice.as_deref(), &ids, true);
    assert_eq!((whole.text_ids_used, whole.text_end_used), (ids.len(), true));
    assert_eq!(whole.positions(), whole.shared_positions + ids.len() + 2);
}

#[test]
fn an_overlay_waits_for_the_text_it_covers_and_no_more() {
    let mut engine = Engine::open(&tiny());
    let (plan, voice) = in_context(&mut engine, Layout::Streamed, "Just a few words.", 12);
    let voice = voice.as_deref();
    let ids = engine.ids(TEXT);
    let needed = engine.placed.text_ids_needed(&plan, voice).expect("an overlay");
    assert!(needed > 1 && needed < ids.len(), "{needed} of {}", ids.len());
    let early = prompt(&engine, &plan, voice, &ids[..needed], false);
    assert_eq!(early, prompt(&engine, &plan, voice, &ids, true));
    assert_eq!((early.text_ids_used, early.text_end_used), (needed, false));
    assert!(engine.placed.prompt(&plan, voice, &ids[..needed - 1], false).is_err());

    // A text that ends inside the overlay is followed by its end and padding there.
    let short = prompt(&engine, &plan, voice, &ids[..2], true);
    assert_eq!((short.text_ids_used, short.text_end_used), (2, true));
    assert_eq!(short.positions(), early.positions());
    // One that fills it exactly has its end fed afterwards.
    let exact = prompt(&engine, &plan, voice, &ids[..needed], true);
    assert_eq!((exact.text_ids_used, exact.text_end_used), (needed, false));
}

#[test]
fn a_transcript_longer_than_its_sound_runs_on_after_the_prompt() {
    let mut engine = Engine::open(&tiny());
    let (plan, voice) = in_context(&mut engine, Layout::Streamed, TEXT, 5);
    let ids = engine.ids("Yes.");
    let prompt = prompt(&engine, &plan, voice.as_deref(), &ids, true);
    assert_eq!(prompt.text_ids_used, 0);
    let transcript = engine.ids(TEXT);
    assert_eq!(prompt.text_ids_before, transcript[6..]);
}

#[test]
fn a_prompt_that_leaves_no_room_for_speech_is_refused() {
    let mut engine = Engine::open(&tiny());
    let plan = engine.plan(VoiceChoice::Default, Layout::Whole, None, greedy());
    let voice = Given::speaker(vec![0.5; 384]).encode(&mut engine, &plan);
    let ids = vec![5; engine.placed.positions_max() as usize];
    match engine.placed.prompt(&plan, voice.as_deref(), &ids, true) {
        Err(EngineError::FieldOutOfRange { field: "text", .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(engine.placed.prompt(&plan, voice.as_deref(), &[], true).is_err());
    assert!(engine.placed.prompt(&plan, None, &[5], true).is_err(), "its clip was not encoded");
}

#[test]
fn a_voice_in_context_brings_a_primed_codec() {
    let mut engine = Engine::open(&tiny());
    let (_, voice) = in_context(&mut engine, Layout::Whole, "Just a few words.", 13);
    let voice = voice.expect("features");
    assert_eq!(voice.codec_start(), 13);
    assert!(!voice.codec_image().is_empty() && voice.bytes() > 10_000);
    // Going on from the image is going on from the reference itself.
    let groups = engine.facts.code_groups as usize;
    let codes: Vec<Vec<i32>> =
        voice.reference_codes().expect("codes").chunks_exact(groups).map(<[i32]>::to_vec).collect();
    let together = [codes.clone(), codes[..6].to_vec()].concat();
    let whole = engine.sound(&together, &[4], 1, 0);
    let start = engine.prime(Some(&voice), 2);
    let continued = engine.sound(&codes[..6], &[2], 2, start);
    assert_eq!(continued, whole[whole.len() - continued.len()..]);
}
