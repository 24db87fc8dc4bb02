//! The reference model: what must be true of any run, kept apart from the scheduler and in the
//! simplest form. It sees only what crosses the scheduler's border.

use std::collections::BTreeMap;

use contract::{ContextId, EngineError, FinishReason, Lane, LaunchId, PageId, Playback, SlotId, Span, Tick};
use sched::{
    ChunkResult, Command, Completion, Counters, Decision, EncodeKey, FrameOutcome, LaunchResult,
    RefusalCause, SchedConfig, SchedOutput,
};

use crate::lanes::Lanes;
use crate::world::frames_of;

#[derive(Clone, Debug, Default)]
pub(crate) struct Seg {
    pub(crate) prompt: u32,
    pub(crate) ids: u32,
    pub(crate) closed: bool,
    pub(crate) streamed: bool,
    pub(crate) predicted: u32,
    pub(crate) max: u32,
    /// Steps launched, prefill included.
    pub(crate) launched: u32,
    pub(crate) made: u32,
    pub(crate) dispatched: u32,
    pub(crate) committed: u32,
    pub(crate) total: Option<u32>,
    pub(crate) capped: bool,
    pub(crate) lm_in_flight: u32,
    pub(crate) pages: Vec<PageId>,
    pub(crate) promised: u32,
    pub(crate) hashes: Vec<u64>,
    pub(crate) silent: Span,
    pub(crate) reported: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Ctx {
    pub(crate) arrival: Tick,
    pub(crate) first_text: Option<Tick>,
    pub(crate) playback: Playback,
    pub(crate) exact: Option<u32>,
    pub(crate) encode: Option<EncodeKey>,
    pub(crate) segs: Vec<Seg>,
    pub(crate) no_more: bool,
    pub(crate) capped: bool,
    pub(crate) over: bool,
    pub(crate) admitted: bool,
    pub(crate) slot: Option<SlotId>,
    pub(crate) chunks: u32,
    pub(crate) rung_first: Option<u32>,
    pub(crate) dispatched: u64,
    pub(crate) committed: u64,
    pub(crate) first_commit: Option<Tick>,
    pub(crate) in_flight: BTreeMap<LaunchId, Lane>,
    /// A later report has moved its playback: its lead may have grown by that alone.
    pub(crate) moved: bool,
    /// A terminal event that must come next.
    pub(crate) must_end: Option<FinishReason>,
}

pub(crate) struct Model {
    pub(crate) config: SchedConfig,
    pub(crate) contexts: BTreeMap<ContextId, Ctx>,
    pub(crate) lanes: Lanes,
    /// Chunk results that must leave or be dropped, in order.
    expected: Vec<(ContextId, LaunchId, u32, bool)>,
    pub(crate) seen: Counters,
    pub(crate) deferred_since: Option<Tick>,
}

impl Ctx {
    pub(crate) fn active(&self) -> Option<usize> {
        self.segs.iter().position(|seg| seg.launched > 0 && seg.total.is_none())
    }

    /// The segment whose prefill is next.
    pub(crate) fn waiting(&self) -> Option<usize> {
        let at = self.segs.iter().position(|seg| seg.total.is_none())?;
        (self.segs[at].launched == 0).then_some(at)
    }

    pub(crate) fn base(&self, at: usize) -> u64 {
        self.segs[..at].iter().map(|seg| u64::from(seg.total.unwrap_or(seg.made))).sum()
    }

    pub(crate) fn cap(&self, at: usize) -> u32 {
        match self.exact {
            Some(exact) => u64::from(exact).saturating_sub(self.base(at)) as u32,
            None => self.segs[at].max,
        }
    }

    pub(crate) fn codec_in_flight(&self) -> bool {
        self.in_flight.values().any(|&lane| lane != Lane::Lm)
    }

    fn end(&mut self, at: usize, total: u32, capped: bool) {
        let seg = &mut self.segs[at];
        seg.total = Some(total);
        seg.promised = 0;
        seg.capped = capped;
        self.capped |= capped;
        self.free(at);
    }

    fn free(&mut self, at: usize) {
        let seg = &mut self.segs[at];
        if seg.lm_in_flight == 0 && (self.over || seg.total.is_some()) {
            seg.pages.clear();
        }
    }

    /// Ends what has reached its frame bound.
    fn bound(&mut self) {
        while let Some(at) = self.active().or_else(|| self.waiting()) {
            let cap = self.cap(at);
            let binds = self.exact.is_some() || self.segs[at].closed;
            if !binds || self.segs[at].made < cap {
                return;
            }
            let capped = self.exact.is_none();
            self.end(at, cap, capped);
        }
    }

