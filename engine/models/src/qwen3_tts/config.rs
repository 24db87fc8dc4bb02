//! Everything the family takes from `config.json`, `generation_config.json` and
//! `speech_tokenizer/config.json`. No number of a checkpoint stands in this crate's code.

use crate::blocks::LayerShape;
use crate::json::{Document, Object};
use crate::{ModelError, ModelSource};

use super::reference_codes::ReferenceCodesConfig;
use super::speaker::SpeakerConfig;

/// The folder of the codec inside a checkpoint.
pub(crate) const CODEC_FOLDER: &str = "speech_tokenizer";
const CODEC_CONFIG: &str = "speech_tokenizer/config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const CODEC_TYPE: &str = "qwen3_tts_tokenizer_12hz";

const TEXT_KEYS: [&str; 5] =
    ["im_start_token_id", "im_end_token_id", "tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id"];
const CODEC_KEYS: [&str; 7] = [
    "codec_pad_id",
    "codec_bos_id",
    "codec_eos_token_id",
    "codec_think_id",
    "codec_nothink_id",
    "codec_think_bos_id",
    "codec_think_eos_id",
];

/// What a checkpoint was trained to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Speaks as a reference clip.
    Base,
    /// Speaks as one of its trained speakers.
    CustomVoice,
    /// Speaks as a voice described in words.
    VoiceDesign,
}

/// One checkpoint, understood.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) variant: Variant,
    /// The reference package drops instructions for its small published size.
    pub(crate) takes_instructions: bool,
    pub(crate) text: TextIds,
    pub(crate) talker: TalkerConfig,
    pub(crate) predictor: PredictorConfig,
    pub(crate) generation: GenerationConfig,
    pub(crate) codec: CodecConfig,
    /// Present for [`Variant::Base`].
    pub(crate) encoders: Option<EncoderConfigs>,
}

/// Text ids with a meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextIds {
    pub(crate) im_start: u32,
    pub(crate) im_end: u32,
    pub(crate) pad: u32,
    pub(crate) begin: u32,
    pub(crate) end: u32,
}

/// The backbone.
#[derive(Clone, Debug)]
pub(crate) struct TalkerConfig {
    pub(crate) shape: LayerShape,
    pub(crate) layers: usize,
    pub(crate) vocab: usize,
    pub(crate) groups: usize,
    pub(crate) text_hidden: usize,
    pub(crate) text_vocab: usize,
    pub(crate) positions_max: usize,
    pub(crate) codec: CodecIds,
    /// Name in lower case and codec id, by name.
    pub(crate) languages: Vec<(String, u32)>,
    pub(crate) speakers: Vec<Speaker>,
}

/// Ids of the first codebook's vocabulary that are not codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodecIds {
    pub(crate) pad: u32,
    pub(crate) begin: u32,
    pub(crate) end: u32,
    pub(crate) think: u32,
    pub(crate) no_think: u32,
    pub(crate) think_begin: u32,
    pub(crate) think_end: u32,
}

/// A speaker trained into the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Speaker {
    pub(crate) name: String,
    pub(crate) id: u32,
    /// Language that replaces Chinese and automatic for this speaker.
    pub(crate) dialect: Option<String>,
}

/// The depth transformer.
#[derive(Clone, Debug)]
pub(crate) struct PredictorConfig {
    pub(crate) shape: LayerShape,
    pub(crate) layers: usize,
    /// Codes a codebook holds.
    pub(crate) vocab: usize,
}

/// Sampling as the checkpoint's authors set it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GenerationConfig {
    pub(crate) head: SamplingConfig,
    pub(crate) sub: SamplingConfig,
    pub(crate) repetition_penalty: f32,
    pub(crate) tokens_max: usize,
}

/// Sampling of one kind of head; temperature 0 where the checkpoint asks for greedy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplingConfig {
    pub(crate) temperature: f32,
    pub(crate) top_k: u32,
    pub(crate) top_p: f32,
}

/// The codec's decoder.
#[derive(Clone, Debug)]
pub(crate) struct CodecConfig {
    pub(crate) shape: LayerShape,
    pub(crate) layers: usize,
    pub(crate) window: usize,
    pub(crate) codebook: usize,
    pub(crate) codebook_dim: usize,
    pub(crate) latent: usize,
    pub(crate) upsampling_ratios: Vec<usize>,
    pub(crate) upsample_rates: Vec<usize>,
    pub(crate) decoder_dim: usize,
    pub(crate) sample_rate: usize,
    pub(crate) samples_per_frame: usize,
}

