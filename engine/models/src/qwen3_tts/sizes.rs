//! The published sizes, by their configs alone: parameter counts equal those counted on the reference's
//! own classes, and every program is well formed.
#![cfg(test)]

use device::program::Program;
use device::{
    Backend, Catalog, Completed, DeviceError, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, StateId,
    StateSpec, WeightForm, WeightId,
};
use serde_json::{Value, json};

use super::codec::Codec;
use super::config::Config;
use super::reference_codes::{self, ReferenceCodesWeights};
use super::speaker::{self, SpeakerWeights};
use super::talker::Talker;
use crate::json::Document;
use crate::weights::Loader;
use crate::{Capacity, ModelSource};

/// A backend that knows shapes only.
#[derive(Default)]
struct Shapes {
    catalog: Catalog,
    /// Name and number of values of each weight.
    weights: Vec<(String, u64)>,
}

impl Shapes {
    fn parameters(&self, prefix: &str) -> u64 {
        self.weights.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    }
}

impl Backend for Shapes {
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        _: Vec<f32>,
    ) -> Result<WeightId, DeviceError> {
        let count = shape.iter().product();
        self.weights.push((name.to_owned(), count as u64));
        self.catalog.add_weight(name, form, shape, count)
    }

    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        self.catalog.add_state(spec)
    }

    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        self.catalog.add_paged(spec)
    }

    fn build(&mut self, _: contract::ShapeKey, program: &Program) -> Result<ExecutableId, DeviceError> {
        program.check(&self.catalog).map(|()| ExecutableId(0))
    }

    fn release(&mut self, _: ExecutableId) {}

    fn launch(&mut self, _: Launch) -> Result<(), DeviceError> {
        Err(nothing_runs())
    }

    fn poll(&mut self) -> Option<Completed> {
        None
    }

    fn write_state(&mut self, _: StateId, _: u32, _: &HostTensor) -> Result<(), DeviceError> {
        Err(nothing_runs())
    }

    fn read_state(&mut self, _: StateId, _: u32) -> Result<HostTensor, DeviceError> {
        Err(nothing_runs())
    }

    fn describe(&self) -> String {
        "shapes only".to_owned()
    }
}

fn nothing_runs() -> DeviceError {
    DeviceError::LaneLost { lane: "lm", what: "shapes only".to_owned() }
}

