//! Rows by which stages are measured, and the launches that tell what prompts with riders cost.

use device::{PROMPTS_MAX, row_buckets};
use models::{DecodeRow, NextText, PlacedModel, PrefillRow, Prompt, SpeechPlan, StageInputs};

use crate::warm::{MEASURED_POSITION, pages_for};

/// Prompt positions they are measured with, as far as whole prompts fill them.
const POSITIONS: [u32; 4] = [32, 64, 128, 256];

/// Rows to measure with; fewer cost what the first do.
pub(crate) fn rows(rows_max: u32) -> Vec<u32> {
    row_buckets(PROMPTS_MAX.min(rows_max), rows_max)
}

/// Positions of the prompts in each launch, ascending.
pub(crate) fn lengths(prompt: &Prompt) -> Vec<u32> {
    let each = u32::try_from(prompt.positions()).unwrap_or(u32::MAX).max(1);
    let mut lengths = POSITIONS.map(|positions| (positions / each).max(1) * each).to_vec();
    lengths.dedup();
    lengths
}

/// A launch of `rows` contexts, as many of them with the whole prompt as make `length` positions.
pub(crate) fn inputs(
    model: &dyn PlacedModel,
    plan: &SpeechPlan,
    prompt: &Prompt,
    rows: u32,
    length: u32,
) -> StageInputs {
    let positions = prompt.positions();
    let each = u32::try_from(positions).unwrap_or(u32::MAX).max(1);
    let prompts = (length / each).clamp(1, rows);
    let covered = positions.max(MEASURED_POSITION as usize + 1);
    let pages: Vec<_> = (0..rows).map(|slot| pages_for(slot, covered)).collect();
    let begun: Vec<_> = (0..prompts).map(|slot| begin(slot, prompt, plan, &pages[slot as usize])).collect();
    let rider = |slot: u32| step(slot, MEASURED_POSITION, plan, &pages[slot as usize]);
    let riders: Vec<_> = (prompts..rows).map(rider).collect();
    model.prefill_inputs(&begun, &riders)
}

/// A whole prompt in a slot.
pub(crate) fn begin<'a>(
    slot: u32,
    prompt: &'a Prompt,
    plan: &SpeechPlan,
    pages: &'a [u32],
) -> PrefillRow<'a> {
    PrefillRow { slot, prompt, pages, from: 0, sampling: plan.sampling, seed: 0, allow_end: false }
}

/// A step of a context that stands at `position`.
pub(crate) fn step<'a>(slot: u32, position: u32, plan: &SpeechPlan, pages: &'a [u32]) -> DecodeRow<'a> {
    DecodeRow {
        slot,
        position,
        step: 1,
        text: NextText::Padding,
        pages,
        sampling: plan.sampling,
        seed: 0,
        allow_end: false,
    }
}
