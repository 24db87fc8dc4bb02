//! What is known of one context and of each of its segments.

use std::collections::VecDeque;

use contract::{ContextId, FinishReason, Lane, PageId, Playback, SlotId, Tick, Version};

use crate::beat::Steady;
use crate::guard::Guard;
use crate::index::Entry;
use crate::{EncodeKey, SchedUsage, TextInput};

/// One open context. Counts of frames run over all its segments.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) id: ContextId,
    pub(crate) arrival: Tick,
    pub(crate) tenant: u32,
    pub(crate) exact_frames: Option<u32>,
    /// The reference still to be encoded.
    pub(crate) encode: Option<EncodeKey>,
    /// The prefix its prompts share with others of the same key, and its positions.
    pub(crate) prefix: Option<(EncodeKey, u32)>,
    /// When its first text was ready.
    pub(crate) first_text: Option<Tick>,
    pub(crate) playback: Playback,
    /// Segments not finished yet, in order. At most one is active in the lm lane.
    pub(crate) segments: VecDeque<Segment>,
    /// Index the next segment must have.
    pub(crate) next_segment: u32,
    /// No further segment will come.
    pub(crate) no_more: bool,
    /// Its terminal event has been given out; only fences are awaited.
    pub(crate) finished: bool,
    /// A bound ended one of its segments.
    pub(crate) capped: bool,
    /// Its first prefill has been launched.
    pub(crate) admitted: bool,
    pub(crate) slot: Option<SlotId>,
    /// Where on the ladder its chunks start.
    pub(crate) rung: usize,
    /// Chunks dispatched.
    pub(crate) chunks: u32,
    /// Frames of segments that are finished and gone.
    pub(crate) frames_before: u64,
    /// Frames dispatched to the codec: the position of the next chunk.
    pub(crate) dispatched: u64,
    /// Frames made into sound.
    pub(crate) committed: u64,
    pub(crate) first_commit: Option<Tick>,
    /// When the head chunk's frames all existed.
    pub(crate) head_ready: Option<Tick>,
    /// The head chunk has been seen ready and not urgent: turning urgent now is a promotion.
    pub(crate) head_waited: bool,
    /// The head chunk's promotion has been counted.
    pub(crate) head_promoted: bool,
    /// A background batch would make the chunk after the head late.
    pub(crate) forced_urgent: bool,
    /// The next step's page is not there yet.
    pub(crate) page_stalled: bool,
    /// Left out of decode because it is far ahead.
    pub(crate) yielding: bool,
    pub(crate) last_activity: Tick,
    /// The lm steps that had ended when it was cancelled.
    pub(crate) cancelled_at: Option<u64>,
    /// The lm has let go of it since, and that has been counted.
    pub(crate) lm_freed: bool,
    pub(crate) usage: SchedUsage,
    /// What the index holds of it, and how long steps leave that as it is.
    pub(crate) entry: Entry,
    pub(crate) steady: Steady,
    claims: [Claim; 3],
}

/// A context's hold on one lane.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    version: Version,
    /// Launches whose fence has not passed.
    in_flight: u32,
}

/// One piece of a context's text.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) index: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) ids: u32,
    pub(crate) closed: bool,
    pub(crate) streamed: bool,
    pub(crate) frames_predicted: u32,
    pub(crate) frames_max: u32,
    /// When it could first have been prefilled.
    pub(crate) ready_at: Tick,
    /// Steps launched, prefill included: the next step's number. 0 until the prefill is launched.
    pub(crate) launched: u32,
    /// Frames that exist.
    pub(crate) made: u32,
    /// Frames dispatched to the codec, and those of them made into sound.
    pub(crate) dispatched: u32,
    pub(crate) committed: u32,
    /// Frames it has in all, once the lm lane is done with it.
    pub(crate) total: Option<u32>,
    pub(crate) reason: FinishReason,
    /// lm launches that name it and whose fence has not passed.
    pub(crate) lm_in_flight: u32,
    pub(crate) pages: Vec<PageId>,
    /// How many of them, at the end, no launch has named yet.
    pub(crate) fresh_pages: u32,
    /// Pages promised to it and not taken.
    pub(crate) promised: u32,
    pub(crate) dry_since: Option<Tick>,
    /// Its prefill was due and found no slot or too few pages (counted once).
    pub(crate) blocked: bool,
    pub(crate) guard: Guard,
}

impl Context {
    pub(crate) fn new(
        id: ContextId,
        arrival: Tick,
        tenant: u32,
        exact_frames: Option<u32>,
        encode: Option<EncodeKey>,
        now: Tick,
    ) -> Self {
        Self {
            id,
            arrival,
            tenant,
            exact_frames,
            encode,
            prefix: None,
            first_text: None,
            playback: Playback::NotStarted,
            segments: VecDeque::new(),
            next_segment: 0,
            no_more: false,
            finished: false,
            capped: false,
            admitted: false,
            slot: None,
            rung: 0,
            chunks: 0,
            frames_before: 0,
            dispatched: 0,
            committed: 0,
            first_commit: None,
            head_ready: None,
            head_waited: false,
            head_promoted: false,
            forced_urgent: false,
            page_stalled: false,
            yielding: false,
            last_activity: now,
            cancelled_at: None,
            lm_freed: false,
            usage: SchedUsage::default(),
            entry: Entry::default(),
            steady: Steady::default(),
            claims: [Claim::default(); 3],
        }
    }

    /// The segment the lm lane works on.
    pub(crate) fn active(&self) -> Option<&Segment> {
        self.find(|segment| segment.is_active())
    }

