//! How fast a listener hears what a model makes.

use codecs::stretch::{SPEED_MAX, SPEED_MIN};
use serde::Serialize;

/// How much faster than the model speaks, at the same pitch: 2 is twice as fast. Always within the bounds of
/// the stretch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed(f64);

// It is never a NaN.
impl Eq for Speed {}

impl Default for Speed {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Speed {
    /// `None` out of bounds.
    #[must_use]
    pub fn new(speed: f64) -> Option<Self> {
        (SPEED_MIN..=SPEED_MAX).contains(&speed).then_some(Self(speed))
    }

    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The model's own.
    #[must_use]
    pub fn is_own(&self) -> bool {
        *self == Self::default()
    }

    /// Hertz at which samples that were made at `rate` sound.
    #[must_use]
    pub fn heard_rate(self, rate: u32) -> u32 {
        (f64::from(rate) * self.0).round() as u32
    }
}
