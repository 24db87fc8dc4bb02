//! Voices a checkpoint brings: speakers trained into it, and reference clips in its `voices` folder.

use std::sync::Arc;

use contract::{Clip, Layout, VoiceInfo, VoiceKind};

use super::config::{Config, Variant};
use crate::json::Document;
use crate::{ModelError, ModelSource, clips};

const VOICES: &str = "voices/voices.json";
const LAYOUTS: [Layout; 2] = [Layout::Streamed, Layout::Whole];

/// The only voice of a checkpoint whose voices are described in words.
const DESIGNED: &str = "designed";

/// One voice and what the model needs to speak as it.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    pub(crate) info: VoiceInfo,
    pub(crate) source: VoiceSource,
}

#[derive(Clone, Debug)]
pub(crate) enum VoiceSource {
    Clip(Arc<Clip>),
    /// No speaker position: instructions alone.
    Described,
    /// Index into the talker's speakers.
    Speaker(usize),
}

/// All voices, and which is spoken when none is named.
#[derive(Clone, Debug)]
pub(crate) struct Voices {
    pub(crate) list: Vec<Voice>,
    pub(crate) default: Option<usize>,
}

impl Voices {
    pub(crate) fn read(source: &ModelSource, config: &Config) -> Result<Self, ModelError> {
        match config.variant {
            Variant::Base if source.has(VOICES) => read_clips(source, config),
            Variant::Base => Ok(Self { list: Vec::new(), default: None }),
            Variant::CustomVoice => {
                let speakers = config.talker.speakers.iter().enumerate();
                let list: Vec<Voice> = speakers
                    .map(|(index, speaker)| Voice {
                        info: trained(&speaker.name, speaker.dialect.clone(), "speaker of the checkpoint"),
                        source: VoiceSource::Speaker(index),
                    })
                    .collect();
                Ok(Self { default: (!list.is_empty()).then_some(0), list })
            }
            Variant::VoiceDesign => {
                let info = trained(DESIGNED, None, "the voice that the instructions describe");
                Ok(Self { list: vec![Voice { info, source: VoiceSource::Described }], default: Some(0) })
            }
        }
    }

    /// By id, else by name in any case.
    pub(crate) fn find(&self, wanted: &str) -> Option<&Voice> {
        let lower = wanted.to_lowercase();
        self.list
            .iter()
            .find(|voice| voice.info.id == wanted)
            .or_else(|| self.list.iter().find(|voice| voice.info.name.to_lowercase() == lower))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.list.iter().map(|voice| voice.info.name.clone()).collect()
    }
}

fn trained(name: &str, language: Option<String>, description: &str) -> VoiceInfo {
    VoiceInfo {
        id: name.to_owned(),
        name: name.to_owned(),
        description: description.to_owned(),
        language,
        kind: VoiceKind::Speaker,
        layouts: LAYOUTS.to_vec(),
    }
}

fn read_clips(source: &ModelSource, config: &Config) -> Result<Voices, ModelError> {
    let file = Document::read(source, VOICES)?;
    let root = file.root();
    if !root.is_absent("sample_rate") {
        let rate = root.sample_rate("sample_rate")?;
        if rate != config.codec.sample_rate {
            let bound = format!("the codec's output_sample_rate, {}", config.codec.sample_rate);
            return Err(root.out_of_range("sample_rate", rate, bound));
        }
    }
    let voices = root.object("voices")?;
    let mut list = Vec::new();
    for (name, _) in voices.entries() {
        let keys = voices.object(name)?;
        let wav = keys.text("file")?;
        if wav.split('/').any(|part| part == "..") || wav.starts_with('/') {
            return Err(keys.out_of_range("file", wav, "a path inside the voices folder"));
        }
        let text = keys.text("text")?;
        let clip = clips::read_wav(source, name, &format!("voices/{wav}"), text, config.codec.sample_rate)?;
        let language =
            if keys.is_absent("language") { None } else { Some(keys.text("language")?.to_lowercase()) };
        let description = if keys.is_absent("description") { "" } else { keys.text("description")? };
        list.push(Voice {
            info: VoiceInfo {
                id: clip.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
                name: name.to_owned(),
                description: description.to_owned(),
                language,
                kind: VoiceKind::Clip,
                layouts: LAYOUTS.to_vec(),
            },
            source: VoiceSource::Clip(Arc::new(clip)),
        });
    }
    let wanted = root.text("default")?;
    let default = list.iter().position(|voice| voice.info.name == wanted);
    if default.is_none() {
        return Err(root.out_of_range("default", wanted, "one of the voices"));
    }
    Ok(Voices { list, default })
}