    /// The first segment of this kind. It is nearly always the first of all, and this is asked at every row.
    pub(crate) fn find(&self, is: impl Fn(&&Segment) -> bool) -> Option<&Segment> {
        match self.segments.front() {
            Some(first) if is(&first) => Some(first),
            _ => self.segments.iter().find(is),
        }
    }

    fn find_mut(&mut self, is: impl Fn(&Segment) -> bool) -> Option<&mut Segment> {
        let at = match self.segments.front() {
            Some(first) if is(first) => 0,
            _ => self.segments.iter().position(is)?,
        };
        self.segments.get_mut(at)
    }

    pub(crate) fn active_mut(&mut self) -> Option<&mut Segment> {
        self.find_mut(Segment::is_active)
    }

    /// The segment whose prefill comes next, if the lm lane is done with all before it.
    pub(crate) fn waiting(&self) -> Option<&Segment> {
        self.find(|segment| segment.total.is_none()).filter(|segment| segment.launched == 0)
    }

    pub(crate) fn segment_mut(&mut self, index: u32) -> Option<&mut Segment> {
        self.find_mut(|segment| segment.index == index)
    }

    /// Position in the context of a segment's first frame, as far as the segments before it are done.
    pub(crate) fn base_of(&self, index: u32) -> u64 {
        if self.segments.front().is_some_and(|first| first.index >= index) {
            return self.frames_before;
        }
        let before = self.segments.iter().take_while(|segment| segment.index < index);
        self.frames_before
            + before.map(|segment| u64::from(segment.total.unwrap_or(segment.made))).sum::<u64>()
    }

    /// Frame bound of a segment, and why reaching it ends the segment.
    pub(crate) fn frame_cap(&self, segment: &Segment) -> (u32, FinishReason) {
        match self.exact_frames {
            Some(exact) => {
                let left = u64::from(exact).saturating_sub(self.base_of(segment.index));
                (left.min(u64::from(u32::MAX)) as u32, FinishReason::Done)
            }
            None => (segment.frames_max, FinishReason::Capped),
        }
    }

    pub(crate) fn in_flight(&self, lane: Lane) -> u32 {
        self.claims[index(lane)].in_flight
    }

    pub(crate) fn codec_in_flight(&self) -> bool {
        self.in_flight(Lane::Background) + self.in_flight(Lane::Urgent) > 0
    }

    pub(crate) fn anything_in_flight(&self) -> bool {
        self.claims.iter().any(|claim| claim.in_flight > 0)
    }

    /// One more launch names the context. A launch that follows another still in flight extends its
    /// claim; the first one starts a new claim under a new version.
    pub(crate) fn claim(&mut self, lane: Lane) -> Version {
        let claim = &mut self.claims[index(lane)];
        if claim.in_flight == 0 {
            claim.version.0 = claim.version.0.wrapping_add(1);
        }
        claim.in_flight += 1;
        claim.version
    }

    /// A launch's fence has passed; true when what it says still counts.
    pub(crate) fn fence(&mut self, lane: Lane, version: Version) -> bool {
        let claim = &mut self.claims[index(lane)];
        claim.in_flight = claim.in_flight.saturating_sub(1);
        self.is_current(lane, version)
    }

    /// Whether what a launch of this version says counts.
    pub(crate) fn is_current(&self, lane: Lane, version: Version) -> bool {
        self.claims[index(lane)].version == version && !self.finished
    }

    /// Makes every launch in flight on `lane` stale.
    pub(crate) fn disown(&mut self, lane: Lane) {
        let claim = &mut self.claims[index(lane)];
        claim.version.0 = claim.version.0.wrapping_add(1);
    }

    /// Whether the context may be forgotten. The one predicate for it.
    pub(crate) fn is_removable(&self) -> bool {
        self.finished && !self.anything_in_flight()
    }

    /// Whether nothing can go on before more text comes: what the idle limit is for.
    pub(crate) fn is_waiting_for_text(&self) -> bool {
        if self.finished || self.no_more || self.codec_in_flight() {
            return false;
        }
        match self.segments.back() {
            None => true,
            Some(last) => last.dry_since.is_some(),
        }
    }
}

impl Segment {
    /// Prefilled and not ended.
    pub(crate) fn is_active(&self) -> bool {
        self.launched > 0 && self.total.is_none()
    }

    /// The text of step `step` (at least 1); `None` while it is not known.
    pub(crate) fn text_at(&self, step: u32) -> Option<TextInput> {
        if !self.streamed {
            return Some(TextInput::Pad);
        }
        if step < self.ids {
            return Some(TextInput::Id(step));
        }
        self.closed.then_some(if step == self.ids { TextInput::End } else { TextInput::Pad })
    }

    /// Whether a step may end the speech. With streamed text only after the last id, whenever that
    /// was learnt: so the codes never depend on how the text was split.
    pub(crate) fn eos_allowed_at(&self, step: u32) -> bool {
        !self.streamed || matches!(self.text_at(step), Some(TextInput::End | TextInput::Pad))
    }

    /// Every frame has been made into sound and no lm launch names it.
    pub(crate) fn is_done(&self) -> bool {
        self.total == Some(self.committed) && self.dispatched == self.committed && self.lm_in_flight == 0
    }

    /// Frames that exist, count, and are not dispatched.
    pub(crate) fn waiting_frames(&self) -> u32 {
        self.total.map_or(self.made, |total| total.min(self.made)).saturating_sub(self.dispatched)
    }

    /// Key/value positions written once step `step` has run.
    pub(crate) fn positions_after(&self, step: u32) -> u32 {
        self.prompt_tokens.saturating_add(step)
    }
}

const fn index(lane: Lane) -> usize {
    match lane {
        Lane::Background => 0,
        Lane::Lm => 1,
        Lane::Urgent => 2,
    }
}
