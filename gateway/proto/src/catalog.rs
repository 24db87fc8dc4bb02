//! Which model, voice, language and layout a request means, and what the catalogue endpoints answer
//! (DESIGN.md section 7). Refusals list what is valid.

use std::sync::Arc;

use contract::{
    Clip, CloneMode, EngineError, EngineInfo, Layout, ModelInfo, OpenContext, Sampling, Tick, VoiceChoice,
    VoiceKind,
};
use ear::{Ear, Language, Lexicon};
use serde::{Deserialize, Serialize};

use crate::reader::Reader;
use crate::segmenter::Zones;
use crate::shape::Shape;
use crate::wire::{SamplingFields, WireError};

/// What a request asks of an engine, from `open` or from an HTTP body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ask {
    pub model: Option<String>,
    pub voice: Option<String>,
    /// A clip in place of a voice of the model's: a kept voice, or one given with the request.
    pub reference: Option<Reference>,
    pub language: Option<String>,
    pub instructions: Option<String>,
    /// `None` takes the first of `layouts` that the voice can speak.
    pub layout: Option<Layout>,
    pub sampling: SamplingFields,
    pub exact_frames: Option<u32>,
    /// Whether text is read for the ear; false takes it exactly as it stands. `None` is true.
    pub normalize: Option<bool>,
    /// How the tenant says single words.
    pub lexicon: Arc<Lexicon>,
    /// Leaves silence at the ends out.
    pub trim: bool,
}

impl Ask {
    /// Leaves the language to the model where it has none by the name asked for.
    pub fn forget_unknown_language(&mut self, info: &EngineInfo) {
        let known = find_model(info, self.model.as_deref()).map(|model| &model.languages[..]);
        self.language =
            self.language.take().filter(|asked| known.is_ok_and(|known| language(known, asked).is_some()));
    }
}

/// How a clip speaks, by name.
pub const CLONE_MODES: &[(&str, CloneMode)] =
    &[("in_context", CloneMode::InContext), ("speaker", CloneMode::Speaker)];

/// Characters of a clip's transcript: 30 s of speech are a few hundred.
pub const TRANSCRIPT_CHARACTERS_MAX: usize = 2_000;

/// A clip as a voice.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Id of the kept voice; `None` for a clip given with the request.
    pub voice: Option<String>,
    pub clip: Arc<Clip>,
    pub mode: CloneMode,
}

/// Voices beside those of the models: the driver's own. May read a file, and must not wait for a network.
pub trait Voices: std::fmt::Debug + Send + Sync {
    /// Puts the clip that `ask.voice` names into `ask.reference`, if it names one of these.
    ///
    /// # Errors
    /// When the voice is there and cannot be read.
    fn choose(&self, info: &EngineInfo, ask: &mut Ask) -> Result<(), EngineError>;
}

/// A request that an engine can take.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the model.
    pub model: String,
    /// Id of the voice, where the model has voices.
    pub voice: Option<String>,
    /// The clip that speaks, if one does. [`crate::session::Session`] sets it once a streamed one is there.
    pub reference: Option<(Arc<Clip>, CloneMode)>,
    pub language: Option<String>,
    pub layout: Layout,
    /// Hertz of the model's samples.
    pub sample_rate: u32,
    /// How its text is cut.
    zones: Zones,
    /// How its text is read, if it is.
    ear: Option<(Option<&'static dyn Language>, Arc<Lexicon>)>,
    trim: bool,
    instructions: Option<String>,
    sampling: Sampling,
    exact_frames: Option<u32>,
}