/// The published checkpoints' settings; `hidden` 2048 is the 1.7B, 1024 the 0.6B.
fn published(kind: &str, size: &str, hidden: usize, intermediate: usize) -> [(&'static str, Value); 3] {
    let decoder = json!({"hidden_act": "silu", "attention_bias": false, "use_sliding_window": false,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000, "num_code_groups": 16});
    let mut predictor = decoder.clone();
    merge(
        &mut predictor,
        json!({"vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 5}),
    );
    let mut talker = decoder;
    merge(
        &mut talker,
        json!({"vocab_size": 3072, "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": 28, "text_hidden_size": 2048, "text_vocab_size": 151_936,
        "max_position_embeddings": 32_768, "codec_pad_id": 2148, "codec_bos_id": 2149, "codec_eos_token_id": 2150,
        "codec_think_id": 2154, "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
        "codec_language_id": {"chinese": 2055, "english": 2050, "beijing_dialect": 2074},
        "spk_id": {"vivian": 3065, "dylan": 2878}, "spk_is_dialect": {"vivian": false, "dylan": "beijing_dialect"},
        "code_predictor_config": predictor}),
    );
    let config = json!({"model_type": "qwen3_tts", "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_type": kind, "tts_model_size": size, "im_start_token_id": 151_644, "im_end_token_id": 151_645,
        "tts_pad_token_id": 151_671, "tts_bos_token_id": 151_672, "tts_eos_token_id": 151_673,
        "speaker_encoder_config": {"enc_dim": hidden, "sample_rate": 24_000}, "talker_config": talker});
    let generation = json!({"do_sample": true, "temperature": 0.9, "top_k": 50, "top_p": 1.0,
        "repetition_penalty": 1.05, "subtalker_dosample": true, "subtalker_temperature": 0.9,
        "subtalker_top_k": 50, "subtalker_top_p": 1.0, "max_new_tokens": 8192});
    let codec = json!({"encoder_config": {"frame_rate": 12.5}, "encoder_valid_num_quantizers": 16,
        "output_sample_rate": 24_000, "decode_upsample_rate": 1920,
        "decoder_config": {"codebook_size": 2048, "codebook_dim": 512, "hidden_size": 512, "latent_dim": 1024,
            "rope_theta": 10_000, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
            "sliding_window": 72, "intermediate_size": 1024, "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "num_hidden_layers": 8, "num_quantizers": 16, "num_semantic_quantizers": 1,
            "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2], "decoder_dim": 1536}});
    [("config.json", config), ("generation_config.json", generation), ("speech_tokenizer/config.json", codec)]
}

fn merge(into: &mut Value, other: Value) {
    if let (Value::Object(into), Value::Object(other)) = (into, other) {
        into.extend(other);
    }
}

/// Test files live as long as the process.
fn source(files: [(&'static str, Value); 3]) -> ModelSource {
    let files: Vec<(&'static str, &'static [u8])> =
        files.into_iter().map(|(name, value)| (name, &*value.to_string().into_bytes().leak())).collect();
    ModelSource::Embedded(files.leak())
}

fn load(kind: &str, size: &str, hidden: usize, intermediate: usize) -> Shapes {
    let source = source(published(kind, size, hidden, intermediate));
    let file = Document::read(&source, "config.json").expect("JSON");
    let config = Config::read(&source, &file).expect("a published config");
    let mut shapes = Shapes::default();
    let capacity = Capacity { slots: 4, pages: 9, page_len: 64, positions_max: 2048 };
    let mut loader = Loader::shapes(&mut shapes);
    let talker = Talker::load(&mut loader, &config, &capacity).expect("a talker");
    let codec = Codec::load(&mut loader, &config).expect("a codec");
    let mut programs = vec![talker.decode_program(&config), talker.prefill_program(&config)];
    programs.extend([1, 2, 4, 10].map(|length| codec.program(&config, length)));
    if let Some(encoders) = &config.encoders {
        let speaker = SpeakerWeights::load(&mut loader, &encoders.speaker).expect("a speaker encoder");
        let codes = ReferenceCodesWeights::load(&mut loader, &encoders.codes).expect("a code encoder");
        programs.push(speaker::program(&encoders.speaker, &speaker, 30_001));
        programs.push(reference_codes::program(&encoders.codes, &codes, 30_001));
    }
    for program in &programs {
        program.check(&shapes.catalog).unwrap_or_else(|error| panic!("{error}"));
    }
    shapes
}

/// Window and filters of the mel front end, which a checkpoint does not hold.
const MEL: u64 = 1024 + 128 * 513;

/// Millions with two decimals, as they were counted.
#[track_caller]
fn assert_millions(found: u64, expected: f64) {
    assert!((found as f64 / 1e6 - expected).abs() < 0.006, "{found} parameters, {expected} M expected");
}

#[test]
fn the_1_7b_has_the_parameters_of_the_reference() {
    let shapes = load("base", "1b7", 2048, 6144);
    assert_millions(shapes.parameters("talker.model.layers."), 1409.41);
    assert_millions(shapes.parameters("talker.model.text_embedding"), 311.16);
    assert_millions(shapes.parameters("talker.text_projection"), 8.39);
    assert_millions(shapes.parameters("talker.model.codec_embedding"), 6.29);
    assert_millions(shapes.parameters("talker.codec_head"), 6.29);
    assert_millions(shapes.parameters("talker.code_predictor.model.layers."), 78.65);
    assert_millions(shapes.parameters("talker.code_predictor.model.codec_embedding."), 62.91);
    assert_millions(shapes.parameters("talker.code_predictor.lm_head."), 31.46);
    assert_millions(shapes.parameters("talker.code_predictor.small_to_mtp_projection"), 2.10);
    assert_millions(shapes.parameters("speaker_encoder.") - MEL, 12.00);
}

#[test]
fn the_0_6b_has_the_parameters_of_the_reference_and_no_projection() {
    let shapes = load("base", "0b6", 1024, 3072);
    assert_millions(shapes.parameters("talker.model.layers."), 440.47);
    assert_millions(shapes.parameters("talker.text_projection"), 6.29);
    assert_millions(shapes.parameters("talker.code_predictor.model.codec_embedding."), 31.46);
    assert_eq!(shapes.parameters("talker.code_predictor.small_to_mtp_projection"), 0);
    assert_millions(shapes.parameters("speaker_encoder.") - MEL, 8.85);
}

#[test]
fn the_codec_has_the_parameters_of_the_reference() {
    let shapes = load("custom_voice", "1b7", 2048, 6144);
    // Counted on the reference: 114.32 M. Not uploaded of these: the quantizers' input projections, and
    // the uses by which codebooks are divided.
    let unused = (2 * 512 * 256 + 16 * 2048) as f64 / 1e6;
    assert_millions(shapes.parameters("decoder."), 114.32 - unused);
    assert_eq!(shapes.parameters("speaker_encoder."), 0);
}