    fn close(&mut self) {
        self.over = true;
        self.encode = None;
        for at in 0..self.segs.len() {
            self.segs[at].promised = 0;
            self.free(at);
        }
    }

    /// Whether the terminal event is due now that all has been spoken.
    fn all_spoken(&self) -> bool {
        self.no_more
            && self.in_flight.is_empty()
            && self.segs.iter().all(|seg| seg.total == Some(seg.committed))
    }
}

impl Model {
    pub(crate) fn new(config: SchedConfig) -> Self {
        Self {
            config,
            contexts: BTreeMap::new(),
            lanes: Lanes::default(),
            expected: Vec::new(),
            seen: Counters::default(),
            deferred_since: None,
        }
    }

    pub(crate) fn before_command(&mut self, now: Tick, command: &Command) {
        let id = command.context();
        if let Command::Open { arrival, exact_frames, voice_encode, .. } = command {
            self.contexts.entry(id).or_insert_with(|| Ctx {
                arrival: *arrival,
                first_text: None,
                playback: Playback::NotStarted,
                exact: *exact_frames,
                encode: *voice_encode,
                segs: Vec::new(),
                no_more: false,
                capped: false,
                over: false,
                admitted: false,
                slot: None,
                chunks: 0,
                rung_first: None,
                dispatched: 0,
                committed: 0,
                first_commit: None,
                in_flight: BTreeMap::new(),
                moved: false,
                must_end: None,
            });
            return;
        }
        let Some(context) = self.contexts.get_mut(&id).filter(|context| !context.over) else { return };
        match command {
            // The schedules keep no prefixes: their page accounts stay as simple as this model's.
            Command::Open { .. } | Command::SharePrefix { .. } => {}
            Command::SegmentReady {
                segment,
                prompt_tokens,
                ids,
                closed,
                streamed,
                frames_predicted,
                frames_max,
                ..
            } => {
                let in_order = *segment as usize == context.segs.len();
                let sound = in_order
                    && !context.no_more
                    && context.segs.last().is_none_or(|last| last.closed || last.total.is_some());
                if sound && (!streamed || *ids > 0) {
                    context.first_text.get_or_insert(now);
                    context.segs.push(Seg {
                        prompt: *prompt_tokens,
                        ids: *ids,
                        closed: *closed || !*streamed,
                        streamed: *streamed,
                        predicted: *frames_predicted,
                        max: *frames_max,
                        ..Seg::default()
                    });
                    context.bound();
                }
            }
            Command::Ids { segment, total, closed, frames_predicted, frames_max, .. } => {
                let sound = |seg: &&mut Seg| !seg.closed && *total >= seg.ids && seg.total.is_none();
                if let Some(seg) = context.segs.get_mut(*segment as usize).filter(sound) {
                    seg.ids = *total;
                    seg.closed = *closed;
                    seg.predicted = seg.predicted.max(*frames_predicted);
                    seg.max = seg.max.max(*frames_max);
                    context.bound();
                }
            }
            Command::Finish { .. } => {
                context.no_more = true;
                if let Some(last) = context.segs.last_mut() {
                    last.closed = true;
                }
                context.bound();
            }
            Command::Playback { playback, .. } => {
                context.moved |= context.dispatched > 0;
                context.playback = *playback;
            }
            Command::Cancel { .. } => context.must_end = Some(FinishReason::Cancelled),
            Command::Fail { .. } => context.must_end = Some(FinishReason::Failed),
        }
    }

    pub(crate) fn before_completion(&mut self, decision: &Decision, completion: &Completion) {
        let launch = completion.launch;
        if !self.lanes.land(launch, completion.at) {
            return;
        }
        let lost = matches!(completion.result, LaunchResult::Lost { .. });
        match decision {
            Decision::Encode { key, .. } => {
                let failed = !matches!(completion.result, LaunchResult::Encoded);
                for context in self.contexts.values_mut().filter(|context| context.encode == Some(*key)) {
                    context.encode = None;
                    context.must_end = failed.then_some(FinishReason::Failed);
                }
            }
            Decision::Prefill { .. } | Decision::Decode { .. } => {
                for (at, (context, segment, ..)) in frames_of(decision).into_iter().enumerate() {
                    self.land_frame(launch, context, segment as usize, frame(completion, at), lost);
                }
            }
            Decision::Codec { rows, .. } => {
                for (at, row) in rows.iter().enumerate() {
                    let peak = match &completion.result {
                        LaunchResult::Chunks(chunks) => match chunks[at] {
                            ChunkResult::Made { peak } => Some(peak),
                            ChunkResult::NotFinite => None,
                        },
                        _ => None,
                    };
                    self.land_chunk(launch, row, at as u32, completion.at, peak);
                }
            }
        }
    }

