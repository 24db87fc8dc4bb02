//! The pure part: commands in, outputs out, time as an argument.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use contract::{
    Chunk, ContextId, ControlTokens, ControlWatch, EngineError, EngineStats, FinishReason, Lane, LaunchId,
    LaunchSpan, OpenContext, Output, Playback, Span, Stage, TextAccepted, Tick, Usage, VoiceChoice,
};

use crate::script::{Refusal, Script, VoiceScript};
use crate::speech::{Limits, Next, Segment, Speech};
use crate::{Tone, tone_hz};

/// Finished launches kept for [`contract::EngineHandle::launches`].
const LAUNCHES_MAX: usize = 1_024;

/// A scripted engine without thread or clock. After each call drain [`Core::poll_output`] until
/// `None`, then sleep until [`Core::poll_timeout`].
#[derive(Debug)]
pub struct Core {
    script: Script,
    control: ControlTokens,
    contexts: BTreeMap<ContextId, Speech>,
    /// When each context has something to do, earliest first: with thousands of them, a walk over all at every event is
    /// what the engine would spend its time on.
    due: BTreeSet<(Tick, ContextId)>,
    outputs: VecDeque<(ContextId, Output)>,
    launches: VecDeque<LaunchSpan>,
    next_context: u64,
    next_launch: u64,
    stats: EngineStats,
    /// Clips that were "encoded": a script makes nothing of them, but counts as an engine does.
    clips: BTreeSet<[u8; 16]>,
}

/// Clips counted before the oldest hash is forgotten.
const CLIPS_MAX: usize = 4_096;

impl Core {
    #[must_use]
    pub fn new(script: Script) -> Self {
        Self {
            control: ControlTokens::new(script.control_tokens.clone()),
            script,
            clips: BTreeSet::new(),
            contexts: BTreeMap::new(),
            due: BTreeSet::new(),
            outputs: VecDeque::new(),
            launches: VecDeque::new(),
            next_context: 1,
            next_launch: 1,
            stats: EngineStats::default(),
        }
    }

    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Registers a context.
    ///
    /// # Errors
    /// The script's refusal for the voice, or what is wrong with the request.
    pub fn open(&mut self, request: &OpenContext) -> Result<ContextId, EngineError> {
        let voice = self.admit(request).inspect_err(|_| self.stats.refused += 1)?;
        if let VoiceChoice::Reference { clip, .. } = &request.voice {
            let new = self.clips.insert(clip.hash);
            self.stats.encodes += u64::from(new);
            self.stats.encode_hits += u64::from(!new);
            if self.clips.len() > CLIPS_MAX {
                self.clips.pop_first();
            }
        }
        let id = ContextId(self.next_context);
        self.next_context += 1;
        let hz = tone_hz(request.sampling.seed.unwrap_or(id.0));
        self.contexts.insert(
            id,
            Speech {
                voice,
                tone: Tone::new(hz, self.script.sample_rate),
                watch: ControlWatch::new(self.control.clone()),
                segments: VecDeque::new(),
                segment: 0,
                segment_frames: 0,
                finishing: false,
                exact_frames: request.exact_frames,
                chunk: 0,
                arrival: request.arrival,
                playback: Playback::NotStarted,
                free_at: None,
                stalled: false,
                usage: Usage::default(),
                due: Tick::NEVER,
            },
        );
        Ok(id)
    }

