//! `GET /v1/voices`: the same voices as everywhere, in the service's words.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::catalog::{Listing, VoiceEntry};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Voices {
    pub voices: Vec<Voice>,
}

/// One voice. `category` is `cloned` for clips and `premade` for a model's own speakers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Voice {
    pub voice_id: String,
    pub name: String,
    pub category: &'static str,
    pub labels: BTreeMap<&'static str, String>,
    pub created_at_unix: u64,
}

/// The service's list of `listing`.
#[must_use]
pub fn voices(listing: Listing<VoiceEntry>) -> Voices {
    let voices = listing.data.into_iter().map(|entry| Voice {
        voice_id: entry.id,
        name: entry.name,
        category: if entry.kind == "clip" { "cloned" } else { "premade" },
        labels: entry.language.map(|language| ("language", language)).into_iter().collect(),
        created_at_unix: entry.created_at,
    });
    Voices { voices: voices.collect() }
}
