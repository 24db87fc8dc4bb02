//! What stands at each position of a prompt.
//!
//! Every position sums a text side and a code side. The published reference (PyPI qwen-tts 0.1.1) lays
//! out: instruction and role (text only); a prefix of control codes over text padding, with the speaker
//! at its end; one position of begin-of-text over code padding; then the text itself, in one of four
//! ways (whole or streamed, with or without a reference in the prompt).

use std::sync::Arc;

use contract::{EngineError, Layout};

use super::config::Config;
use crate::program::Reference;
use crate::{Prompt, SpeechPlan, VoiceFeatures};

/// Adds nothing on the code side.
const NONE: i32 = -1;

/// Text ids that must be known before a prompt of this plan can be made; `None` for the whole segment.
pub(crate) fn text_ids_needed(plan: &SpeechPlan, voice: Option<&VoiceFeatures>) -> Option<usize> {
    match (plan.layout, voice.and_then(|voice| voice.reference.as_ref())) {
        (Layout::Whole, _) => None,
        (Layout::Streamed, None) => Some(1),
        // The overlay puts one text id on each position of begin-of-codes and reference frames.
        (Layout::Streamed, Some(reference)) => Some(overlay_room(reference).max(1)),
    }
}

/// Text ids of the segment that the overlay has positions for.
fn overlay_room(reference: &Reference) -> usize {
    (reference.frames as usize + 1).saturating_sub(reference.text_ids.len())
}

/// Lays out one segment.
///
/// # Errors
/// No text ids, or a plan whose clip was not encoded.
pub(crate) fn lay_out(
    config: &Config,
    role: &[u32],
    plan: &SpeechPlan,
    voice: Option<&VoiceFeatures>,
    text_ids: &[u32],
    over: bool,
) -> Result<Prompt, EngineError> {
    if text_ids.is_empty() {
        return Err(internal("a prompt was asked for without text"));
    }
    if plan.clip.is_some() && voice.is_none() {
        return Err(internal("a prompt was asked for before its reference was encoded"));
    }
    let mut layout = PromptBuilder::new(config);
    for &id in plan.instructions.iter().chain(role) {
        layout.push(id, NONE);
    }
    layout.prefix(plan, voice.and_then(|voice| voice.speaker.clone()));
    let reference = voice.and_then(|voice| voice.reference.as_ref());
    layout.prompt.shared_positions = layout.prompt.positions();
    match (plan.layout, reference) {
        (Layout::Whole, None) => layout.whole(text_ids),
        (Layout::Whole, Some(reference)) => layout.whole_in_context(reference, text_ids),
        (Layout::Streamed, None) => layout.streamed(text_ids[0]),
        (Layout::Streamed, Some(reference)) => layout.streamed_in_context(reference, text_ids, over)?,
    }
    Ok(layout.prompt)
}

struct PromptBuilder<'a> {
    config: &'a Config,
    prompt: Prompt,
}

impl<'a> PromptBuilder<'a> {
    fn new(config: &'a Config) -> Self {
        let prompt = Prompt {
            text_ids: Vec::new(),
            codes: Vec::new(),
            speaker_at: None,
            speaker: None,
            shared_positions: 0,
            text_ids_before: Vec::new(),
            text_ids_used: 0,
            text_end_used: false,
        };
        Self { config, prompt }
    }

    /// One position with at most one code, in the first group.
    fn push(&mut self, text: u32, code: i32) {
        self.prompt.text_ids.push(text as i32);
        self.prompt.codes.push(code);
        self.prompt.codes.resize(self.prompt.text_ids.len() * self.config.talker.groups, NONE);
    }

    /// One position with a whole frame of codes.
    fn push_frame(&mut self, text: u32, codes: &[i32]) {
        self.prompt.text_ids.push(text as i32);
        self.prompt.codes.extend_from_slice(codes);
    }

    fn prefix(&mut self, plan: &SpeechPlan, speaker: Option<Arc<[f32]>>) {
        let (text, codec) = (self.config.text, self.config.talker.codec);
        let mut codes = Vec::new();
        match plan.language {
            Some(language) => codes.extend([codec.think, codec.think_begin, language, codec.think_end]),
            None => codes.extend([codec.no_think, codec.think_begin, codec.think_end]),
        }
        codes.extend(plan.speaker);
        for code in codes {
            self.push(text.pad, code as i32);
        }
        if speaker.is_some() {
            self.prompt.speaker_at = Some(self.prompt.text_ids.len());
            self.prompt.speaker = speaker;
            self.push(text.pad, NONE);
        }
        self.push(text.begin, codec.pad as i32);
    }

    fn whole(&mut self, text_ids: &[u32]) {
        let (text, codec) = (self.config.text, self.config.talker.codec);
        for &id in text_ids {
            self.push(id, codec.pad as i32);
        }
        self.push(text.end, codec.pad as i32);
        self.push(text.pad, codec.begin as i32);
        self.used(text_ids.len(), true);
    }

    fn whole_in_context(&mut self, reference: &Reference, text_ids: &[u32]) {
        let (text, codec) = (self.config.text, self.config.talker.codec);
        self.prompt.shared_positions += reference.text_ids.len();
        for &id in reference.text_ids.iter().chain(text_ids) {
            self.push(id, codec.pad as i32);
        }
        self.push(text.end, codec.pad as i32);
        self.push(text.pad, codec.begin as i32);
        for frame in reference.codes.chunks_exact(self.config.talker.groups) {
            self.push_frame(text.pad, frame);
        }
        self.used(text_ids.len(), true);
    }

    fn streamed(&mut self, first: u32) {
        self.push(first, self.config.talker.codec.begin as i32);
        self.used(1, false);
    }

    /// Text runs alongside begin-of-codes and the reference frames, padded where it is shorter.
    fn streamed_in_context(
        &mut self,
        reference: &Reference,
        text_ids: &[u32],
        over: bool,
    ) -> Result<(), EngineError> {
        let text = self.config.text;
        let positions = reference.frames as usize + 1;
        self.prompt.shared_positions += reference.text_ids.len().min(positions);
        let room = overlay_room(reference);
        let used = room.min(text_ids.len());
        let end_used = used < room && over;
        if used < room && !over {
            return Err(internal("a prompt was asked for before its text was known"));
        }
        let end = end_used.then_some(text.end);
        let side = reference.text_ids.iter().chain(&text_ids[..used]).copied().chain(end);
        let mut side = side.chain(std::iter::repeat(text.pad));
        let begin = self.config.talker.codec.begin as i32;
        self.push(side.next().unwrap_or(text.pad), begin);
        for frame in reference.codes.chunks_exact(self.config.talker.groups) {
            self.push_frame(side.next().unwrap_or(text.pad), frame);
        }
        let before = reference.text_ids.get(positions..).unwrap_or_default();
        self.prompt.text_ids_before = before.to_vec();
        self.used(used, end_used);
        Ok(())
    }

    fn used(&mut self, text_ids: usize, end: bool) {
        self.prompt.text_ids_used = text_ids;
        self.prompt.text_end_used = end;
    }
}

fn internal(what: &str) -> EngineError {
    EngineError::Internal { what: what.to_owned() }
}