    /// Appends text to the current segment.
    ///
    /// # Errors
    /// As [`contract::EngineHandle::push_text`].
    pub fn push_text(&mut self, now: Tick, id: ContextId, text: &str) -> Result<TextAccepted, EngineError> {
        let max = self.script.text_max;
        let speech = self.writable(id)?;
        let given = text.chars().count() as u64;
        let waiting: u64 = speech.segments.iter().map(|s| s.characters).sum();
        if waiting + given > max {
            return Err(EngineError::TextTooLong { given: waiting + given, max });
        }
        speech.watch.push(text).map_err(|token| EngineError::ControlToken { token })?;
        if given == 0 {
            return Ok(TextAccepted::default());
        }
        if speech.segments.back().is_none_or(|s| s.ended) {
            speech.segments.push_back(Segment::default());
        }
        if let Some(segment) = speech.segments.back_mut() {
            segment.characters += given;
        }
        speech.usage.characters += given;
        speech.usage.text_ids += given;
        if speech.free_at.is_none() {
            speech.free_at = Some(now + Span::from_millis(speech.voice.first_audio_ms as i64));
        }
        self.speak(id, now);
        Ok(TextAccepted { ids: given as u32, held_bytes: 0 })
    }

    /// Ends the current segment; an empty one is nothing.
    ///
    /// # Errors
    /// [`EngineError::ContextClosed`].
    pub fn end_segment(&mut self, now: Tick, id: ContextId) -> Result<TextAccepted, EngineError> {
        let speech = self.writable(id)?;
        if let Some(segment) = speech.segments.back_mut() {
            segment.ended = true;
        }
        speech.watch.restart();
        self.speak(id, now);
        Ok(TextAccepted::default())
    }

    /// No text will follow.
    ///
    /// # Errors
    /// [`EngineError::ContextClosed`].
    pub fn finish(&mut self, now: Tick, id: ContextId) -> Result<(), EngineError> {
        let speech = self.writable(id)?;
        if let Some(segment) = speech.segments.back_mut() {
            segment.ended = true;
        }
        speech.finishing = true;
        self.speak(id, now);
        Ok(())
    }

    /// Whether text may still be pushed into this context.
    ///
    /// # Errors
    /// [`EngineError::ContextClosed`].
    pub fn check_open(&self, id: ContextId) -> Result<(), EngineError> {
        match self.contexts.get(&id) {
            Some(speech) if !speech.finishing => Ok(()),
            _ => Err(EngineError::ContextClosed),
        }
    }

    pub fn playback(&mut self, now: Tick, id: ContextId, playback: Playback) {
        if let Some(speech) = self.contexts.get_mut(&id) {
            speech.playback = playback;
            self.speak(id, now);
        }
    }

    pub fn cancel(&mut self, id: ContextId) {
        self.outputs.retain(|(of, _)| *of != id);
        self.end(id, FinishReason::Cancelled, None);
    }

    /// The sink of a context had no room.
    pub fn output_full(&mut self, id: ContextId) {
        self.outputs.retain(|(of, _)| *of != id);
        self.end(id, FinishReason::Failed, Some(EngineError::OutputFull));
    }

    /// Makes everything that exists by `now`. Counts the contexts it looked at.
    pub fn handle_timeout(&mut self, now: Tick) -> usize {
        let over = self.due.range(..=(now, ContextId(u64::MAX)));
        let mut ids: Vec<ContextId> = over.map(|(_, id)| *id).collect();
        // In the order in which they were opened, however late this call comes.
        ids.sort_unstable();
        for id in &ids {
            self.speak(*id, now);
        }
        ids.len()
    }

    pub fn poll_output(&mut self) -> Option<(ContextId, Output)> {
        self.outputs.pop_front()
    }