    fn land_frame(
        &mut self,
        launch: LaunchId,
        id: ContextId,
        at: usize,
        frame: Option<(FrameOutcome, u64)>,
        lost: bool,
    ) {
        let guard = self.config.guard.clone();
        let context = self.contexts.get_mut(&id).expect("named by a launch");
        context.in_flight.remove(&launch);
        context.segs[at].lm_in_flight -= 1;
        if !context.over && context.segs[at].total.is_none() {
            match frame {
                None if lost => context.must_end = Some(FinishReason::Failed),
                None => {}
                Some((FrameOutcome::EndOfSpeech, _)) => context.end(at, context.segs[at].made, false),
                Some((FrameOutcome::NoOp, _)) => context.end(at, context.segs[at].made, true),
                Some((FrameOutcome::Made, hash)) => {
                    let seg = &mut context.segs[at];
                    seg.made += 1;
                    seg.hashes.push(hash);
                    if repeats(&seg.hashes, guard.repeat_period_max as usize, guard.repeat_frames as usize) {
                        let total = seg.made.saturating_sub(guard.repeat_frames).max(seg.dispatched);
                        context.end(at, total, true);
                    }
                    context.bound();
                }
            }
        }
        context.free(at);
        self.drop_slots();
    }

    fn land_chunk(
        &mut self,
        launch: LaunchId,
        row: &sched::CodecRow,
        at: u32,
        made: Tick,
        peak: Option<f32>,
    ) {
        let guard = self.config.guard.clone();
        let context = self.contexts.get_mut(&row.context).expect("named by a launch");
        context.in_flight.remove(&launch);
        let live = !context.over && peak.is_some();
        self.expected.push((row.context, launch, at, live));
        if let (true, Some(peak)) = (live, peak) {
            let index = row.segment as usize;
            context.committed += u64::from(row.frames);
            context.first_commit.get_or_insert(made);
            let seg = &mut context.segs[index];
            seg.committed += row.frames;
            let duration = Span::from_millis(80).times(i64::from(row.frames));
            seg.silent = if peak < guard.silence_peak { seg.silent + duration } else { Span::ZERO };
            let total = seg.committed;
            if seg.silent >= guard.silence_limit && seg.total.is_none_or(|all| all > total) {
                context.end(index, total, true);
            }
        } else if !context.over {
            context.must_end = Some(FinishReason::Failed);
        }
        self.drop_slots();
    }