/// What turns a clip into features.
#[derive(Clone, Debug)]
pub(crate) struct EncoderConfigs {
    pub(crate) speaker: SpeakerConfig,
    pub(crate) codes: ReferenceCodesConfig,
}

impl Config {
    pub(crate) fn read(source: &ModelSource, config: &Document) -> Result<Self, ModelError> {
        let root = config.root();
        let codec_type = root.text("tokenizer_type")?;
        if codec_type != CODEC_TYPE {
            return Err(root.out_of_range("tokenizer_type", codec_type, CODEC_TYPE));
        }
        let variant = match root.text("tts_model_type")? {
            "base" => Variant::Base,
            "custom_voice" => Variant::CustomVoice,
            "voice_design" => Variant::VoiceDesign,
            other => {
                return Err(root.out_of_range("tts_model_type", other, "base, custom_voice or voice_design"));
            }
        };
        let talker_keys = root.object("talker_config")?;
        let talker = TalkerConfig::read(&talker_keys)?;
        let predictor = PredictorConfig::read(&talker_keys.object("code_predictor_config")?, &talker)?;
        let codec_file = Document::read(source, CODEC_CONFIG)?;
        let codec = CodecConfig::read(&codec_file.root(), &talker, &predictor)?;
        let encoders = if variant == Variant::Base {
            let keys = root.object("speaker_encoder_config")?;
            let speaker = SpeakerConfig::read(&keys)?;
            if speaker.enc_dim != talker.shape.hidden {
                let bound = format!("the talker's hidden_size, {}", talker.shape.hidden);
                return Err(keys.out_of_range("enc_dim", speaker.enc_dim, bound));
            }
            if speaker.sample_rate != codec.sample_rate {
                let bound = format!("the codec's output_sample_rate, {}", codec.sample_rate);
                return Err(keys.out_of_range("sample_rate", speaker.sample_rate, bound));
            }
            Some(EncoderConfigs { speaker, codes: ReferenceCodesConfig::read(&codec_file.root())? })
        } else {
            None
        };
        if variant == Variant::CustomVoice && talker.speakers.is_empty() {
            return Err(talker_keys.out_of_range(
                "spk_id",
                "empty",
                "at least one speaker of a custom_voice",
            ));
        }
        let small = root.text("tts_model_size")? == "0b6";
        let text = TextIds::read(&root, talker.text_vocab)?;
        let generation = GenerationConfig::read(&Document::read(source, GENERATION_CONFIG)?.root())?;
        let takes_instructions =
            variant == Variant::VoiceDesign || (variant == Variant::CustomVoice && !small);
        Ok(Self { variant, takes_instructions, text, talker, predictor, generation, codec, encoders })
    }
}

/// Holds the label of a checkpoint to its weights: only one that clones brings a speaker encoder.
pub(crate) fn check_variant(
    source: &ModelSource,
    file: &Document,
    variant: Variant,
) -> Result<(), ModelError> {
    let clones = source.weights("")?.names().any(|name| name.starts_with("speaker_encoder."));
    if variant == Variant::Base || !clones {
        return Ok(());
    }
    let (root, key) = (file.root(), "tts_model_type");
    Err(root.out_of_range(key, root.text(key)?, "base: the weights hold a speaker encoder"))
}

impl TextIds {
    fn read(root: &Object<'_>, vocab: usize) -> Result<Self, ModelError> {
        distinct(root, &TEXT_KEYS)?;
        let id = |key: &str| bounded_id(root, key, vocab);
        Ok(Self {
            im_start: id("im_start_token_id")?,
            im_end: id("im_end_token_id")?,
            pad: id("tts_pad_token_id")?,
            begin: id("tts_bos_token_id")?,
            end: id("tts_eos_token_id")?,
        })
    }
}

