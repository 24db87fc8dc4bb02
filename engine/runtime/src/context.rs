//! The engine thread's own tables for one context: plan, voice, segments with their ids, prompt, pages
//! and codes. Dropped segment by segment, so that a long text keeps memory flat.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{OutputSink, Usage};
use models::{NextText, Prompt, SpeechPlan, VoiceFeatures};
use sched::{EncodeKey, TextInput};

pub(crate) struct Speaking {
    pub(crate) plan: SpeechPlan,
    pub(crate) sink: Arc<dyn OutputSink>,
    pub(crate) seed: u64,
    /// Present when the voice is a clip.
    pub(crate) key: Option<EncodeKey>,
    pub(crate) voice: Option<Arc<VoiceFeatures>>,
    /// Its clip was forgotten after it was opened: it speaks with it, and nothing of it is kept.
    pub(crate) forgotten: bool,
    pub(crate) segments: BTreeMap<u32, Segment>,
    /// Characters, and samples handed out, so far; the scheduler counts the rest.
    pub(crate) usage: Usage,
    /// No text follows; the scheduler hears of it once it knows every segment, which waits for the voice.
    pub(crate) finishing: bool,
}

/// Under which key the features of a plan's clip are kept.
pub(crate) fn plan_key(plan: &SpeechPlan) -> Option<EncodeKey> {
    plan.clip.as_ref().map(|planned| EncodeKey { hash: planned.clip.hash, mode: planned.mode })
}

#[derive(Default)]
pub(crate) struct Segment {
    pub(crate) ids: Vec<u32>,
    pub(crate) over: bool,
    /// Made when the scheduler is told that the segment is ready.
    pub(crate) prompt: Option<Prompt>,
    /// Device pages in position order.
    pub(crate) pages: Vec<u32>,
    /// `[frames, groups]`.
    pub(crate) codes: Vec<i32>,
    pub(crate) seed: u64,
}

impl Speaking {
    /// The voice is there, or none is needed.
    pub(crate) const fn voiced(&self) -> bool {
        self.key.is_none() || self.voice.is_some()
    }
}

impl Segment {
    /// Ids as the scheduler counts them: it takes the prompt to hold exactly one.
    pub(crate) fn schedulable_ids(&self) -> u32 {
        let (used, before) = self
            .prompt
            .as_ref()
            .map_or((1, 0), |prompt| (prompt.text_ids_used, prompt.text_ids_before.len()));
        u32::try_from((before + self.ids.len() + 1).saturating_sub(used)).unwrap_or(u32::MAX)
    }

    /// The text side of a step in the model's terms.
    pub(crate) fn next_text(&self, input: TextInput) -> NextText {
        match input {
            TextInput::End => NextText::End,
            TextInput::Pad => NextText::Padding,
            TextInput::Id(index) => {
                let (before, used) = self
                    .prompt
                    .as_ref()
                    .map_or((&[][..], 1), |prompt| (&prompt.text_ids_before[..], prompt.text_ids_used));
                // The scheduler's id 0 stands in the prompt, whatever that really holds.
                let own = self.ids.get(used..).unwrap_or(&[]);
                let id = before.iter().chain(own).nth((index as usize).saturating_sub(1));
                id.map_or(NextText::Padding, |&id| NextText::Id(id))
            }
        }
    }
}

/// One seed a segment, so that segments of one context draw differently and each is reproducible.
pub(crate) fn segment_seed(seed: u64, segment: u32) -> u64 {
    // SplitMix64's finaliser (Steele, Lea and Flood 2014): every bit of both inputs reaches every bit.
    let mut mixed = seed ^ u64::from(segment).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    if segment == 0 {
        return seed;
    }
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