impl Target {
    /// Finds what `ask` means. `preferred` says which layout to take when none is asked for; `bench`
    /// whether the server was started for benchmarking.
    ///
    /// # Errors
    /// Unknown model, voice or language (the text lists the valid ones), or something the model cannot.
    pub fn resolve(
        info: &EngineInfo,
        ask: &Ask,
        preferred: [Layout; 2],
        bench: bool,
    ) -> Result<Self, WireError> {
        let model = find_model(info, ask.model.as_deref())?;
        let (voice, layouts) = match &ask.reference {
            Some(reference) if model.takes_reference => (reference.voice.clone(), &model.layouts[..]),
            Some(_) => {
                return Err(unsupported("reference", model, "it clones no voices; name one of its own"));
            }
            None => find_voice(model, ask.voice.as_deref())?,
        };
        let layout = find_layout(model, ask.layout, layouts, preferred)?;
        let language = find_language(model, ask.language.as_deref())?;
        if ask.instructions.as_ref().is_some_and(|text| !text.is_empty()) && !model.takes_instructions {
            return Err(unsupported("instructions", model, "it takes none; leave the field out"));
        }
        if ask.exact_frames.is_some() && !bench {
            return Err(unsupported("exact_frames", model, "only a server started with --bench accepts it"));
        }
        // The region asked for ("en-GB") is the ear's alone: no model has one.
        let named = ask.language.as_deref().filter(|_| language.as_deref() != Some(UNDECIDED));
        let spoken = spoken_language(model, voice.as_deref(), named);
        let ear = (ask.normalize != Some(false))
            .then(|| (spoken.and_then(ear::language), Arc::clone(&ask.lexicon)));
        let zones = match layout {
            Layout::Streamed => Zones::streamed(model.segment_characters_max),
            Layout::Whole => Zones::whole(model.segment_characters_max),
        };
        let asked = ask.sampling;
        Ok(Self {
            model: model.name.clone(),
            voice,
            reference: ask.reference.as_ref().map(|given| (Arc::clone(&given.clip), given.mode)),
            language,
            layout,
            sample_rate: model.sample_rate,
            zones,
            ear,
            trim: ask.trim,
            instructions: ask.instructions.clone().filter(|text| !text.is_empty()),
            sampling: Sampling {
                temperature: asked.temperature,
                top_k: asked.top_k,
                top_p: asked.top_p,
                repetition_penalty: asked.repetition_penalty,
                seed: asked.seed,
                ..Sampling::default()
            },
            exact_frames: ask.exact_frames,
        })
    }

    /// Whose rules read its text for the ear (`en-US`); none where it is said as it stands.
    #[must_use]
    pub fn reading(&self) -> Option<&'static str> {
        self.ear.as_ref()?.0.map(Language::tag)
    }

    /// Reads and cuts the text of one epoch.
    #[must_use]
    pub fn reader(&self) -> Reader {
        let ear = self.ear.as_ref().map(|(language, lexicon)| Ear::new(*language, Arc::clone(lexicon)));
        Reader::new(ear, self.zones)
    }

    /// Shapes the sound of one epoch.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape::new(self.sample_rate, self.trim)
    }

    /// The engine's request for one epoch that began at `arrival`.
    #[must_use]
    pub fn request(&self, arrival: Tick, tenant: u32) -> OpenContext {
        OpenContext {
            model: self.model.clone(),
            voice: match (&self.reference, &self.voice) {
                (Some((clip, mode)), _) => VoiceChoice::Reference { clip: Arc::clone(clip), mode: *mode },
                (None, Some(voice)) => VoiceChoice::Named(voice.clone()),
                (None, None) => VoiceChoice::Default,
            },
            language: self.language.clone(),
            instructions: self.instructions.clone(),
            layout: self.layout,
            sampling: self.sampling,
            arrival,
            tenant,
            exact_frames: self.exact_frames,
        }
    }
}

/// Names of OpenAI's speech models: whoever asks for one of them gets the first model here.
pub const MODEL_ALIASES: [&str; 3] = ["gpt-4o-mini-tts", "tts-1", "tts-1-hd"];

/// The model that `name` means: its own name, or an alias.
#[must_use]
pub fn model<'a>(info: &'a EngineInfo, name: &str) -> Option<&'a ModelInfo> {
    let own = info.models.iter().find(|model| model.name == name);
    own.or_else(|| info.models.first().filter(|_| MODEL_ALIASES.contains(&name)))
}

/// OpenAI's voice names: each is one of the model's own voices, counted round in their order, so that a
/// client which knows only these names hears the same voice each time.
pub const VOICE_ALIASES: [&str; 13] = [
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer",
    "verse",
];