impl TalkerConfig {
    fn read(keys: &Object<'_>) -> Result<Self, ModelError> {
        refuse_sliding_window(keys)?;
        let vocab = keys.count("vocab_size")?;
        let id = |key: &str| bounded_id(keys, key, vocab);
        distinct(keys, &CODEC_KEYS)?;
        let codec = CodecIds {
            pad: id("codec_pad_id")?,
            begin: id("codec_bos_id")?,
            end: id("codec_eos_token_id")?,
            think: id("codec_think_id")?,
            no_think: id("codec_nothink_id")?,
            think_begin: id("codec_think_bos_id")?,
            think_end: id("codec_think_eos_id")?,
        };
        // Codes and ids share a vocabulary: an id among the codes would be drawn as sound.
        let codes = keys.object("code_predictor_config")?.count("vocab_size")?;
        if let Some(key) = CODEC_KEYS.iter().find(|key| keys.id(key).is_ok_and(|id| (id as usize) < codes)) {
            let bound = format!("at least code_predictor_config.vocab_size, {codes}: ids below are codes");
            return Err(keys.out_of_range(key, keys.id(key)?, bound));
        }
        let languages = keys.object("codec_language_id")?;
        let languages = languages
            .entries()
            .iter()
            .map(|(name, _)| Ok((name.to_lowercase(), bounded_id(&languages, name, vocab)?)))
            .collect::<Result<Vec<_>, ModelError>>()?;
        Ok(Self {
            shape: LayerShape::read(keys, true, false)?,
            layers: keys.count("num_hidden_layers")?,
            vocab,
            groups: keys.count("num_code_groups")?,
            text_hidden: keys.count("text_hidden_size")?,
            text_vocab: keys.count("text_vocab_size")?,
            positions_max: keys.count("max_position_embeddings")?,
            codec,
            speakers: speakers(keys, vocab, &languages)?,
            languages,
        })
    }

    /// Codec id of a language by its lower-case name.
    pub(crate) fn language(&self, name: &str) -> Option<u32> {
        self.languages.iter().find(|(known, _)| known == name).map(|(_, id)| *id)
    }
}

impl PredictorConfig {
    fn read(keys: &Object<'_>, talker: &TalkerConfig) -> Result<Self, ModelError> {
        refuse_sliding_window(keys)?;
        let groups = keys.count("num_code_groups")?;
        if groups != talker.groups || groups < 2 {
            let bound = format!("the talker's {}, at least 2", talker.groups);
            return Err(keys.out_of_range("num_code_groups", groups, bound));
        }
        let vocab = keys.count("vocab_size")?;
        if vocab >= talker.vocab {
            return Err(keys.out_of_range(
                "vocab_size",
                vocab,
                format!("below the talker's {}", talker.vocab),
            ));
        }
        Ok(Self {
            shape: LayerShape::read(keys, true, false)?,
            layers: keys.count("num_hidden_layers")?,
            vocab,
        })
    }
}

impl GenerationConfig {
    fn read(keys: &Object<'_>) -> Result<Self, ModelError> {
        let tokens_max = keys.count("max_new_tokens")?;
        if tokens_max < 2 {
            return Err(keys.out_of_range("max_new_tokens", tokens_max, "at least 2"));
        }
        Ok(Self {
            head: SamplingConfig::read(keys, "do_sample", ["temperature", "top_k", "top_p"])?,
            sub: SamplingConfig::read(
                keys,
                "subtalker_dosample",
                ["subtalker_temperature", "subtalker_top_k", "subtalker_top_p"],
            )?,
            repetition_penalty: keys.positive("repetition_penalty")?,
            tokens_max,
        })
    }
}

impl SamplingConfig {
    fn read(
        keys: &Object<'_>,
        switch: &str,
        [temperature, top_k, top_p]: [&str; 3],
    ) -> Result<Self, ModelError> {
        let drawn = keys.flag_or(switch, true)?;
        let share = keys.positive(top_p)?;
        if share > 1.0 {
            return Err(keys.out_of_range(top_p, share, "above 0 and at most 1"));
        }
        Ok(Self {
            temperature: if drawn { keys.positive(temperature)? } else { 0.0 },
            top_k: keys.id(top_k)?,
            top_p: share,
        })
    }
}

