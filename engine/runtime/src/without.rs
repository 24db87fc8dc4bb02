//! Parts of the engine that can be left out, to measure what each is worth. Nobody serves so.

use std::str::FromStr;

use device::DeviceError;
use sched::PrefillPolicy;

/// What to go without: several names between commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// `partition`: every lane has all SMs of a GPU.
    pub partition: bool,
    /// `urgent`: chunks that are first or nearly due stand in the background lane's queue.
    pub urgent_lane: bool,
    /// `async`: one launch at a time.
    pub asynchrony: bool,
    /// `deadlines`: prompts go before decode steps, whatever waits.
    pub deadlines: bool,
    /// `riders`: prompts go by themselves, and no step rides along.
    pub riders: bool,
    /// `ahead`: the next step is launched when the last one's result has been read.
    pub ahead: bool,
    /// `device`: launches pass a card's time and compute nothing; what is left is the host.
    pub device: bool,
}

/// A part that cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be left out; name some of partition, urgent, async, deadlines, riders, ahead, device")]
pub struct WithoutError(String);

impl FromStr for Without {
    type Err = WithoutError;

    fn from_str(text: &str) -> Result<Self, WithoutError> {
        let mut without = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "partition" => without.partition = true,
                "urgent" => without.urgent_lane = true,
                "async" => without.asynchrony = true,
                "deadlines" => without.deadlines = true,
                "riders" => without.riders = true,
                "ahead" => without.ahead = true,
                "device" => without.device = true,
                other => return Err(WithoutError(other.to_owned())),
            }
        }
        Ok(without)
    }
}

impl Without {
    pub(crate) const fn prefill_policy(self) -> PrefillPolicy {
        if self.deadlines { PrefillPolicy::PrefillFirst } else { PrefillPolicy::Automatic }
    }

    /// # Errors
    /// The lanes of a CPU are threads on cores of their own: there is no unsplit form.
    pub(crate) fn check_on_cpu(self) -> Result<(), DeviceError> {
        if !self.partition {
            return Ok(());
        }
        let what = "a CPU's lanes have cores of their own; only a GPU can go without partition".to_owned();
        Err(DeviceError::BadSetting { setting: "engine.without", what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_between_commas_and_unknown_ones_refused() {
        let both: Without = "urgent, async".parse().expect("known");
        assert_eq!(both, Without { urgent_lane: true, asynchrony: true, ..Without::default() });
        assert_eq!("".parse(), Ok(Without::default()));
        assert!(
            "urgent,lanes".parse::<Without>().is_err_and(|error| error.to_string().contains("deadlines"))
        );
    }
}