/// The voice of `model` that an alias stands for.
fn alias<'a>(model: &'a ModelInfo, name: &str) -> Option<&'a contract::VoiceInfo> {
    let at = VOICE_ALIASES.iter().position(|alias| alias.eq_ignore_ascii_case(name))?;
    model.voices.get(at.checked_rem(model.voices.len())?)
}

fn find_model<'a>(info: &'a EngineInfo, asked: Option<&str>) -> Result<&'a ModelInfo, EngineError> {
    let found = match asked {
        None => info.models.first(),
        Some(name) => model(info, name),
    };
    found.ok_or_else(|| EngineError::UnknownModel {
        model: asked.unwrap_or("").chars().take(64).collect(),
        known: info.models.iter().map(|model| model.name.clone()).collect(),
    })
}

/// The voice's id and the layouts it can speak.
fn find_voice<'a>(
    model: &'a ModelInfo,
    asked: Option<&str>,
) -> Result<(Option<String>, &'a [Layout]), WireError> {
    let known = || model.voices.iter().map(|voice| voice.name.clone()).collect::<Vec<_>>();
    let found = match asked {
        None => match model.default_voice.and_then(|at| model.voices.get(at)) {
            None if model.voices.is_empty() => return Ok((None, &model.layouts)),
            None => {
                return Err(WireError::MissingField {
                    param: "voice".to_owned(),
                    hint: Some("this model has no default voice; GET /v1/audio/voices lists its voices"),
                });
            }
            found => found,
        },
        Some(name) => model
            .voices
            .iter()
            .find(|voice| voice.id == name || voice.name == name)
            .or_else(|| model.voices.iter().find(|voice| voice.name.eq_ignore_ascii_case(name)))
            .or_else(|| alias(model, name)),
    };
    match found {
        Some(voice) => Ok((Some(voice.id.clone()), &voice.layouts)),
        None => Err(WireError::Engine(EngineError::UnknownVoice {
            voice: asked.unwrap_or("").chars().take(64).collect(),
            known: known(),
        })),
    }
}

fn find_layout(
    model: &ModelInfo,
    asked: Option<Layout>,
    layouts: &[Layout],
    preferred: [Layout; 2],
) -> Result<Layout, WireError> {
    let can = |layout: &Layout| layouts.contains(layout) && model.layouts.contains(layout);
    match asked {
        Some(layout) if can(&layout) => Ok(layout),
        Some(_) => {
            let known: Vec<&str> = layouts.iter().filter(|layout| can(layout)).map(|l| l.name()).collect();
            Err(unsupported("layout", model, &format!("this voice can: {}", known.join(", "))))
        }
        None => preferred
            .into_iter()
            .find(can)
            .ok_or_else(|| unsupported("voice", model, "this voice can speak no layout; choose another")),
    }
}

fn find_language(model: &ModelInfo, asked: Option<&str>) -> Result<Option<String>, EngineError> {
    let Some(asked) = asked else { return Ok(None) };
    match language(&model.languages, asked) {
        Some(language) => Ok(Some(language.to_owned())),
        None => Err(EngineError::UnknownLanguage {
            language: asked.chars().take(64).collect(),
            known: model.languages.clone(),
        }),
    }
}

/// The name by which a model is left to find the language itself.
const UNDECIDED: &str = "auto";

/// The language a text is in, as far as that can be known: the one asked for, the voice's own, or the only
/// one the model has.
fn spoken_language<'a>(model: &'a ModelInfo, voice: Option<&str>, asked: Option<&'a str>) -> Option<&'a str> {
    if let Some(asked) = asked {
        return Some(asked);
    }
    let voice = model.voices.iter().find(|known| Some(known.id.as_str()) == voice);
    if let Some(language) = voice.and_then(|voice| voice.language.as_deref()) {
        return Some(language);
    }
    let mut known = model.languages.iter().filter(|language| *language != UNDECIDED);
    let only = known.next()?;
    known.next().is_none().then_some(only)
}

