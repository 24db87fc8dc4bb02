//! No content of a checkpoint's JSON files may cause a panic: it opens, or is refused by name.

use std::path::{Path, PathBuf};

use models::{Model, ModelError, ModelSource};
use serde_json::{Value, json};

const FILES: [&str; 4] =
    ["config.json", "generation_config.json", "speech_tokenizer/config.json", "voices/voices.json"];

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/models/tiny")
}

fn read(name: &str) -> &'static [u8] {
    let path = tiny().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).leak()
}

/// The embedded checkpoint with one file replaced. Test files live as long as the process.
struct Checkpoint(Vec<(&'static str, &'static [u8])>);

impl Checkpoint {
    fn new() -> Self {
        let names = [
            "tokenizer.json",
            "model.safetensors",
            "speech_tokenizer/model.safetensors",
            "voices/clara.wav",
            "voices/june.wav",
            "voices/marcus.wav",
            "voices/nora.wav",
        ];
        Self(names.into_iter().chain(FILES).map(|name| (name, read(name))).collect())
    }

    fn open_with(&self, file: &str, content: &Value) -> Result<Box<dyn Model>, ModelError> {
        let mut files = self.0.clone();
        let content: &'static [u8] = content.to_string().into_bytes().leak();
        files.iter_mut().filter(|(name, _)| *name == file).for_each(|(_, bytes)| *bytes = content);
        models::open(ModelSource::Embedded(files.leak()), "hostile")
    }
}

/// Pointers (RFC 6901) to every value below `value`.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    for (key, child) in children {
        let pointer = format!("{at}/{key}");
        pointers(child, &pointer, found);
        found.push(pointer);
    }
}

