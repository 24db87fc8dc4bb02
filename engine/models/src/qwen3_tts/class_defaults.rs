//! Values of config keys that checkpoints may leave out: data, as the reference's classes hold them.

use std::sync::LazyLock;

use serde_json::{Map, Value};

static FILE: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    // The file is part of this crate, and the test below reads it.
    serde_json::from_str(include_str!("class_defaults.json")).expect("class_defaults.json is an object")
});
static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// Defaults of one configuration class.
pub(super) fn of(class: &str) -> &'static Map<String, Value> {
    FILE.get(class).and_then(Value::as_object).unwrap_or(&NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_defaults() {
        for class in ["speaker_encoder_config", "codec_config", "encoder_config"] {
            assert!(!of(class).is_empty(), "{class}");
        }
    }
}
