//! Several devices: one scheduler each, chosen by predicted first audio.

use contract::{DeviceId, Span, Tick};

use crate::Sched;

/// The device on which a context that arrives now would be heard first, and when. Equal predictions
/// go to the device with fewer running contexts, then to the lower id. `None` without devices.
pub fn place<'a>(
    now: Tick,
    prompt_tokens: u32,
    devices: impl IntoIterator<Item = (DeviceId, &'a Sched)>,
) -> Option<(DeviceId, Span)> {
    devices
        .into_iter()
        .map(|(device, sched)| (sched.predict_first_audio(now, prompt_tokens), sched.slots.used(), device))
        .min()
        .map(|(predicted, _, device)| (device, predicted))
}
