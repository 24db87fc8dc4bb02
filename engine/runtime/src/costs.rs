//! What stages cost here, measured before the first request: what the scheduler starts from, and goes on correcting.

use contract::{EngineInfo, Lane, Partition, Span, Stage, VoiceChoice};
use device::{ExecutableId, row_buckets};
use models::{CodecRow, PlacedModel, Prompt, SpeechPlan, StageInputs, TextLogic, VoiceFeatures};
use sched::{CostTable, Profile, SchedConfig};

use crate::OpenError;
use crate::ride;
use crate::warm::{MEASURED_POSITION, POSITIONS_MAX, Warming, pages_for, warm_request};

impl Warming<'_> {
    /// Measures every stage at a few shapes.
    pub(crate) fn measured_profile(
        &mut self,
        text: &dyn TextLogic,
        info: &EngineInfo,
        voice: Option<&VoiceFeatures>,
        config: &SchedConfig,
    ) -> Result<Profile, OpenError> {
        let slots = config.slots;
        let plan = text.plan(&warm_request(info, VoiceChoice::Default)).map_err(OpenError::Warming)?;
        let mut segment = text.segment();
        let mut ids = segment.push("Warm up.").map_err(OpenError::Warming)?;
        ids.extend(segment.release());
        let prompt = self.model.prompt(&plan, voice, &ids, true).map_err(OpenError::Warming)?;

        let prefill = self.measure_prefill(&plan, &prompt)?;
        let rides = self.measure_rides(&plan, &prompt, config)?;
        // Recorded shapes are measured one by one; elsewhere a step grows by what a row costs.
        let rows: Vec<u32> = if self.backend.costs_by_bucket() {
            row_buckets(1, slots)
        } else {
            [1, 4].into_iter().filter(|rows| *rows <= slots).collect()
        };
        let mut decode = Vec::new();
        for &count in &rows {
            decode.push(self.measure_decode(&plan, count)?);
        }
        let decode = CostTable::new(rows, vec![MEASURED_POSITION], decode)?;
        let frame_span = Span::of_samples(u64::from(self.facts.samples_per_frame), self.facts.sample_rate);
        let buckets = row_buckets(1, slots);
        let codec_buckets = row_buckets(1, self.codec_rows);
        let mut profile = Profile::new(frame_span, buckets, codec_buckets, self.facts.codec_lengths.clone())
            .with_cost(Stage::Decode, Partition::Lm, decode)
            .with_cost(Stage::Prefill, Partition::Whole, prefill.clone())
            .with_cost(Stage::Prefill, Partition::Lm, rides.unwrap_or(prefill))
            // An encode is rare and corrected at once; a clip costs about a hundredth of its length.
            .with_cost(
                Stage::Encode,
                Partition::Whole,
                CostTable::new(vec![1], vec![1, 240_000], vec![1_000, 100_000])?,
            );
        profile.look_ahead = self.facts.look_ahead;
        profile.rows_per_context = self.facts.rows_per_context;
        profile.state_grows = self.facts.state_grows;
        for partition in [Partition::Whole, Partition::Background] {
            let table = self.measure_codec(partition)?;
            profile = profile.with_cost(Stage::Codec, partition, table);
        }
        Ok(profile)
    }

    fn measure_prefill(&mut self, plan: &SpeechPlan, prompt: &Prompt) -> Result<CostTable, OpenError> {
        let pages = [0, 1].map(|slot| pages_for(slot, prompt.positions()));
        let mut micros = Vec::new();
        for rows in [1, 2] {
            let row = |slot| ride::begin(slot, prompt, plan, &pages[slot as usize]);
            let rows: Vec<_> = (0..rows).map(row).collect();
            let executable = self.built(Stage::Prefill, 0, Partition::Whole)?;
            micros.push(
                self.measure(Lane::Lm, executable, || self_inputs(|model| model.prefill_inputs(&rows, &[])))?,
            );
        }
        let positions = u32::try_from(prompt.positions()).unwrap_or(u32::MAX).max(1);
        let per_position = (micros[1].saturating_sub(micros[0]) / positions).max(1);
        let base = micros[0].saturating_sub(per_position * positions);
        let at = |positions: u32| base + per_position * positions;
        Ok(CostTable::new(vec![1], vec![1, POSITIONS_MAX], vec![at(1), at(POSITIONS_MAX)])?)
    }

    /// Prompts with riders, by rows and by the prompts' positions; `None` where none ride.
    fn measure_rides(
        &mut self,
        plan: &SpeechPlan,
        prompt: &Prompt,
        &SchedConfig { ride_rows_max: rows_max, ride_tokens_max, .. }: &SchedConfig,
    ) -> Result<Option<CostTable>, OpenError> {
        // The voice's prompt may be too long for riders; shorter ones cost what the scheduler then sees.
        if rows_max == 0 || prompt.positions() > ride_tokens_max as usize {
            return Ok(None);
        }
        let (rows, lengths) = (ride::rows(rows_max), ride::lengths(prompt));
        let executable = self.built(Stage::Prefill, 0, Partition::Lm)?;
        let mut micros = Vec::new();
        for &count in &rows {
            for &length in &lengths {
                let inputs = || self_inputs(|model| ride::inputs(model, plan, prompt, count, length));
                micros.push(self.measure(Lane::Lm, executable, inputs)?);
            }
        }
        Ok(Some(CostTable::new(rows, lengths, micros)?))
    }

    fn measure_decode(&mut self, plan: &SpeechPlan, count: u32) -> Result<u32, OpenError> {
        let pages: Vec<_> = (0..count).map(|slot| pages_for(slot, MEASURED_POSITION as usize + 1)).collect();
        let row = |slot| ride::step(slot, MEASURED_POSITION, plan, &pages[slot as usize]);
        let rows: Vec<_> = (0..count).map(row).collect();
        let executable = self.built(Stage::Decode, 0, Partition::Lm)?;
        self.measure(Lane::Lm, executable, || self_inputs(|model| model.decode_inputs(&rows)))
    }

    /// Every recorded bucket at each length. Where live rows count, one row at each: a batch costs what its rows
    /// cost one after the other, and what that leaves wrong the scheduler corrects from its first launches on.
    fn measure_codec(&mut self, partition: Partition) -> Result<CostTable, OpenError> {
        let lane = if partition == Partition::Whole { Lane::Urgent } else { Lane::Background };
        let lengths = self.facts.codec_lengths.clone();
        let by_bucket = self.backend.costs_by_bucket();
        let measured = if by_bucket { row_buckets(1, self.codec_rows) } else { vec![1] };
        let mut micros = Vec::new();
        for &count in &measured {
            for &length in &lengths {
                let codes = vec![0; (length * self.facts.code_groups) as usize];
                let rows: Vec<_> =
                    (0..count).map(|slot| CodecRow { slot, start: 0, codes: &codes }).collect();
                let executable = self.built(Stage::Codec, length, partition)?;
                let inputs = || self_inputs(|model| model.codec_inputs(&rows, length));
                micros.push(self.measure(lane, executable, inputs)?);
            }
        }
        // A server of one context has batches of one row, and nothing to extrapolate to.
        if by_bucket || self.codec_rows == 1 {
            return Ok(CostTable::new(measured, lengths, micros)?);
        }
        let all_rows: Vec<u32> = micros.iter().map(|one| one.saturating_mul(self.codec_rows)).collect();
        micros.extend(all_rows);
        Ok(CostTable::new(vec![1, self.codec_rows], lengths, micros)?)
    }

    /// Runs a launch once to touch its memory and once to measure it.
    fn measure<F>(
        &mut self,
        lane: Lane,
        executable: ExecutableId,
        inputs: impl Fn() -> F,
    ) -> Result<u32, OpenError>
    where
        F: FnOnce(&dyn PlacedModel) -> StageInputs,
    {
        let mut took = 0;
        for _ in 0..2 {
            let made = inputs()(self.model.as_ref());
            let done = self.run(lane, executable, made)?;
            took = u32::try_from(done.finished.since(done.started).as_micros()).unwrap_or(u32::MAX);
            done.result?;
        }
        Ok(took.max(1))
    }
}

/// Names the closure's argument type where inference needs it.
fn self_inputs<F: FnOnce(&dyn PlacedModel) -> StageInputs>(make: F) -> F {
    make
}
