//! From a decision to a launch, and from a finished launch back to the scheduler.

use std::collections::BTreeMap;

use contract::{EngineError, Lane, LaunchId, LaunchSpan, Partition, Span, Stage, Tick};
use device::{Completed, HostTensor, Launch, Piece};
use models::{CodecRow, DecodeRow, PrefillRow, StageInputs};
use sched::{ChunkResult, Completion, Decision, FrameOutcome, FrameResult, LaunchResult, Why};

use crate::context::{Segment, Speaking};
use crate::contexts::RowName;
use crate::device_engine::DeviceEngine;
use crate::watch::Watched;

/// Launches in flight, and samples that wait for the scheduler's word.
#[derive(Default)]
pub(crate) struct Flights {
    open: BTreeMap<LaunchId, Flight>,
    pub(crate) samples: BTreeMap<(LaunchId, u32), Box<[f32]>>,
    /// Launches since start.
    pub(crate) launched: u64,
    /// The last in the order of stages of those that landed in this round.
    pub(crate) landed: Option<Stage>,
}

struct Flight {
    stage: Stage,
    why: Why,
    rows: Vec<RowName>,
    /// Captured codec length; 0 for other stages.
    length: u32,
}

impl DeviceEngine {
    pub(crate) fn launch(&mut self, now: Tick, decision: Decision) {
        let launch = decision.launch();
        let started = match decision {
            Decision::Encode { launch, key, why, .. } => return self.start_encode(now, launch, key, why),
            Decision::Prefill { launch, partition, rows, riders, why } => {
                self.launch_prefill(launch, partition, &rows, &riders, why)
            }
            Decision::Decode { launch, rows, why, .. } => self.launch_decode(launch, &rows, why),
            Decision::Codec { launch, lane, length, rows, why, .. } => {
                self.launch_codec(launch, lane, length, &rows, why)
            }
        };
        if let Err(error) = started {
            self.flights.open.remove(&launch);
            // All that are on a lost device will be told at once, and why.
            if self.backend.lost().is_some() {
                return;
            }
            let result = LaunchResult::Lost { what: error.to_string() };
            self.complete(now, Completion { launch, at: now, took: Span::ZERO, result });
        }
    }

    fn launch_prefill(
        &mut self,
        launch: LaunchId,
        partition: Partition,
        prompts: &[sched::PrefillRow],
        riders: &[sched::DecodeRow],
        why: Why,
    ) -> Result<(), EngineError> {
        let first =
            prompts.iter().map(|row| RowName { context: row.context, slot: row.slot, segment: row.segment });
        let names: Vec<RowName> = first.chain(riders.iter().map(name_of)).collect();
        for (row, name) in prompts.iter().zip(&names) {
            self.contexts.seat(&row.context, row.slot);
            let Some(segment) = self.contexts.row_mut(*name) else { continue };
            segment.pages = row.pages.iter().map(|page| device_page(page.0)).collect();
            let frames = self.text.frames_predicted(&segment.ids).min(self.facts.frames_max);
            segment.codes.reserve((frames * self.facts.code_groups) as usize);
        }
        self.append_pages(riders);
        let mut inputs = Vec::with_capacity(prompts.len());
        for (row, name) in prompts.iter().zip(&names) {
            let (speaking, segment) = self.lookup(*name)?;
            let prompt = segment.prompt.as_ref().ok_or_else(lost_tables)?;
            inputs.push(PrefillRow {
                slot: row.slot.0,
                prompt,
                pages: &segment.pages,
                from: row.cached as usize,
                sampling: speaking.plan.sampling,
                seed: segment.seed,
                allow_end: row.eos_allowed && prompt.text_end_used,
            });
        }
        let mut steps = Vec::with_capacity(riders.len());
        for (row, name) in riders.iter().zip(&names[prompts.len()..]) {
            let (speaking, segment) = self.lookup(*name)?;
            steps.push(decode_row(row, speaking, segment)?);
        }
        let inputs = self.model.prefill_inputs(&inputs, &steps);
        let flight = Flight { stage: Stage::Prefill, why, rows: names, length: 0 };
        self.take_off(launch, Lane::Lm, partition, flight, inputs, Vec::new())
    }

