//! The client's audio: turns found in it, what they interrupt, and the silence after which the server is
//! told that nobody spoke.

use contract::{Span, Tick};
use serde_json::json;

use super::Realtime;
use super::response::{Cause, Outcome, Response};
use super::turns::{Turn, TurnSettings, Turns};
use super::words::{Mistake, Words};
use crate::dialect::Step;
use crate::wire::CLOCK_HZ;

/// What is known of the user's turns.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Made when audio comes while turns are to be detected.
    turns: Option<Turns>,
    effort: Effort,
    /// The item that the turn under way will be.
    pub(super) item: Option<String>,
    /// When the user has been silent for too long.
    pub(super) idle_at: Option<Tick>,
}

/// How much is listened to: listening costs a thousandth of the sound's time, and sound may come a thousand times
/// faster than it plays.
#[derive(Debug, Default)]
struct Effort {
    /// When everything that was listened to has played, at [`FASTER`] times its speed.
    played: Tick,
}

/// What may come at once, and how much faster than it plays the rest may come.
const AT_ONCE: Span = Span::from_millis(120_000);
const FASTER: i64 = 4;

impl Effort {
    /// Of so many samples that came, how many of the newest are listened to.
    fn spend(&mut self, now: Tick, samples: usize, rate_hz: u32) -> usize {
        let begun = self.played.max(now);
        let left = AT_ONCE - begun.since(now).times(FASTER);
        let wanted = Span::of_samples(samples as u64, rate_hz);
        let listened = if wanted > left { left } else { wanted };
        self.played = begun + Span::from_micros(listened.as_micros().max(0) / FASTER);
        if wanted <= left {
            return samples;
        }
        let left = u64::try_from(left.as_micros()).unwrap_or(0) * u64::from(rate_hz) / 1_000_000;
        usize::try_from(left).map_or(samples, |left| left.min(samples))
    }
}

impl Hearing {
    /// What was appended is committed or cleared.
    pub(super) fn settle(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.settle();
        }
    }
}

impl Realtime {
    pub(super) fn append(
        &mut self,
        now: Tick,
        audio: Option<&str>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Mistake> {
        let Some(audio) = audio else {
            return Err(Mistake::new("missing_required_parameter", "audio must be base64").at("audio"));
        };
        let format = self.settings.input;
        let samples = self.input.append(audio, format)?;
        let Some(settings) = self.settings.turns.as_ref().map(TurnSettings::read) else { return Ok(()) };
        let mut heard = Vec::new();
        let turns = self.hearing.turns.get_or_insert_with(Turns::new);
        let listened = self.hearing.effort.spend(now, samples.len(), format.rate_hz());
        let passed = turns.pass(samples.len() - listened, format.rate_hz());
        turns.hear(&samples[passed.min(samples.len())..], format.rate_hz(), &settings, &mut heard);
        for turn in heard {
            match turn {
                Turn::Started { at_ms } => self.started(at_ms, settings.interrupts, steps),
                Turn::Stopped { at_ms } => self.stopped(at_ms, steps),
            }
        }
        Ok(())
    }

    fn started(&mut self, at_ms: u64, interrupts: bool, steps: &mut Vec<Step>) {
        self.hearing.idle_at = None;
        let id = self.ids.item();
        let event = json!({ "audio_start_ms": at_ms, "item_id": id });
        Words { ids: &mut self.ids, steps }.say("input_audio_buffer.speech_started", event);
        self.hearing.item = Some(id);
        let speaking = self.active.iter().find(|(_, response)| response.conversation.is_some());
        if let Some(context) = speaking.map(|(context, _)| *context).filter(|_| interrupts) {
            self.stop(context, Cause::Turn, None, steps);
        }
    }

    fn stopped(&mut self, at_ms: u64, steps: &mut Vec<Step>) {
        let Some(id) = self.hearing.item.take() else { return };
        let event = json!({ "audio_end_ms": at_ms, "item_id": id });
        Words { ids: &mut self.ids, steps }.say("input_audio_buffer.speech_stopped", event);
        self.input.take();
        // `create_response` finds nothing to speak in sound: these models speak text.
        self.committed(&id, steps);
    }

    /// Makes an item of what was committed.
    pub(super) fn committed(&mut self, id: &str, steps: &mut Vec<Step>) {
        let item = json!({
            "id": id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user",
            "content": [{ "type": "input_audio", "transcript": null }],
        });
        let before = self.conversation.append(&item);
        let mut words = Words { ids: &mut self.ids, steps };
        words.say("input_audio_buffer.committed", json!({ "previous_item_id": before, "item_id": id }));
        for kind in ["conversation.item.added", "conversation.item.done"] {
            words.say(kind, json!({ "previous_item_id": before, "item": item }));
        }
    }

    /// A response has ended: the user's silence counts from the end of its sound.
    pub(super) fn await_user(&mut self, now: Tick, response: &Response, outcome: &Outcome) {
        let idle = self.settings.turns.as_ref().and_then(|turns| TurnSettings::read(turns).idle_ms);
        let Some(idle_ms) = idle.filter(|_| self.hearing.item.is_none()) else { return };
        let sound = match outcome {
            Outcome::Cancelled(_) => Span::ZERO,
            _ => Span::of_samples(response.sent, CLOCK_HZ),
        };
        let silent_from = response.began.map_or(now, |began| (began + sound).max(now));
        let idle = Span::from_millis(i64::try_from(idle_ms.min(3_600_000)).unwrap_or(0));
        self.hearing.idle_at = Some(silent_from + idle);
    }

    /// Nobody has spoken since the last response.
    pub(super) fn idle(&mut self, now: Tick, steps: &mut Vec<Step>) {
        if self.hearing.idle_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let id = self.ids.item();
        let turns = self.hearing.turns.as_ref();
        let (start, end) = turns.map_or((0, 0), |turns| (turns.end_ms(), turns.position_ms()));
        let event = json!({ "audio_start_ms": start, "audio_end_ms": end, "item_id": id });
        Words { ids: &mut self.ids, steps }.say("input_audio_buffer.timeout_triggered", event);
        self.input.take();
        self.committed(&id, steps);
    }
}
