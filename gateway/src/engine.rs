//! The one place where an engine is opened: the scripted one, or the runtime's.

use std::path::Path;
use std::sync::Arc;

use contract::EngineHandle;
use scripted::{Script, Scripted};

use crate::clock::Clock;
use crate::config::{EngineConfig, EngineKind};

/// A model inside the binary: every file's path below the checkpoint's folder, and its bytes.
pub type Embedded = &'static [(&'static str, &'static [u8])];

/// Longest script read.
const SCRIPT_BYTES_MAX: u64 = 1 << 20;

/// Opens the configured engine. `features` is where a native one keeps what it made of clips. Blocks while weights
/// are read; the engine may still be warming up when
/// this returns ([`EngineHandle::health`]).
///
/// # Errors
/// Why the model cannot be opened, and what would help.
pub fn open(
    config: &EngineConfig,
    features: Option<&Path>,
    embedded: Option<Embedded>,
    clock: Clock,
) -> Result<Arc<dyn EngineHandle>, String> {
    match &config.kind {
        EngineKind::Scripted(file) => open_script(file.as_deref(), clock),
        EngineKind::Native => crate::native::open(config, features, embedded, clock),
    }
}

fn open_script(file: Option<&Path>, clock: Clock) -> Result<Arc<dyn EngineHandle>, String> {
    let script = match file {
        Some(file) => {
            let text = crate::input::read_text(file, SCRIPT_BYTES_MAX)
                .map_err(|error| format!("cannot read script {}: {error}", file.display()))?;
            Script::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?
        }
        None => Script::default(),
    };
    let engine = Scripted::start(script, clock.origin()).map_err(|error| error.to_string())?;
    Ok(engine)
}