    fn launch_decode(
        &mut self,
        launch: LaunchId,
        rows: &[sched::DecodeRow],
        why: Why,
    ) -> Result<(), EngineError> {
        self.append_pages(rows);
        let names: Vec<RowName> = rows.iter().map(name_of).collect();
        let mut inputs = Vec::with_capacity(rows.len());
        for (row, name) in rows.iter().zip(&names) {
            let (speaking, segment) = self.lookup(*name)?;
            inputs.push(decode_row(row, speaking, segment)?);
        }
        let inputs = self.model.decode_inputs(&inputs);
        let flight = Flight { stage: Stage::Decode, why, rows: names, length: 0 };
        self.take_off(launch, Lane::Lm, Partition::Lm, flight, inputs, Vec::new())
    }

    fn append_pages(&mut self, rows: &[sched::DecodeRow]) {
        for row in rows.iter().filter(|row| !row.pages.is_empty()) {
            let Some(segment) = self.contexts.row_mut(name_of(row)) else { continue };
            segment.pages.extend(row.pages.iter().map(|page| device_page(page.0)));
        }
    }

    fn launch_codec(
        &mut self,
        launch: LaunchId,
        lane: Lane,
        length: u32,
        rows: &[sched::CodecRow],
        why: Why,
    ) -> Result<(), EngineError> {
        let lane = if self.without.urgent_lane { Lane::Background } else { lane };
        // A segment's stream starts from its voice's primed image. Here and not at prefill: the slot's
        // earlier segment may still have been decoding then, and by rule is not now.
        for row in rows.iter().filter(|row| row.first_of_segment) {
            let Some(voice) = self.contexts.get(&row.context).and_then(|speaking| speaking.voice.clone())
            else {
                continue;
            };
            for (state, image) in voice.codec_image() {
                self.backend.write_state(*state, row.slot.0, image).map_err(internal)?;
            }
        }
        let groups = self.facts.code_groups as usize;
        let name =
            |row: &sched::CodecRow| RowName { context: row.context, slot: row.slot, segment: row.segment };
        let mut inputs = Vec::with_capacity(rows.len());
        for row in rows {
            let (speaking, segment) = self.lookup(name(row))?;
            let from = row.first_frame as usize * groups;
            let to = from + row.frames as usize * groups;
            let start = speaking.voice.as_ref().map_or(0, |voice| voice.codec_start());
            inputs.push(CodecRow {
                slot: row.slot.0,
                start: start + row.first_frame,
                codes: segment.codes.get(from..to).ok_or_else(lost_tables)?,
            });
        }
        let inputs = self.model.codec_inputs(&inputs, length);
        let wanted = rows.iter().map(|row| self.model.samples(row.frames)).collect();
        let partition = if lane == Lane::Urgent { Partition::Whole } else { Partition::Background };
        let flight = Flight { stage: Stage::Codec, why, rows: rows.iter().map(name).collect(), length };
        self.take_off(launch, lane, partition, flight, inputs, wanted)
    }

    fn take_off(
        &mut self,
        launch: LaunchId,
        lane: Lane,
        partition: Partition,
        flight: Flight,
        inputs: StageInputs,
        wanted: Vec<usize>,
    ) -> Result<(), EngineError> {
        let missing = || EngineError::Internal { what: format!("no executable for {}", flight.stage.name()) };
        let executable = self.executables.find(flight.stage, flight.length, partition).ok_or_else(missing)?;
        let StageInputs { rows, tokens, inputs } = inputs;
        let (stage, predicted) = (flight.stage, flight.why.expected);
        self.flights.open.insert(launch, flight);
        self.flights.launched += 1;
        let launch = Launch { launch, lane, executable, rows, tokens, inputs, wanted };
        self.launch_watched(stage, predicted, launch)
    }

    /// Launches, and watches that it comes back.
    pub(crate) fn launch_watched(
        &mut self,
        stage: Stage,
        predicted: Span,
        launch: Launch,
    ) -> Result<(), EngineError> {
        let Launch { launch: id, lane, rows, .. } = launch;
        self.watch.took_off(Watched { launch: id, lane, stage, rows, predicted });
        let launched = self.backend.launch(launch);
        if launched.is_err() {
            self.watch.landed(id, false);
        }
        launched.map_err(internal)
    }

