//! How fast voices speak, known from one context to the next.

use std::collections::BTreeMap;

use crate::alignment::Pace;
use crate::catalog::Target;

/// Voices whose pace is kept; more make room by being forgotten, the first by name first.
const VOICES_MAX: usize = 64;

/// Paces by model and voice.
#[derive(Clone, Debug, Default)]
pub struct Paces(BTreeMap<(String, String), Pace>);

impl Paces {
    /// What is known of the voice of `target`.
    #[must_use]
    pub fn of(&self, target: &Target) -> Pace {
        name(target).and_then(|name| self.0.get(&name)).copied().unwrap_or_default()
    }

    /// `pace` was measured of the voice of `target`.
    pub fn keep(&mut self, target: &Target, pace: Pace) {
        if let Some(name) = name(target).filter(|_| pace != Pace::default()) {
            self.insert(name, pace);
        }
    }

    /// Takes over what somebody else has measured.
    pub fn absorb(&mut self, other: &Self) {
        for (name, pace) in &other.0 {
            self.insert(name.clone(), *pace);
        }
    }

    fn insert(&mut self, name: (String, String), pace: Pace) {
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