    pub(crate) fn output(&mut self, output: &SchedOutput) {
        match output {
            SchedOutput::Admitted { context, slot } => {
                let context = &self.contexts[context];
                assert!(
                    !context.over && context.admitted && context.slot == Some(*slot),
                    "admitted without a prefill"
                );
            }
            SchedOutput::ChunkCommitted(chunk) => {
                let expected = self.expected.remove(0);
                assert_eq!(expected, (chunk.context, chunk.launch, chunk.row, true), "a chunk out of turn");
                let context = &self.contexts[&chunk.context];
                assert!(!context.over, "{}: a chunk after the end", chunk.context);
                assert!(
                    chunk.position + u64::from(chunk.frames) <= context.committed,
                    "an unmade frame left"
                );
            }
            SchedOutput::ChunkDropped { context, launch, row } => {
                let expected = self.expected.remove(0);
                assert_eq!(
                    expected,
                    (*context, *launch, *row, false),
                    "a chunk was dropped that should have left"
                );
            }
            SchedOutput::SegmentFinished { context: id, segment, end_frame, reason } => {
                let context = self.contexts.get_mut(id).expect("known");
                assert!(!context.over, "{id}: a segment after the end");
                let at = *segment as usize;
                assert!(context.segs[..at].iter().all(|seg| seg.reported), "{id}: segments out of order");
                assert_eq!(
                    context.segs[at].total,
                    Some(context.segs[at].committed),
                    "{id}: not all was spoken"
                );
                assert_eq!(*end_frame, context.base(at + 1), "{id}: the segment ends elsewhere");
                let expected =
                    if context.segs[at].capped { FinishReason::Capped } else { FinishReason::Done };
                assert_eq!(*reason, expected, "{id} segment {segment}");
                assert!(!context.segs[at].reported, "{id}: a segment finished twice");
                context.segs[at].reported = true;
            }
            SchedOutput::Refused { context: id, cause, retry_after } => {
                assert!(*retry_after > Span::ZERO, "a refusal without a hint");
                let context = self.contexts.get_mut(id).expect("known");
                assert!(!context.over && !context.admitted, "{id}: refused after it began");
                assert!(
                    *cause == RefusalCause::TooManyOpen || context.first_text.is_some(),
                    "{id}: refused without text"
                );
                context.must_end = None;
                context.close();
            }
            SchedOutput::Finished { context: id, reason, error, usage } => {
                let context = self.contexts.get_mut(id).expect("known");
                assert!(!context.over, "{id}: two terminal events");
                assert_eq!(
                    error.is_some(),
                    *reason == FinishReason::Failed,
                    "{id}: an error without failure"
                );
                assert_eq!(usage.frames, context.committed, "{id}: usage");
                match (context.must_end.take(), reason) {
                    // What fell due at the tick of a command happens before it.
                    (Some(_), FinishReason::Idle) => {}
                    (Some(expected), _) => assert_eq!(*reason, expected, "{id}: ends for another reason"),
                    (None, FinishReason::Done) => {
                        assert!(context.all_spoken() && !context.capped, "{id}: done too early")
                    }
                    (None, FinishReason::Capped) => {
                        assert!(context.all_spoken() && context.capped, "{id}: capped too early")
                    }
                    (None, FinishReason::Idle) => assert!(!context.no_more, "{id}: idle after its finish"),
                    (None, FinishReason::Failed) => {
                        // A prompt larger than the pool, or one segment too many.
                        let bounds = matches!(
                            error,
                            Some(EngineError::OutOfMemory { .. } | EngineError::Overloaded { .. })
                        );
                        assert!(bounds, "{id}: fails with {error:?}");
                    }
                    (None, FinishReason::Cancelled) => panic!("{id}: nobody cancelled it"),
                }
                context.close();
            }
            SchedOutput::Removed { context: id } => {
                let context = self.contexts.remove(id).expect("removed once");
                assert!(
                    context.over && context.in_flight.is_empty(),
                    "{id}: removed while something names it"
                );
            }
            SchedOutput::TextDry { context, segment } => {
                let seg = &self.contexts[context].segs[*segment as usize];
                assert!(!seg.closed && seg.streamed, "{context}: dry, but its text is known");
            }
            SchedOutput::TextResumed { .. } => {}
        }
        self.drop_slots();
    }

    pub(crate) fn used_pages(&self) -> usize {
        self.contexts.values().flat_map(|context| &context.segs).map(|seg| seg.pages.len()).sum()
    }

    pub(crate) fn promised_pages(&self) -> u32 {
        self.contexts.values().flat_map(|context| &context.segs).map(|seg| seg.promised).sum()
    }

    /// Nothing of the finished launches may be left unanswered.
    pub(crate) fn nothing_owed(&self) {
        assert!(self.expected.is_empty(), "chunks neither left nor dropped: {:?}", self.expected);
        for (id, context) in &self.contexts {
            assert!(context.must_end.is_none(), "{id}: has not ended as {:?}", context.must_end);
            assert!(context.over || !context.all_spoken(), "{id}: all is spoken and it has not ended");
        }
    }

    /// A context that must give its pages up: generation ends where it is, the rest is still spoken.
    pub(crate) fn cap(&mut self, id: ContextId) {
        let context = self.contexts.get_mut(&id).expect("the victim is known");
        context.no_more = true;
        context.capped = true;
        let at = context.active().expect("the victim generates");
        context.segs.truncate(at + 1);
        context.end(at, context.segs[at].made, true);
        self.drop_slots();
    }

    /// A slot is free when its context is over, or has no text, and no launch names it.
    pub(crate) fn drop_slots(&mut self) {
        for context in self.contexts.values_mut() {
            let spoken =
                context.segs.iter().all(|seg| seg.total == Some(seg.committed) && seg.lm_in_flight == 0);
            if context.in_flight.is_empty() && (context.over || spoken) {
                context.slot = None;
            }
        }
    }
}

fn frame(completion: &Completion, at: usize) -> Option<(FrameOutcome, u64)> {
    match &completion.result {
        LaunchResult::Frames(frames) => Some((frames[at].outcome, frames[at].code_hash)),
        _ => None,
    }
}

/// The last `run` frames each equal the one `period` earlier, for some period.
fn repeats(hashes: &[u64], period_max: usize, run: usize) -> bool {
    (1..=period_max).any(|period| {
        hashes.len() >= run + period
            && (hashes.len() - run..hashes.len()).all(|at| hashes[at] == hashes[at - period])
    })
}
