//! How each tenant says single words: a folder of TOML files, `TENANT.toml` for a tenant and `default.toml`
//! for everybody, each a table of `word = "respelling"`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use ear::Lexicon;

use crate::config::{ConfigError, VoicesConfig};

/// Longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Files of a folder.
const FILES_MAX: usize = 10_000;
/// The file that counts for every tenant; a tenant's own goes before it.
const EVERYBODY: &str = "default";
const KEY: &str = "voices.lexicons";

/// The lexicons in force. A reload replaces them; what speaks keeps the one it began with.
#[derive(Debug, Default)]
pub(crate) struct Lexicons {
    current: RwLock<Set>,
}

/// All lexicons of a folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    everybody: Arc<Lexicon>,
    tenants: BTreeMap<String, Arc<Lexicon>>,
}

impl Lexicons {
    pub(crate) fn of(&self, tenant: &str) -> Arc<Lexicon> {
        // A set is replaced whole, so a poisoned lock holds a whole one.
        let set = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(set.tenants.get(tenant).unwrap_or(&set.everybody))
    }

    pub(crate) fn replace(&self, set: Set) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = set;
    }
}

impl Set {
    /// Reads the configured folder; without one, nothing is respelled.
    ///
    /// # Errors
    /// [`ConfigError::Unusable`] that names the file and what is wrong in it.
    pub(crate) fn load(config: &VoicesConfig) -> Result<Self, ConfigError> {
        let Some(folder) = &config.lexicons else { return Ok(Self::default()) };
        let unusable = |path: &Path, what: &dyn std::fmt::Display| ConfigError::Unusable {
            key: KEY,
            what: format!("{}: {what}", path.display()),
        };
        let mut entries: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        for file in std::fs::read_dir(folder).map_err(|error| unusable(folder, &error))? {
            let path = file.map_err(|error| unusable(folder, &error))?.path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let Some(tenant) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let text =
                crate::input::read_text(&path, FILE_BYTES_MAX).map_err(|error| unusable(&path, &error))?;
            let words: BTreeMap<String, String> =
                toml::from_str(&text).map_err(|error| unusable(&path, &error.message()))?;
            // By itself, so that an error names its file.
            Lexicon::new(words.clone()).map_err(|error| unusable(&path, &error))?;
            entries.insert(tenant.to_owned(), words.into_iter().collect());
            if entries.len() > FILES_MAX {
                return Err(unusable(folder, &format!("holds more than {FILES_MAX} lexicons")));
            }
        }
        let shared = entries.remove(EVERYBODY).unwrap_or_default();
        let joined = |own: Vec<(String, String)>| {
            Lexicon::new(shared.iter().cloned().chain(own))
                .map(Arc::new)
                .map_err(|error| unusable(folder, &error))
        };
        let tenants = entries.into_iter().map(|(tenant, own)| Ok((tenant, joined(own)?)));
        Ok(Self { tenants: tenants.collect::<Result<_, ConfigError>>()?, everybody: joined(Vec::new())? })
    }
}
