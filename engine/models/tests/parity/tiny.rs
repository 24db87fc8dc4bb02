//! The goldens that came with the embedded checkpoint.

use contract::{Layout, Stage, VoiceChoice};
use device::HostTensor;

use crate::engine::{Engine, Utterance, greedy};
use crate::fixtures::{Fixture, assert_close, golden, tiny};
use crate::speech::{Given, Observed};
use crate::taps::{tap, writes};

const BOUND: f32 = 1e-3;

/// name, layout, text, voice, language
const CASES: [(&str, Layout, &str, &str, &str); 6] = [
    ("hello_nonstreaming", Layout::Whole, "Hello there.", "clara", "Auto"),
    ("hello_streaming", Layout::Streamed, "Hello there.", "clara", "Auto"),
    ("order_nonstreaming", Layout::Whole, ORDER, "june", "English"),
    ("order_streaming", Layout::Streamed, ORDER, "june", "English"),
    ("train_nonstreaming", Layout::Whole, TRAIN, "marcus", "English"),
    ("train_streaming", Layout::Streamed, TRAIN, "marcus", "English"),
];
const ORDER: &str = "Your order number is 1664, and it will arrive on Monday.";
const TRAIN: &str = "The morning train was late again, so we walked along the river.";

fn fixture(name: &str) -> Fixture {
    Fixture::read(&golden().join(format!("tiny/{name}.safetensors")))
}

fn utterance(
    engine: &mut Engine,
    layout: Layout,
    text: &str,
    voice: &str,
    language: &str,
    given: &Given,
) -> Utterance {
    let plan = engine.plan(VoiceChoice::Named(voice.to_owned()), layout, Some(language), greedy());
    let voice = given.encode(engine, &plan);
    Utterance { plan, voice, text_ids: engine.ids(text), seed: 0, frames_max: 99 }
}

#[test]
fn greedy_codes_and_sound_equal_the_goldens() {
    let mut engine = Engine::open(&tiny());
    for (name, layout, text, voice, language) in CASES {
        let golden = fixture(name);
        let input_ids = golden.ints("input_ids");
        let ids: Vec<i32> = engine.ids(text).iter().map(|&id| id as i32).collect();
        assert_eq!(ids, input_ids[3..input_ids.len() - 5], "{name}: text ids");
        let given = Given::speaker(golden.floats("speaker_embedding"));
        let utterance = utterance(&mut engine, layout, text, voice, language, &given);
        let spoken = engine.speak(utterance, 3);
        assert_eq!(spoken.codes.concat(), golden.ints("codes"), "{name}: codes");
        let sound = engine.sound(&spoken.codes, &[10], 3, 0);
        assert_close(&format!("{name}: PCM"), &sound, &golden.floats("pcm"), BOUND);
    }
}

#[test]
fn the_models_own_encoder_gives_the_same_greedy_codes() {
    let mut engine = Engine::open(&tiny());
    for (name, layout, text, voice, language) in CASES {
        let golden = fixture(name);
        let utterance = utterance(&mut engine, layout, text, voice, language, &Given::nothing());
        let vector =
            utterance.voice.as_ref().and_then(|voice| voice.speaker()).expect("a speaker vector").to_vec();
        assert_close(&format!("{name}: speaker vector"), &vector, &golden.floats("speaker_embedding"), BOUND);
        let spoken = engine.speak(utterance, 0);
        assert_eq!(spoken.codes.concat(), golden.ints("codes"), "{name}: codes");
    }
}

