//! Virtual time: the real scheduler and playback clock, a device at a profile's costs, and listeners.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::{ContextId, FinishReason, Partition, Playback, Span, Stage, Tick};
use sched::{
    ChunkResult, Command, Completion, Decision, FrameOutcome, FrameResult, LaunchResult, Profile, Sched,
    SchedConfig, SchedOutput,
};

use super::Variant;
use super::agenda::{Agenda, Kind};
use super::device::{Device, Landed};
use super::profile::{ProfileError, ProfileFile};
use super::speaker::{Speaker, Speakers};
use crate::arrivals::Arrival;
use crate::outcome::{Ending, Outcome};
use crate::workload::Workload;

/// When the first arrival may come: late enough that positions before it can be told.
const BEGIN: Tick = Tick::START;
/// From the generator to the scheduler.
const PATH: Span = Span::from_micros(1_000);
/// Requests are awaited this long after the last arrival, beyond the longest utterance.
const PATIENCE: Span = Span::from_millis(20_000);
/// Gains of one launch that are counted by name.
pub(crate) type Reasons = BTreeMap<&'static str, u64>;

pub(crate) struct World<'a> {
    profile: &'a ProfileFile,
    costs: Profile,
    variant: &'a Variant,
    workload: &'a Workload,
    schedule: &'a [Arrival],
    sched: Sched,
    device: Device,
    now: Tick,
    /// The scheduler was told something since it was last drained.
    touched: bool,
    /// When it next wants to be asked.
    wake: Tick,
    agenda: Agenda,
    speakers: Speakers,
    outcomes: Vec<Outcome>,
    pub(crate) reasons: Reasons,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        profile: &'a ProfileFile,
        variant: &'a Variant,
        config: SchedConfig,
        workload: &'a Workload,
        schedule: &'a [Arrival],
        seed: u64,
    ) -> Result<Self, ProfileError> {
        let costs = profile.costs()?;
        let seen = variant.seen(profile)?;
        let invalid = |source| ProfileError::Invalid { name: profile.name.clone(), source };
        let sched = Sched::new(config, seen).map_err(invalid)?;
        let device = Device::new(profile.sharing.clone(), profile.host.clone(), variant.urgent_lane, seed);
        Ok(Self {
            profile,
            costs,
            variant,
            workload,
            schedule,
            sched,
            device,
            now: BEGIN,
            touched: false,
            wake: Tick::NEVER,
            agenda: Agenda::new(schedule.iter().map(|arrival| BEGIN + arrival.at + PATH).collect()),
            speakers: Speakers::default(),
            outcomes: Vec::new(),
            reasons: Reasons::new(),
        })
    }

    /// Runs until every request has ended, or patience has; gives the outcomes of those that count. `None`
    /// when `cut` turned true before.
    pub(crate) fn run(mut self, cut: &AtomicBool) -> Option<(Vec<Outcome>, Sched, Reasons)> {
        let longest = self.workload.utterances.iter().map(|it| it.spoken_s()).fold(0.0, f64::max);
        let last = self.schedule.last().map_or(Span::ZERO, |arrival| arrival.at);
        let give_up = BEGIN + last + PATIENCE + Span::from_millis((longest * 1_000.0) as i64);
        while let Some(next) = self.next_tick().filter(|next| *next <= give_up) {
            if cut.load(Ordering::Relaxed) {
                return None;
            }
            self.now = self.now.max(next);
            self.step();
        }
        for index in 0..self.schedule.len() {
            self.end(index, Ending::Unfinished);
        }
        Some((self.outcomes, self.sched, self.reasons))
    }

    fn next_tick(&self) -> Option<Tick> {
        let event = self.agenda.next();
        if self.speakers.is_empty() && event.is_none() {
            return None;
        }
        let wake = (self.wake != Tick::NEVER).then_some(self.wake);
        [wake, event, self.device.next()].into_iter().flatten().min()
    }

    fn step(&mut self) {
        while let Some(landed) = self.device.land(self.now) {
            self.landed(landed);
        }
        while let Some((kind, index)) = self.agenda.take(self.now) {
            self.event(kind, index);
        }
        if self.wake <= self.now {
            self.sched.handle_timeout(self.now);
            self.touched = true;
        }
        // Most of what listeners do changes nothing for the scheduler, and asking it costs most of all.
        while std::mem::take(&mut self.touched) {
            self.wake = if self.drain() { self.sched.poll_timeout().0 } else { Tick::NEVER };
        }
    }

    fn command(&mut self, command: Command) {
        self.sched.handle_command(self.now, command);
        self.touched = true;
    }

    fn event(&mut self, kind: Kind, index: usize) {
        match kind {
            Kind::Arrive => self.arrive(index),
            Kind::Send => {
                if self.speakers.get(index).is_some_and(|speaker| speaker.send_due <= self.now) {
                    self.send(index);
                }
            }
            Kind::Deliver => {
                let Some(speaker) = self.speakers.get_mut(index) else { return };
                speaker.deliver(self.now);
                self.listen(index);
                self.maybe_done(index);
            }
            Kind::Report => {
                let Some(speaker) = self.speakers.get_mut(index) else { return };
                speaker.take(self.now);
                self.tell(index);
                self.send(index);
            }
            Kind::Cut => {
                self.command(Command::Cancel { context: id(index) });
                self.end(index, Ending::Interrupted);
            }
            Kind::Wake => {
                if self.speakers.get(index).is_some_and(|speaker| speaker.wake <= self.now) {
                    self.listen(index);
                }
            }
        }
    }

    fn arrive(&mut self, index: usize) {
        let Some(arrival) = self.schedule.get(index) else { return };
        let Some(utterance) = self.workload.utterances.get(arrival.utterance) else { return };
        let frames = utterance.frames(self.profile.frame_ms / 1_000.0);
        let ids = (utterance.words() as f64 * self.profile.prompt.ids_per_word).round().max(1.0) as u32;
        let prompt_tokens = self.profile.prompt.positions + ids;
        let onset = (self.profile.prompt.onset_ms * 48.0) as u64;
        let due = BEGIN + arrival.at;
        let mut speaker = Speaker::new(arrival, due, frames, prompt_tokens, onset);
        if !self.variant.reports {
            speaker.silence();
        }
        if self.variant.exact_frames {
            speaker.hearing.asked(frames, self.profile.frame_samples());
        }
        self.speakers.insert(index, speaker);
        self.device.host_work(self.now, self.profile.host.request_us);
        let exact_frames = self.variant.exact_frames.then_some(frames);
        self.command(Command::Open {
            context: id(index),
            arrival: due,
            tenant: 0,
            exact_frames,
            voice_encode: None,
            encode_samples: 0,
        });
        // What the text lets the server expect: the average pace, whatever this speaker's is.
        let expected = utterance.words() as f64 * crate::workload::SECONDS_PER_WORD;
        let frames_predicted = (expected * 1_000.0 / self.profile.frame_ms).ceil().max(1.0) as u32;
        self.command(Command::SegmentReady {
            context: id(index),
            segment: 0,
            prompt_tokens,
            ids,
            closed: true,
            streamed: false,
            frames_predicted,
            frames_max: frames_predicted.saturating_mul(4).max(frames + 8),
        });
        self.command(Command::Finish { context: id(index) });
    }

    fn send(&mut self, index: usize) {
        let path = Span::from_micros(self.profile.host.path_us as i64);
        while let Some(speaker) = self.speakers.get_mut(index) {
            let Some(sent) = speaker.send(self.now) else { break };
            let packets = sent.samples.div_ceil(960) as f64;
            let arrives = (self.now + path + speaker.one_way()).max(speaker.last_delivery);
            speaker.last_delivery = arrives;
            self.device.host_work(self.now, packets * self.profile.host.packet_us);
            self.agenda.at(arrives, Kind::Deliver, index);
        }
        if let Some(speaker) = self.speakers.get_mut(index) {
            if speaker.send_due <= self.now {
                speaker.send_due = Tick::NEVER;
            }
            if let Some(at) = speaker.next_send().filter(|at| *at != Tick::NEVER) {
                self.send_at(index, at.max(self.now + Span::from_micros(1)));
            }
        }
        self.tell(index);
    }

    /// Has the next chunk sent at `at`, unless that is to happen before anyway.
    fn send_at(&mut self, index: usize, at: Tick) {
        let Some(speaker) = self.speakers.get_mut(index).filter(|speaker| at < speaker.send_due) else {
            return;
        };
        speaker.send_due = at;
        self.agenda.at(at, Kind::Send, index);
    }

    fn tell(&mut self, index: usize) {
        let now = self.now;
        let told = self.speakers.get_mut(index).filter(|speaker| !speaker.finished);
        if let Some(playback) =
            told.and_then(|speaker| speaker.tell(now)).filter(|it| *it != Playback::NotStarted)
        {
            self.command(Command::Playback { context: id(index), playback });
        }
    }

    /// The listener's own doings, and when they next want to be asked.
    fn listen(&mut self, index: usize) {
        let now = self.now;
        let Some(speaker) = self.speakers.get_mut(index) else { return };
        if speaker.hearing.interrupts_at().is_some_and(|at| at <= now) {
            speaker.hearing.interrupted(now);
            let arrives = now + speaker.one_way();
            self.agenda.at(arrives, Kind::Cut, index);
            return;
        }
        let report = speaker.report(now);
        let wake = speaker.next_wake().map(|at| at.max(now + Span::from_micros(1)));
        let known = std::mem::replace(&mut speaker.wake, wake.unwrap_or(Tick::NEVER));
        if let Some(arrives) = report {
            self.agenda.at(arrives, Kind::Report, index);
        }
        if let Some(wake) = wake.filter(|wake| *wake != known) {
            self.agenda.at(wake, Kind::Wake, index);
        }
    }

    fn maybe_done(&mut self, index: usize) {
        if self.speakers.get(index).is_some_and(Speaker::is_delivered) {
            self.end(index, Ending::Done);
        }
    }

    fn end(&mut self, index: usize, ending: Ending) {
        let Some(speaker) = self.speakers.remove(index) else { return };
        let mut hearing = speaker.hearing;
        let frame = self.profile.frame_samples();
        if ending == Ending::Done {
            hearing.made(u64::from(speaker.made), u64::from(speaker.made) * frame, Span::ZERO);
        }
        let outcome = hearing.finish(self.now, ending);
        if self.schedule.get(index).is_some_and(|arrival| !arrival.discarded) {
            self.outcomes.push(outcome);
        }
    }

    /// Takes all that the scheduler has to say; whether it has no more.
    fn drain(&mut self) -> bool {
        loop {
            while let Some(output) = self.sched.poll_output() {
                self.output(output);
            }
            // One launch at a time: the next landing asks again.
            if !self.variant.asynchronous && self.device.is_busy() {
                return false;
            }
            let Some(decision) = self.sched.poll_decision(self.now) else { return true };
            *self.reasons.entry(decision.why().reason).or_insert(0) += 1;
            let micros = self.work(&decision);
            self.device.launch(self.now, decision, micros);
        }
    }

    fn output(&mut self, output: SchedOutput) {
        match output {
            SchedOutput::ChunkCommitted(chunk) => {
                let index = index(chunk.context);
                let frame = self.profile.frame_samples();
                let end = chunk.position + u64::from(chunk.frames);
                let Some(speaker) = self.speakers.get_mut(index) else { return };
                let last = end >= u64::from(speaker.frames);
                speaker.hearing.first_chunk(u64::from(chunk.frames) * frame, Some(chunk.frames));
                speaker.chunk(chunk.position * frame, end * frame, last);
                self.send_at(index, self.now);
            }
            SchedOutput::Finished { context, reason, .. } => {
                let index = index(context);
                match reason {
                    FinishReason::Done | FinishReason::Capped => {
                        if let Some(speaker) = self.speakers.get_mut(index) {
                            speaker.finished = true;
                        }
                        self.maybe_done(index);
                    }
                    FinishReason::Cancelled => {}
                    other => self.end(index, Ending::Failed(format!("it ended as {}", other.name()))),
                }
            }
            SchedOutput::Refused { context, cause, retry_after } => {
                let code = cause.error(retry_after).code().to_owned();
                self.end(index(context), Ending::Refused(code));
            }
            _ => {}
        }
    }

    /// Microseconds of work of a launch, by the device's own tables.
    fn work(&self, decision: &Decision) -> f64 {
        let live = |bucket: u32| if self.profile.live_rows { decision.rows() as u32 } else { bucket };
        let prompt = |context: ContextId| self.speakers.get(index(context)).map_or(1, |it| it.prompt_tokens);
        let (stage, partition, rows, length) = match decision {
            Decision::Codec { lane, bucket, length, .. } => {
                let whole = *lane == contract::Lane::Urgent && self.variant.urgent_lane;
                let partition = if whole { Partition::Whole } else { Partition::Background };
                (Stage::Codec, partition, live(*bucket), *length)
            }
            Decision::Decode { bucket, rows, .. } => {
                // Attention costs what all rows read together: as much as if each stood at their mean.
                let together: u64 = rows.iter().map(|row| u64::from(prompt(row.context) + row.step)).sum();
                (Stage::Decode, Partition::Lm, live(*bucket), (together / rows.len().max(1) as u64) as u32)
            }
            Decision::Prefill { partition, rows, .. } => {
                let positions = rows.iter().map(|row| row.prompt_tokens - row.cached).sum();
                let bucket = self.costs.decode_bucket(decision.rows() as u32);
                (Stage::Prefill, *partition, live(bucket), positions)
            }
            Decision::Encode { .. } => (Stage::Encode, Partition::Whole, 1, 1),
        };
        self.costs.cost(stage, partition, rows, length).as_micros() as f64
    }

    fn landed(&mut self, landed: Landed) {
        let result = match &landed.decision {
            Decision::Codec { rows, .. } => {
                LaunchResult::Chunks(rows.iter().map(|_| ChunkResult::Made { peak: 0.5 }).collect())
            }
            Decision::Encode { .. } => LaunchResult::Encoded,
            Decision::Prefill { rows, riders, .. } => {
                let first = rows.iter().map(|row| (row.context, 0, row.eos_allowed));
                let steps = riders.iter().map(|row| (row.context, row.step, row.eos_allowed));
                let frames = first.chain(steps).map(|(context, step, ends)| self.frame(context, step, ends));
                LaunchResult::Frames(frames.collect())
            }
            Decision::Decode { rows, .. } => LaunchResult::Frames(
                rows.iter().map(|row| self.frame(row.context, row.step, row.eos_allowed)).collect(),
            ),
        };
        let completion =
            Completion { launch: landed.decision.launch(), at: landed.at, took: landed.took, result };
        self.sched.handle_completion(self.now, completion);
        self.touched = true;
    }

    fn frame(&mut self, context: ContextId, step: u32, eos_allowed: bool) -> FrameResult {
        // Never the same twice: nothing here repeats itself.
        let code_hash = u64::from(step) | 1 << 40;
        let Some(speaker) = self.speakers.get_mut(index(context)) else {
            return FrameResult { outcome: FrameOutcome::NoOp, code_hash };
        };
        let outcome = if speaker.done {
            FrameOutcome::NoOp
        } else if eos_allowed && step >= speaker.frames {
            speaker.done = true;
            FrameOutcome::EndOfSpeech
        } else {
            speaker.made += 1;
            FrameOutcome::Made
        };
        FrameResult { outcome, code_hash }
    }
}

fn id(index: usize) -> ContextId {
    ContextId(index as u64 + 1)
}

fn index(context: ContextId) -> usize {
    (context.0 as usize).saturating_sub(1)
}
