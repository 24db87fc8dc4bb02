//! The binary `voxlane`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // One library for all cryptography. Whoever came first keeps it: then it is the same one.
    let _first = rustls::crypto::aws_lc_rs::default_provider().install_default();
    gateway::cli::main(embedded::MODEL)
}

/// The checkpoint inside this binary. It lives here and not in the library, so that tests and tools do
/// not carry it.
#[cfg(feature = "embedded-model")]
mod embedded {
    macro_rules! files {
        ($($path:literal),* $(,)?) => {
            &[$(($path, include_bytes!(concat!("../../config/models/tiny/", $path)).as_slice())),*]
        };
    }

    pub(crate) const MODEL: Option<gateway::engine::Embedded> = Some(files![
        "MODEL_CARD.md",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "preprocessor_config.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
        "speech_tokenizer/preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "voices/clara.wav",
        "voices/june.wav",
        "voices/marcus.wav",
        "voices/nora.wav",
        "voices/voices.json",
    ]);
}

#[cfg(not(feature = "embedded-model"))]
mod embedded {
    pub(crate) const MODEL: Option<gateway::engine::Embedded> = None;
}
