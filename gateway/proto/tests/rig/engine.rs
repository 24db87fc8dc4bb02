//! What the scripted engine can, and a session's configuration for it.

use std::sync::Arc;

use contract::{EngineInfo, Layout, ModelInfo, SamplingDefaults, VoiceInfo, VoiceKind};
use proto::session::{Config, Limits};

use super::{FRAME, PRE_SKIP, RATE};

pub fn info() -> Arc<EngineInfo> {
    let voice = |name: &str, layouts: &[Layout]| VoiceInfo {
        id: name.to_owned(),
        name: name.to_owned(),
        description: String::new(),
        // With two languages besides, nothing tells what a text is in: it is spoken as it stands.
        language: None,
        kind: VoiceKind::Clip,
        layouts: layouts.to_vec(),
    };
    Arc::new(EngineInfo {
        models: vec![ModelInfo {
            name: "tts-tiny".to_owned(),
            family: "test".to_owned(),
            licence: "Apache-2.0".to_owned(),
            sample_rate: RATE,
            samples_per_frame: FRAME as u32,
            layouts: vec![Layout::Streamed, Layout::Whole],
            languages: ["auto", "english", "german"].map(str::to_owned).to_vec(),
            voices: vec![
                voice("clara", &[Layout::Streamed, Layout::Whole]),
                voice("marcus", &[Layout::Whole]),
            ],
            default_voice: Some(0),
            takes_instructions: false,
            takes_reference: true,
            sampling: SamplingDefaults { temperature: 0.3, top_k: 50, top_p: 1.0, repetition_penalty: 1.05 },
            segment_characters_max: 200,
        }],
        limits: contract::Limits { contexts_max: 12, open_max: 64, output_samples_max: u64::from(RATE) * 7 },
        device: "test".to_owned(),
    })
}

/// As [`info`], with voices that speak English.
pub fn english_info() -> Arc<EngineInfo> {
    let mut engine = (*info()).clone();
    for voice in &mut engine.models[0].voices {
        voice.language = Some("english".to_owned());
    }
    Arc::new(engine)
}

pub fn config() -> Config {
    Config {
        session: "s-1".to_owned(),
        resume: "r-1".to_owned(),
        engine: info(),
        tenant: 3,
        voices: None,
        lexicon: std::sync::Arc::default(),
        bench: false,
        quotas: None,
        opus_pre_skip: PRE_SKIP,
        paces: proto::paces::Paces::default(),
        limits: Limits::default(),
    }
}