/// Every name that some model's language goes by, its code among them.
#[must_use]
pub fn languages(info: &EngineInfo) -> Vec<&str> {
    let names = info.models.iter().flat_map(|model| &model.languages).map(String::as_str);
    let mut known: Vec<&str> = names.collect();
    let codes = LANGUAGE_CODES.iter().filter(|(_, name)| known.contains(name)).map(|(code, _)| *code);
    known.extend(codes.collect::<Vec<_>>());
    known.sort_unstable();
    known.dedup();
    known
}

/// ISO 639-1 codes of languages that models name in English.
const LANGUAGE_CODES: &[(&str, &str)] = &[
    ("ar", "arabic"),
    ("cs", "czech"),
    ("da", "danish"),
    ("de", "german"),
    ("el", "greek"),
    ("en", "english"),
    ("es", "spanish"),
    ("fi", "finnish"),
    ("fr", "french"),
    ("hi", "hindi"),
    ("hu", "hungarian"),
    ("id", "indonesian"),
    ("it", "italian"),
    ("ja", "japanese"),
    ("ko", "korean"),
    ("nl", "dutch"),
    ("no", "norwegian"),
    ("pl", "polish"),
    ("pt", "portuguese"),
    ("ro", "romanian"),
    ("ru", "russian"),
    ("sv", "swedish"),
    ("th", "thai"),
    ("tr", "turkish"),
    ("uk", "ukrainian"),
    ("vi", "vietnamese"),
    ("zh", "chinese"),
];

/// Which of `known` is meant by a name or by an ISO 639-1 code, with or without a region (`en-GB`).
#[must_use]
pub fn language<'a>(known: &'a [String], asked: &str) -> Option<&'a str> {
    let lower = asked.to_lowercase();
    let code = lower.split(['-', '_']).next().unwrap_or_default();
    let named =
        LANGUAGE_CODES.iter().find(|(known, _)| *known == code).map_or(lower.as_str(), |(_, name)| *name);
    known.iter().find(|known| **known == lower || **known == named).map(String::as_str)
}

fn unsupported(field: &'static str, model: &ModelInfo, hint: &str) -> WireError {
    WireError::Engine(EngineError::Unsupported { field, model: model.name.clone(), hint: hint.to_owned() })
}

/// A list answer: `{object: "list", data: [...]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Listing<T> {
    pub object: String,
    pub data: Vec<T>,
}

/// One entry of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ModelEntry {
    pub id: String,
    pub object: String,
    /// Seconds since 1970 when the process loaded it.
    pub created: u64,
    pub owned_by: String,
}

/// One entry of `GET /v1/audio/voices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VoiceEntry {
    pub id: String,
    pub name: String,
    /// Seconds since 1970; of a checkpoint's own voices, when the process loaded it.
    pub created_at: u64,
    pub object: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub language: Option<String>,
}

/// Answer of `GET /v1/models`; `created` in seconds since 1970.
#[must_use]
pub fn models(info: &EngineInfo, created: u64) -> Listing<ModelEntry> {
    let data = info.models.iter().map(|model| ModelEntry {
        id: model.name.clone(),
        object: "model".to_owned(),
        created,
        owned_by: "voxlane".to_owned(),
    });
    Listing { object: "list".to_owned(), data: data.collect() }
}

/// Answer of `GET /v1/audio/voices`: every voice of every model; a voice that several models share
/// (same id) is listed once.
#[must_use]
pub fn voices(info: &EngineInfo, created: u64) -> Listing<VoiceEntry> {
    let mut data: Vec<VoiceEntry> = Vec::new();
    for voice in info.models.iter().flat_map(|model| &model.voices) {
        if data.iter().all(|known| known.id != voice.id) {
            data.push(VoiceEntry {
                id: voice.id.clone(),
                name: voice.name.clone(),
                created_at: created,
                object: "audio.voice".to_owned(),
                kind: match voice.kind {
                    VoiceKind::Clip => "clip",
                    VoiceKind::Speaker => "speaker",
                }
                .to_owned(),
                language: voice.language.clone(),
            });
        }
    }
    Listing { object: "list".to_owned(), data }
}