    pub(crate) fn handle_completed(&mut self, now: Tick, completed: Completed) {
        self.watch.landed(completed.launch, completed.result.is_ok());
        if self.is_encode_step(completed.launch) {
            return self.handle_encode_step(now, completed);
        }
        let Some(flight) = self.flights.open.remove(&completed.launch) else { return };
        self.flights.landed = self.flights.landed.max(Some(flight.stage));
        let Completed { launch, lane, started, finished, cores, pieces, result } = completed;
        let took = finished.since(started);
        let result = match result {
            Err(error) => LaunchResult::Lost { what: error.to_string() },
            Ok(_) if flight.stage == Stage::Codec => self.take_chunks(launch, &flight, pieces),
            Ok(outputs) => self.take_frames(&flight, &outputs),
        };
        let rows = u32::try_from(flight.rows.len()).unwrap_or(u32::MAX);
        let span = LaunchSpan {
            device: self.seat.device,
            launch,
            lane,
            stage: flight.stage,
            rows,
            started,
            finished,
            cores,
            reason: flight.why.reason,
        };
        self.shared.trace(span, flight.length);
        self.complete(now, Completion { launch, at: finished, took, result });
    }

    pub(crate) fn complete(&mut self, now: Tick, completion: Completion) {
        self.sched.handle_completion(now, completion);
        self.drain(now);
    }

    fn take_frames(&mut self, flight: &Flight, outputs: &[HostTensor]) -> LaunchResult {
        let frames = match self.model.frames(outputs) {
            Ok(frames) if frames.len() == flight.rows.len() => frames,
            Ok(_) => return LaunchResult::Lost { what: "rows went missing".to_owned() },
            Err(error) => return LaunchResult::Lost { what: error.to_string() },
        };
        let results = flight.rows.iter().zip(frames).map(|(row, frame)| {
            if frame.end {
                return FrameResult { outcome: FrameOutcome::EndOfSpeech, code_hash: 0 };
            }
            let code_hash = hash_codes(frame.codes);
            if let Some(segment) = self.contexts.row_mut(*row) {
                segment.codes.extend_from_slice(frame.codes);
            }
            FrameResult { outcome: FrameOutcome::Made, code_hash }
        });
        LaunchResult::Frames(results.collect())
    }

    fn take_chunks(&mut self, launch: LaunchId, flight: &Flight, pieces: Vec<Piece>) -> LaunchResult {
        if pieces.len() != flight.rows.len() {
            return LaunchResult::Lost { what: "rows went missing".to_owned() };
        }
        let chunks = (0..).zip(pieces).map(|(row, Piece { values, peak })| match peak {
            Some(peak) => {
                self.flights.samples.insert((launch, row), values);
                ChunkResult::Made { peak }
            }
            None => ChunkResult::NotFinite,
        });
        LaunchResult::Chunks(chunks.collect())
    }

    fn lookup(&self, name: RowName) -> Result<(&Speaking, &Segment), EngineError> {
        self.contexts.row(name).ok_or_else(lost_tables)
    }
}

fn decode_row<'a>(
    row: &sched::DecodeRow,
    speaking: &Speaking,
    segment: &'a Segment,
) -> Result<DecodeRow<'a>, EngineError> {
    let prompt = segment.prompt.as_ref().ok_or_else(lost_tables)?;
    let positions = u32::try_from(prompt.positions()).unwrap_or(u32::MAX);
    let ended = prompt.text_end_used || !matches!(row.text, sched::TextInput::Id(_));
    Ok(DecodeRow {
        slot: row.slot.0,
        position: positions + row.step - 1,
        step: row.step,
        text: segment.next_text(row.text),
        pages: &segment.pages,
        sampling: speaking.plan.sampling,
        seed: segment.seed,
        // Only once the text's end has been fed: else codes would depend on when deltas came.
        allow_end: row.eos_allowed && ended,
    })
}

const fn name_of(row: &sched::DecodeRow) -> RowName {
    RowName { context: row.context, slot: row.slot, segment: row.segment }
}

/// The scheduler's pages start at 0; the device keeps page 0 as scratch.
const fn device_page(page: u32) -> u32 {
    page + 1
}

fn lost_tables() -> EngineError {
    EngineError::Internal { what: "a launch names tables that are gone".to_owned() }
}

pub(crate) fn internal(error: device::DeviceError) -> EngineError {
    EngineError::Internal { what: error.to_string() }
}

/// Equal frames give equal hashes, which is all the repetition guard asks: FNV-1a over codes instead of bytes.
fn hash_codes(codes: &[i32]) -> u64 {
    codes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &code| {
        (hash ^ u64::from(code.cast_unsigned())).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
