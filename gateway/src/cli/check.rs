//! `voxlane check F`.

use std::path::Path;

use super::{CommandError, layers};
use crate::listen::ListenError;

/// Prints every key as TOML, with its origin as a comment, and the hash of the whole.
pub(super) fn run(file: &Path) -> Result<(), CommandError> {
    let resolved = layers(Some(file))?.resolve()?;
    // The same reading as `serve`'s, and the same guard at the door: what it refuses is refused here.
    let config = resolved.config()?;
    crate::server::guard(&config).map_err(|error| match error {
        ListenError::Refused(error) => CommandError::Config(error),
        other => CommandError::Failed(other.to_string()),
    })?;
    crate::lexicons::Set::load(&config.voices).map_err(CommandError::Config)?;
    let mut section = "";
    for (name, value, source) in resolved.lines() {
        let (of, key) = name.split_once('.').unwrap_or(("", name));
        if of != section {
            say!("{}[{of}]", if section.is_empty() { "" } else { "\n" });
            section = of;
        }
        say!("{:<44}# {source}", format!("{key} = {value}"));
    }
    for name in &resolved.unknown_variables {
        say!("\n# environment {name} names no key and is not used");
    }
    say!("\n# hash {}", resolved.hash());
    Ok(())
}