    /// Whether [`Core::poll_output`] has something.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// When [`Core::handle_timeout`] has something to do; [`Tick::NEVER`] when only a command can.
    #[must_use]
    pub fn poll_timeout(&self) -> Tick {
        self.due.first().map_or(Tick::NEVER, |(at, _)| *at)
    }

    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let open = self.contexts.len() as u32;
        let running = self.contexts.values().filter(|s| s.free_at.is_some()).count() as u32;
        EngineStats { open, running, ..self.stats.clone() }
    }

    #[must_use]
    pub fn launches(&self, max: usize) -> Vec<LaunchSpan> {
        let skip = self.launches.len().saturating_sub(max);
        self.launches.iter().skip(skip).cloned().collect()
    }

    /// Forgets that a clip was seen.
    pub fn forget_clip(&mut self, hash: [u8; 16]) {
        self.clips.remove(&hash);
    }

    fn admit(&self, request: &OpenContext) -> Result<VoiceScript, EngineError> {
        let script = &self.script;
        if request.model != script.model {
            let known = vec![script.model.clone()];
            return Err(EngineError::UnknownModel { model: request.model.clone(), known });
        }
        let index = match &request.voice {
            VoiceChoice::Default | VoiceChoice::Reference { .. } => 0,
            VoiceChoice::Named(name) => script.voice(name).ok_or_else(|| EngineError::UnknownVoice {
                voice: name.clone(),
                known: script.voices.iter().map(|v| v.name.clone()).collect(),
            })?,
        };
        let voice = script.voices[index].clone();
        let retry_after = Span::from_millis(i64::from(voice.retry_after_ms));
        match voice.refuse {
            Some(Refusal::OutOfMemory) => Err(EngineError::OutOfMemory { what: "script" }),
            Some(Refusal::Overloaded) => Err(EngineError::Overloaded { retry_after }),
            Some(Refusal::TooManyContexts) => Err(EngineError::TooManyContexts { retry_after }),
            Some(Refusal::Unavailable) => Err(EngineError::Unavailable { reason: "script".to_owned() }),
            None if self.contexts.len() >= script.open_max as usize => {
                Err(EngineError::TooManyContexts { retry_after: Span::from_millis(1_000) })
            }
            None => Ok(voice),
        }
    }

    fn writable(&mut self, id: ContextId) -> Result<&mut Speech, EngineError> {
        self.contexts.get_mut(&id).filter(|s| !s.finishing).ok_or(EngineError::ContextClosed)
    }

    fn next_of(&self, speech: &Speech, now: Tick) -> Next {
        let limits = Limits {
            sample_rate: self.script.sample_rate,
            lead_max: Span::from_millis(self.script.lead_max_ms as i64),
        };
        // What ends the context ends it at exactly its frame.
        let total = speech.frames_total();
        let left = [speech.voice.cap_frames, speech.voice.fail_after_frames]
            .into_iter()
            .flatten()
            .map(|at| u64::from(at).saturating_sub(total).max(1) as u32)
            .min();
        let chunk = self.script.chunk_frames(speech.chunk).min(left.unwrap_or(u32::MAX));
        speech.next(now, chunk, self.script.frames_per_character, &limits)
    }

    /// Advances one context as far as `now` allows, and notes when it can go on.
    fn speak(&mut self, id: ContextId, now: Tick) {
        loop {
            let Some(speech) = self.contexts.get(&id) else { return };
            match self.next_of(speech, now) {
                Next::Chunk { frames, at } if at <= now => self.chunk(id, frames, at, now),
                Next::SegmentEnd => self.segment_end(id),
                Next::Finish => self.end(id, FinishReason::Done, None),
                Next::Chunk { at, .. } => return self.wait(id, at),
                Next::Rest { until } => return self.wait(id, until),
                Next::Wait => return self.wait(id, Tick::NEVER),
            }
        }
    }

    /// Until then only a command can move a context on.
    fn wait(&mut self, id: ContextId, until: Tick) {
        let Some(speech) = self.contexts.get_mut(&id) else { return };
        let before = std::mem::replace(&mut speech.due, until);
        if before != until {
            self.due.remove(&(before, id));
            if until != Tick::NEVER {
                self.due.insert((until, id));
            }
        }
    }

    fn chunk(&mut self, id: ContextId, frames: u32, at: Tick, now: Tick) {
        let samples_per_frame = self.script.samples_per_frame;
        let sample_rate = self.script.sample_rate;
        let Some(speech) = self.contexts.get_mut(&id) else { return };
        let samples = speech.tone.take(frames as usize * samples_per_frame as usize);
        let first_sample = speech.usage.samples;
        let started = speech.free_at.unwrap_or(at).min(at);
        let lane = if speech.chunk == 0 { Lane::Urgent } else { Lane::Background };
        let deadline = match speech.playback {
            Playback::NotStarted => speech.arrival + Span::from_millis(200),
            Playback::Paused { .. } => Tick::NEVER,
            Playback::Playing { zero } => zero + Span::of_samples(first_sample, sample_rate),
        };
        speech.usage.samples += samples.len() as u64;
        speech.usage.frames += u64::from(frames);
        speech.segment_frames += u64::from(frames);
        speech.chunk += 1;
        // A context that rested starts anew when it wakes; one that is busy goes on without a gap.
        let rested = now.since(at) > Span::from_millis(50) && speech.voice.frame_ms > 0.0;
        speech.free_at = Some(if rested { now } else { at });
        let total = speech.frames_total();
        if !speech.stalled && speech.voice.stall_after_frames.is_some_and(|n| total >= u64::from(n)) {
            speech.stalled = true;
            speech.free_at = Some(now + Span::from_millis(speech.voice.stall_ms as i64));
        }
        let chunk = Chunk {
            first_sample,
            samples,
            segment: speech.segment,
            frames,
            lane,
            slack: deadline.since(started),
            ready: started,
            launched: started,
            made: now,
        };
        let failed = speech.voice.fail_after_frames.is_some_and(|n| total >= u64::from(n));
        let capped = speech.voice.cap_frames.is_some_and(|n| total >= u64::from(n));
        self.record(lane, frames, started, now);
        self.outputs.push_back((id, Output::Chunk(chunk)));
        if failed {
            let error = EngineError::Internal { what: "the script says so".to_owned() };
            self.end(id, FinishReason::Failed, Some(error));
        } else if capped {
            self.end(id, FinishReason::Capped, None);
        }
    }

    fn segment_end(&mut self, id: ContextId) {
        let Some(speech) = self.contexts.get_mut(&id) else { return };
        let output = Output::SegmentFinished {
            segment: speech.segment,
            end_sample: speech.usage.samples,
            reason: FinishReason::Done,
        };
        speech.segments.pop_front();
        speech.segment += 1;
        speech.segment_frames = 0;
        self.outputs.push_back((id, output));
    }

    fn end(&mut self, id: ContextId, reason: FinishReason, error: Option<EngineError>) {
        let Some(speech) = self.contexts.remove(&id) else { return };
        self.due.remove(&(speech.due, id));
        let counter = match reason {
            FinishReason::Cancelled => &mut self.stats.finished_cancelled,
            FinishReason::Capped => &mut self.stats.finished_capped,
            FinishReason::Done | FinishReason::Idle => &mut self.stats.finished_done,
            FinishReason::Failed => &mut self.stats.finished_failed,
        };
        *counter += 1;
        // Nothing is ever in flight here.
        let cancelled = u64::from(reason == FinishReason::Cancelled);
        self.stats.cancelled_lm_freed[0] += cancelled;
        self.stats.cancelled_freed[0] += cancelled;
        self.outputs.push_back((id, Output::Finished { reason, usage: speech.usage, error }));
    }

    fn record(&mut self, lane: Lane, frames: u32, started: Tick, finished: Tick) {
        let total = match lane {
            Lane::Background => &mut self.stats.background,
            Lane::Lm => &mut self.stats.lm,
            Lane::Urgent => &mut self.stats.urgent,
        };
        total.launches += 1;
        total.rows += 1;
        total.busy_us += finished.since(started).as_micros().max(0) as u64;
        self.stats.frames += u64::from(frames);
        if self.launches.len() == LAUNCHES_MAX {
            self.launches.pop_front();
        }
        self.launches.push_back(LaunchSpan {
            device: contract::DeviceId(0),
            launch: LaunchId(self.next_launch),
            lane,
            stage: Stage::Codec,
            rows: 1,
            started,
            finished,
            cores: Vec::new(),
            reason: "script",
        });
        self.next_launch += 1;
    }
}
