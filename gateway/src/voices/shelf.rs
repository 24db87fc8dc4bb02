//! Kept voices as a session sees them.

use std::sync::Arc;

use contract::{EngineError, EngineInfo};
use proto::catalog::{Ask, Voices};

use super::record::Viewer;
use super::resolve::named;
use super::store::{Store, StoreError};

/// The store through one principal's eyes.
pub(crate) struct Shelf {
    pub(crate) store: Arc<Store>,
    pub(crate) viewer: Viewer,
}

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shelf").field("viewer", &self.viewer).finish_non_exhaustive()
    }
}

impl Voices for Shelf {
    fn choose(&self, info: &EngineInfo, ask: &mut Ask) -> Result<(), EngineError> {
        named(&self.store, &self.viewer, info, ask).map_err(|error| match error {
            StoreError::Damaged => EngineError::BadReference { what: error.to_string() },
            error => {
                tracing::error!(%error, "the folder of voices");
                EngineError::Unavailable { reason: "the clip of this voice cannot be read now".to_owned() }
            }
        })
    }
}
