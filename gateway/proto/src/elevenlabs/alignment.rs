//! Times of characters as the service tells them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::alignment::TimedCharacter;
use crate::wire::CLOCK_HZ;

/// Times in the sockets' words: milliseconds, in whole numbers. The three lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ElevenLabsAlignment)]
pub struct Alignment {
    pub chars: Vec<String>,
    pub char_start_times_ms: Vec<u64>,
    pub char_durations_ms: Vec<u64>,
}

/// Times in the REST endpoints' words: seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Seconds {
    characters: Vec<String>,
    character_start_times_seconds: Vec<f64>,
    character_end_times_seconds: Vec<f64>,
}

impl Alignment {
    /// `None` where there are no characters. Positions before `origin`, in 48 kHz samples, become 0.
    #[must_use]
    pub fn new(times: &[TimedCharacter], origin: u64) -> Option<Self> {
        let mut alignment = Self::default();
        for timed in times {
            let (start, end) = (millis(timed.start, origin), millis(timed.end, origin));
            alignment.chars.push(timed.character.to_string());
            alignment.char_start_times_ms.push(start);
            alignment.char_durations_ms.push(end - start);
        }
        (!times.is_empty()).then_some(alignment)
    }
}

impl Seconds {
    pub(super) fn new(times: &[TimedCharacter]) -> Option<Self> {
        let mut seconds = Self::default();
        seconds.extend(times);
        (!times.is_empty()).then_some(seconds)
    }

    pub(super) fn extend(&mut self, times: &[TimedCharacter]) {
        for timed in times {
            self.characters.push(timed.character.to_string());
            self.character_start_times_seconds.push(millis(timed.start, 0) as f64 / 1_000.0);
            self.character_end_times_seconds.push(millis(timed.end, 0) as f64 / 1_000.0);
        }
    }
}

fn millis(position: u64, origin: u64) -> u64 {
    position.saturating_sub(origin) * 1_000 / u64::from(CLOCK_HZ)
}