impl CodecConfig {
    fn read(
        root: &Object<'_>,
        talker: &TalkerConfig,
        predictor: &PredictorConfig,
    ) -> Result<Self, ModelError> {
        let keys = root.object("decoder_config")?;
        let quantizers = keys.count("num_quantizers")?;
        if quantizers != talker.groups {
            let bound = format!("the talker's num_code_groups, {}", talker.groups);
            return Err(keys.out_of_range("num_quantizers", quantizers, bound));
        }
        let semantic = keys.count("num_semantic_quantizers")?;
        if semantic != 1 {
            return Err(keys.out_of_range("num_semantic_quantizers", semantic, "1"));
        }
        let codebook = keys.count("codebook_size")?;
        if codebook < predictor.vocab {
            let bound = format!("at least the code predictor's vocab_size, {}", predictor.vocab);
            return Err(keys.out_of_range("codebook_size", codebook, bound));
        }
        let codebook_dim = keys.count("codebook_dim")?;
        if !codebook_dim.is_multiple_of(2) {
            return Err(keys.out_of_range("codebook_dim", codebook_dim, "even"));
        }
        let upsampling_ratios = keys.counts("upsampling_ratios")?;
        let upsample_rates = keys.counts("upsample_rates")?;
        let decoder_dim = keys.count("decoder_dim")?;
        let halvings = u32::try_from(upsample_rates.len()).unwrap_or(u32::MAX);
        if decoder_dim.checked_shr(halvings).is_none_or(|least| least == 0) {
            return Err(keys.out_of_range(
                "decoder_dim",
                decoder_dim,
                "large enough to be halved at each upsample rate",
            ));
        }
        let samples_per_frame = root.count("decode_upsample_rate")?;
        let made = upsampling_ratios
            .iter()
            .chain(&upsample_rates)
            .try_fold(1_usize, |product, rate| product.checked_mul(*rate));
        if made != Some(samples_per_frame) {
            let bound = "the product of upsampling_ratios and upsample_rates";
            return Err(root.out_of_range("decode_upsample_rate", samples_per_frame, bound));
        }
        Ok(Self {
            shape: LayerShape::read(&keys, false, true)?,
            layers: keys.count("num_hidden_layers")?,
            window: keys.count("sliding_window")?,
            codebook,
            codebook_dim,
            latent: keys.count("latent_dim")?,
            upsampling_ratios,
            upsample_rates,
            decoder_dim,
            sample_rate: root.sample_rate("output_sample_rate")?,
            samples_per_frame,
        })
    }
}

fn speakers(
    keys: &Object<'_>,
    vocab: usize,
    languages: &[(String, u32)],
) -> Result<Vec<Speaker>, ModelError> {
    let Some(ids) = keys.object_if_any("spk_id")? else { return Ok(Vec::new()) };
    let dialects = keys.object_if_any("spk_is_dialect")?;
    let mut speakers = Vec::new();
    for (name, _) in ids.entries() {
        let mut dialect = None;
        if let Some(dialects) = &dialects
            && !matches!(dialects.flag_or(name, false), Ok(false))
        {
            let language = dialects.text(name)?.to_lowercase();
            if !languages.iter().any(|(known, _)| *known == language) {
                return Err(dialects.out_of_range(name, language, "false or a name from codec_language_id"));
            }
            dialect = Some(language);
        }
        speakers.push(Speaker { name: name.to_lowercase(), id: bounded_id(&ids, name, vocab)?, dialect });
    }
    Ok(speakers)
}

fn bounded_id(keys: &Object<'_>, key: &str, vocab: usize) -> Result<u32, ModelError> {
    let id = keys.id(key)?;
    if (id as usize) < vocab {
        Ok(id)
    } else {
        Err(keys.out_of_range(key, id, format!("below the vocabulary's {vocab}")))
    }
}

/// Ids with a meaning of their own are no two the same.
fn distinct(keys: &Object<'_>, names: &[&str]) -> Result<(), ModelError> {
    for (at, name) in names.iter().enumerate() {
        let id = keys.id(name)?;
        for earlier in &names[..at] {
            if keys.id(earlier)? == id {
                return Err(keys.out_of_range(name, id, format!("another id than {earlier}")));
            }
        }
    }
    Ok(())
}

fn refuse_sliding_window(keys: &Object<'_>) -> Result<(), ModelError> {
    if keys.flag_or("use_sliding_window", false)? {
        return Err(keys.out_of_range(
            "use_sliding_window",
            true,
            "false: the backbone's pages keep every position",
        ));
    }
    Ok(())
}
