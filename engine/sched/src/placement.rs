//! Several devices: one scheduler each, chosen by predicted first audio.

use contract::{DeviceId, Span, Tick};

use crate::Sched;

/// Predictions this close sound alike; then the emptier device is the better one.
const ALIKE: Span = Span::from_millis(10);
/// A context opened this recently is taken to bring its first text soon.
const AWAITED: Span = Span::from_millis(1_000);

/// What a scheduler foresees for a context that arrives now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Predicted first audio; [`Span::MAX`] when no slot can be foreseen.
    pub first_audio: Span,
    /// By how much a context that comes before it delays it.
    pub each_more: Span,
    /// Contexts that were opened just now and have no text yet, which the prediction leaves out.
    pub awaited: u32,
    /// Contexts that are open.
    pub open: u32,
}

impl Sched {
    /// What a context that arrives at `now` with a prompt of this many positions would wait for.
    #[must_use]
    pub fn forecast(&self, now: Tick, prompt_tokens: u32) -> Forecast {
        let recent = |arrival: Tick| now.since(arrival) < AWAITED;
        let awaited =
            self.contexts.values().filter(|context| context.first_text.is_none() && recent(context.arrival));
        Forecast {
            first_audio: self.predict_first_audio(now, prompt_tokens),
            each_more: self.pack_delay(self.pace.contexts, 1, prompt_tokens),
            awaited: awaited.count() as u32,
            open: self.contexts.len() as u32,
        }
    }
}

impl Forecast {
    /// Predicted first audio behind those that are on their way.
    #[must_use]
    pub fn expected(&self) -> Span {
        self.first_audio + self.each_more.times(i64::from(self.awaited))
    }
}

/// The device on which a context that arrives now would be heard first, and when. Predictions that sound
/// alike go to the device with fewer open contexts, then to the lower id. `None` without devices.
pub fn place(devices: impl IntoIterator<Item = (DeviceId, Forecast)>) -> Option<(DeviceId, Span)> {
    let alike = |span: Span| span.as_micros() / ALIKE.as_micros();
    devices
        .into_iter()
        .map(|(device, forecast)| (alike(forecast.expected()), forecast.open, device, forecast.expected()))
        .min()
        .map(|(_, _, device, expected)| (device, expected))
}
