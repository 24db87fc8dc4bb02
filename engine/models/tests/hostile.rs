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
