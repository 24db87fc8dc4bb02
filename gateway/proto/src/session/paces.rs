//! How fast the voices of a session speak, from one context to the next.

use std::collections::BTreeMap;

use crate::alignment::Pace;
use crate::catalog::Target;

/// Voices whose pace is kept; more make room by being forgotten, the first by name first.
const VOICES_MAX: usize = 64;

/// Paces by model and voice.
#[derive(Debug, Default)]
pub(super) struct Paces(BTreeMap<(String, String), Pace>);

impl Paces {
    /// What is known of the voice of `target`.
    pub(super) fn of(&self, target: &Target) -> Pace {
        name(target).and_then(|name| self.0.get(&name)).copied().unwrap_or_default()
    }

    /// `pace` was measured of the voice of `target`.
    pub(super) fn keep(&mut self, target: &Target, pace: Pace) {
        let Some(name) = name(target).filter(|_| pace != Pace::default()) else { return };
        self.0.insert(name, pace);
        if self.0.len() > VOICES_MAX {
            self.0.pop_first();
        }
    }
}

/// A clip that came over the socket has no name to be known by.
fn name(target: &Target) -> Option<(String, String)> {
    Some((target.model.clone(), target.voice.clone()?))
}