#[test]
fn any_one_value_replaced_opens_or_is_refused_and_never_panics() {
    let checkpoint = Checkpoint::new();
    let (mut opened, mut refused) = (0, 0);
    for file in FILES {
        let whole: Value = serde_json::from_slice(read(file)).expect("JSON");
        let mut places = Vec::new();
        pointers(&whole, "", &mut places);
        for place in places {
            let replacements = [
                json!(null),
                json!(-1),
                json!(0),
                json!(u64::MAX),
                json!(2_147_483_647),
                json!("x"),
                json!({}),
            ];
            for replacement in replacements {
                let mut broken = whole.clone();
                *broken.pointer_mut(&place).expect("a pointer into the file") = replacement;
                match checkpoint.open_with(file, &broken) {
                    Ok(_) => opened += 1,
                    Err(error) => {
                        refused += 1;
                        assert!(!error.to_string().is_empty());
                    }
                }
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(
        opened > 100 && refused > 500,
        "{opened} opened, {refused} refused: the replacements miss their mark"
    );
}

#[test]
fn a_number_that_makes_no_sense_is_refused_by_its_key() {
    let checkpoint = Checkpoint::new();
    let codec = "speech_tokenizer/config.json";
    let (talker, predictor) = ("/talker_config", "/talker_config/code_predictor_config");
    let decoder = "/decoder_config";
    let mut cases: Vec<(&str, String, Value)> = Vec::new();
    for (file, place) in [("config.json", talker), ("config.json", predictor), (codec, decoder)] {
        for value in [json!(0), json!(-1e4), json!(1.0), json!(1e300)] {
            cases.push((file, format!("{place}/rope_theta"), value));
        }
        for value in [json!(0), json!(-1e-6), json!(1e-60), json!(1), json!(1e300)] {
            cases.push((file, format!("{place}/rms_norm_eps"), value));
        }
    }
    let others = [
        ("config.json", "/speaker_encoder_config/sample_rate", vec![json!(0), json!(7), json!(16_000)]),
        ("config.json", "/talker_config/codec_eos_token_id", vec![json!(5), json!(1_024), json!(1 << 20)]),
        ("config.json", "/talker_config/codec_pad_id", vec![json!(-1), json!(1_023)]),
        ("config.json", "/tts_eos_token_id", vec![json!(2_036), json!(1 << 20)]),
        ("config.json", "/tts_model_type", vec![json!("voice_design"), json!("custom_voice"), json!("x")]),
        (codec, "/encoder_config/rope_theta", vec![json!(0), json!(-1), json!(1)]),
        (codec, "/encoder_config/norm_eps", vec![json!(0), json!(-1e-5), json!(7)]),
        (codec, "/encoder_config/frame_rate", vec![json!(0), json!(-12.5), json!(1e9)]),
        (codec, "/encoder_config/sampling_rate", vec![json!(0), json!(1), json!(1 << 30)]),
        (codec, "/output_sample_rate", vec![json!(0), json!(1), json!(1 << 30), json!(48_000)]),
        (codec, "/decode_upsample_rate", vec![json!(0), json!(1_919)]),
        ("voices/voices.json", "/sample_rate", vec![json!(0), json!(-1), json!(16_000)]),
        ("generation_config.json", "/temperature", vec![json!(0), json!(-1), json!(1e300)]),
        ("generation_config.json", "/subtalker_temperature", vec![json!(0), json!(-0.1)]),
        ("generation_config.json", "/top_p", vec![json!(0), json!(1.01), json!(-1)]),
        ("generation_config.json", "/top_k", vec![json!(-1), json!(0.5)]),
        ("generation_config.json", "/repetition_penalty", vec![json!(0), json!(-1)]),
        ("generation_config.json", "/max_new_tokens", vec![json!(0), json!(1)]),
    ];
    for (file, place, values) in others {
        cases.extend(values.into_iter().map(|value| (file, place.to_owned(), value)));
    }
    for (file, place, value) in cases {
        let mut broken: Value = serde_json::from_slice(read(file)).expect("JSON");
        *broken.pointer_mut(&place).unwrap_or_else(|| panic!("{place} in {file}")) = value.clone();
        let error = checkpoint.open_with(file, &broken).err();
        let text = error.unwrap_or_else(|| panic!("{place} = {value} opens")).to_string();
        let (_, key) = place.rsplit_once('/').expect("a pointer");
        // Where two keys contradict each other, either may be named.
        let related = match key {
            "output_sample_rate" => "sample_rate",
            "tts_model_type" => "spk_id",
            key => key,
        };
        assert!(text.contains(key) || text.contains(related), "{place} = {value}: {text}");
        assert!(!text.contains("Some(") && !text.contains("None"), "{text}");
    }
}

#[test]
fn not_a_number_is_no_number_in_a_configuration() {
    let checkpoint = Checkpoint::new();
    let text = String::from_utf8(read("config.json").to_vec()).expect("UTF-8");
    for word in ["NaN", "Infinity", "-Infinity", "1e999"] {
        let broken = text.replacen("\"rope_theta\": 10000", &format!("\"rope_theta\": {word}"), 1);
        assert_ne!(broken, text);
        let mut files = checkpoint.0.clone();
        let content: &'static [u8] = broken.into_bytes().leak();
        files.iter_mut().filter(|(name, _)| *name == "config.json").for_each(|(_, bytes)| *bytes = content);
        let error = models::open(ModelSource::Embedded(files.leak()), "hostile").err().expect("refused");
        assert!(error.to_string().contains("config.json"), "{word}: {error}");
    }
}

#[test]
fn a_pipe_in_the_place_of_any_file_is_refused_and_never_waited_for() {
    let folder = std::env::temp_dir().join(format!("voxlane-pipes-{}", std::process::id()));
    let copy = |name: &str| {
        let to = folder.join(name);
        std::fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        std::os::unix::fs::symlink(tiny().canonicalize().expect("it exists").join(name), to).expect("a link");
    };
    let names: Vec<&str> = Checkpoint::new().0.iter().map(|(name, _)| *name).collect();
    for pipe in &names {
        drop(std::fs::remove_dir_all(&folder));
        names.iter().filter(|name| *name != pipe).for_each(|name| copy(name));
        let path = folder.join(pipe);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        let error = models::open(ModelSource::Dir(folder.clone()), "pipes").err();
        let text = error.unwrap_or_else(|| panic!("{pipe}: opened")).to_string();
        assert!(text.contains("is not a regular file") && text.contains(pipe), "{pipe}: {text}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
