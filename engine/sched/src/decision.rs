//! What the scheduler wants launched.

use contract::{ContextId, Lane, LaunchId, PageId, Partition, SlotId, Span, Stage};

use crate::EncodeKey;

/// One launch. The runtime puts it at the end of its lane's queue and answers with exactly one
/// [`crate::Completion`].
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Codec batch, on [`Partition::Background`] or, in the urgent lane, [`Partition::Whole`].
    Codec {
        launch: LaunchId,
        lane: Lane,
        /// Rows of the executable: at least `rows.len()`.
        bucket: u32,
        /// Captured length: at least every row's `frames`; shorter rows are padded.
        length: u32,
        rows: Vec<CodecRow>,
        why: Why,
    },
    /// One backbone step for each row, on [`Partition::Lm`].
    Decode { launch: LaunchId, bucket: u32, rows: Vec<DecodeRow>, why: Why },
    /// A reference clip, on [`Partition::Whole`], in the lm lane.
    Encode {
        launch: LaunchId,
        /// The first context that waits for it.
        context: ContextId,
        key: EncodeKey,
        why: Why,
    },
    /// Several prompts packed into one launch of the lm lane. Each row makes frame 0.
    Prefill {
        launch: LaunchId,
        partition: Partition,
        rows: Vec<PrefillRow>,
        /// The running contexts' decode step, when it rides along. Their frames follow the prompts' in
        /// [`crate::LaunchResult::Frames`].
        riders: Vec<DecodeRow>,
        why: Why,
    },
}

/// Why it was launched, recorded with every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// The rule that fired; see [`reason`].
    pub reason: &'static str,
    pub counterfactual: Counterfactual,
    /// Predicted running time, from the profile.
    pub expected: Span,
}

/// What plain round robin (contexts in a circle, prefill first, a codec call as soon as any chunk is
/// ready, one lane) would have launched at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counterfactual {
    pub stage: Stage,
    pub rows: u32,
    /// Its first row.
    pub head: Option<ContextId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefillRow {
    pub context: ContextId,
    pub slot: SlotId,
    pub segment: u32,
    pub prompt_tokens: u32,
    /// The row's whole page table so far, in order: it starts a new one.
    pub pages: Vec<PageId>,
    /// Positions of the prompt that stand in its first pages already: a shared prefix. Only the rest
    /// is to be prefilled.
    pub cached: u32,
    /// Whether frame 0 may be end-of-speech (the model's own minimum length still holds).
    pub eos_allowed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeRow {
    pub context: ContextId,
    pub slot: SlotId,
    pub segment: u32,
    /// Makes frame `step` (at least 1) and writes position `prompt_tokens + step - 1`.
    pub step: u32,
    pub text: TextInput,
    /// Pages to append to the row's table before the launch.
    pub pages: Vec<PageId>,
    pub eos_allowed: bool,
}

/// The text side of one step's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextInput {
    /// The end-of-text id: the step after the last id of a closed segment.
    End,
    /// The segment's text id with this index.
    Id(u32),
    /// The pad id: whole layout always, streamed layout after [`TextInput::End`].
    Pad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecRow {
    pub context: ContextId,
    pub slot: SlotId,
    pub segment: u32,
    /// First frame, counted within the segment.
    pub first_frame: u32,
    /// Valid frames: at least 1, at most the launch's `length`.
    pub frames: u32,
    /// The codec state starts anew with this row.
    pub first_of_segment: bool,
    /// Known to be the segment's last. A segment whose end was learnt only after all its frames had
    /// been dispatched has no such row: [`crate::SchedOutput::SegmentFinished`] is the authority.
    pub last_of_segment: bool,
    /// Deadline minus now at launch; [`Span::MAX`] for a paused listener.
    pub slack: Span,
}

/// The rules that launch, by name.
pub mod reason {
    /// Background: at least B chunks were ready.
    pub const BACKGROUND_FULL: &str = "background_full";
    /// Background: every context that could join had a chunk ready.
    pub const BACKGROUND_ALL: &str = "background_all_joined";
    /// Background: one more lm step would have broken a member's deadline.
    pub const BACKGROUND_DEADLINE: &str = "background_deadline";
    /// Background: the lm lane had nothing to generate.
    pub const BACKGROUND_LM_IDLE: &str = "background_lm_idle";
    /// Urgent: at least one row is its context's first chunk.
    pub const URGENT_FIRST: &str = "urgent_first";
    /// Urgent: slack below the margin.
    pub const URGENT_SLACK: &str = "urgent_slack";
    /// Urgent: a background batch would have made its next chunk late.
    pub const URGENT_INVERSION: &str = "urgent_no_inversion";
    /// Decode: all runnable contexts fit.
    pub const DECODE_ALL: &str = "decode_all";
    /// Decode: more contexts than rows; least lm slack first.
    pub const DECODE_LEAST_SLACK: &str = "decode_least_slack";
    /// Encode or prefill: no running context is short of slack.
    pub const PREFILL_SLACK: &str = "prefill_slack_allows";
    /// Encode or prefill: chunks of running contexts may have to be cut short, and none comes late.
    pub const PREFILL_CUT: &str = "prefill_cut_chunks_allow";
    /// Encode or prefill: nothing could be decoded meanwhile.
    pub const PREFILL_IDLE: &str = "prefill_lm_idle";
    /// Prefill: the running contexts' step rides along.
    pub const PREFILL_RIDE: &str = "prefill_with_riders";
    /// Encode or prefill: deferred for as long as allowed.
    pub const PREFILL_CAP: &str = "prefill_deferral_cap";
    /// Encode or prefill: the prefill-first policy.
    pub const PREFILL_FIRST: &str = "prefill_first";
}

impl Decision {
    #[must_use]
    pub const fn launch(&self) -> LaunchId {
        match self {
            Self::Codec { launch, .. }
            | Self::Decode { launch, .. }
            | Self::Encode { launch, .. }
            | Self::Prefill { launch, .. } => *launch,
        }
    }

    #[must_use]
    pub const fn lane(&self) -> Lane {
        match self {
            Self::Codec { lane, .. } => *lane,
            Self::Decode { .. } | Self::Encode { .. } | Self::Prefill { .. } => Lane::Lm,
        }
    }

    #[must_use]
    pub const fn stage(&self) -> Stage {
        match self {
            Self::Codec { .. } => Stage::Codec,
            Self::Decode { .. } => Stage::Decode,
            Self::Encode { .. } => Stage::Encode,
            Self::Prefill { .. } => Stage::Prefill,
        }
    }

    #[must_use]
    pub const fn why(&self) -> &Why {
        match self {
            Self::Codec { why, .. }
            | Self::Decode { why, .. }
            | Self::Encode { why, .. }
            | Self::Prefill { why, .. } => why,
        }
    }

    /// Live rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Codec { rows, .. } => rows.len(),
            Self::Decode { rows, .. } => rows.len(),
            Self::Encode { .. } => 1,
            Self::Prefill { rows, riders, .. } => rows.len() + riders.len(),
        }
    }
}