#[test]
fn hidden_states_and_logits_of_the_backbone_equal_the_goldens() {
    let mut engine = Engine::open(&tiny());
    let golden = fixture("intermediate_0");
    for (prefix, layout) in [("nonstreaming", Layout::Whole), ("streaming", Layout::Streamed)] {
        let given = Given::speaker(golden.floats("spk.embedding"));
        let utterance = utterance(&mut engine, layout, "Hello there.", "clara", "Auto", &given);
        let running = engine.admit(utterance.clone(), 1);
        let program = engine.placed.program(Stage::Prefill, 0).expect("prefill");
        let mut look = |name: &str, nth: usize| {
            let inputs = engine.placed.prefill_inputs(&[running.prefill_row()], &[]);
            match engine.run(&tap(program.clone(), name, nth), inputs).pop() {
                Some(HostTensor::F32(values)) => values,
                other => panic!("{name} is {other:?}"),
            }
        };
        let expect = |name: &str| golden.floats(&format!("{prefix}.{name}"));
        // The stream is written by the codes, steps' newest codes, the speaker, the text, then twice a layer.
        let embedded = 3;
        assert_close("inputs_embeds", &look("stream", embedded), &expect("prefill.inputs_embeds"), BOUND);
        assert_close("layer 0", &look("stream", embedded + 2), &expect("prefill.layer0"), BOUND);
        assert_close("hidden", &look("normed", 0), &expect("prefill.hidden"), BOUND);
        assert_close("logits", &look("logits", 0), &expect("first.logits"), BOUND);
        assert_close(
            "predictor's first input",
            &look("depth.pair.stream", 0),
            &expect("cp.first_input"),
            BOUND,
        );
        let heads = writes(&program, "depth.logits");
        let logits: Vec<f32> = (0..heads).flat_map(|head| look("depth.logits", head)).collect();
        assert_close("predictor's logits", &logits, &expect("cp.first_frame_logits"), BOUND);

        let observed = Observed::speak(&mut engine, utterance, &[]);
        assert_eq!(observed.codes.concat(), golden.ints(&format!("{prefix}.codes")));
        assert_close("hidden of all frames", &observed.hidden.concat(), &expect("hidden"), BOUND);
    }
}

#[test]
fn the_codecs_intermediate_values_equal_the_goldens() {
    let mut engine = Engine::open(&tiny());
    let golden = fixture("intermediate_0");
    let codes = golden.ints("codec.codes");
    let groups = golden.shape("codec.codes")[1];
    let program = engine.placed.program(Stage::Codec, 10).expect("captured");
    let mut look = |name: &str, nth: usize| {
        let row = models::CodecRow { slot: 2, start: 0, codes: &codes[..10 * groups] };
        let inputs = engine.placed.codec_inputs(&[row], 10);
        match engine.run(&tap(program.clone(), name, nth), inputs).pop() {
            Some(HostTensor::F32(values)) => values,
            other => panic!("{name} is {other:?}"),
        }
    };
    // The reference keeps channels first for all but the transformer.
    let channels_last = |name: &str| {
        let shape = golden.shape(name);
        let values = golden.floats(name);
        let (channels, steps) = (shape[0], shape[1]);
        (0..steps * channels).map(|i| values[(i % channels) * steps + i / channels]).collect::<Vec<f32>>()
    };
    assert_close("quantized", &look("quantized", 0), &channels_last("codec.quantized"), BOUND);
    assert_close("pre_conv", &look("latent", 0), &channels_last("codec.pre_conv"), BOUND);
    assert_close("transformer", &look("transformed", 0), &golden.floats("codec.pre_transformer"), BOUND);
    assert_close("conv_in", &look("wide", 0), &channels_last("codec.conv_in"), BOUND);
    assert_close("block 0", &look("block.0.odd", 1), &channels_last("codec.block0"), BOUND);
    let frames: Vec<Vec<i32>> = codes.chunks_exact(groups).map(<[i32]>::to_vec).collect();
    let sound = engine.sound(&frames, &[10], 2, 0);
    assert_close("chunk 0", &sound[..sound.len() / 2], &golden.floats("codec.chunk0"), BOUND);
    assert_close("chunk 1", &sound[sound.len() / 2..], &golden.floats("codec.chunk1"), BOUND);
}
