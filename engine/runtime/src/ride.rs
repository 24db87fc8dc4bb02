//! The launches by which it is measured what prompts with riders cost.

use device::{PROMPTS_MAX, row_buckets};
use models::{DecodeRow, NextText, PlacedModel, PrefillRow, Prompt, Rider, SpeechPlan, StageInputs};

use crate::warm::{MEASURED_POSITION, pages_for};

/// Prompt positions they are measured with, as far as whole prompts fill them.
const POSITIONS: [u32; 3] = [64, 128, 256];

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
    let begin = |slot: u32| PrefillRow {
        slot,
        prompt,
        pages: &pages[slot as usize],
        from: 0,
        sampling: plan.sampling,
        seed: 0,
        allow_end: false,
    };
    let step = |slot: u32| Rider {
        row: DecodeRow {
            slot,
            position: MEASURED_POSITION,
            step: 1,
            text: NextText::Padding,
            pages: &pages[slot as usize],
            sampling: plan.sampling,
            seed: 0,
            allow_end: false,
        },
        codes: &[],
    };
    let prompts_rows: Vec<_> = (0..prompts).map(begin).collect();
    let riders: Vec<_> = (prompts..rows).map(step).collect();
    model.prefill_inputs(&prompts_rows, &riders)
}
