//! The text half of an utterance: deltas to the steps that an engine is taken through.

use contract::Tick;

use super::{EngineState, TAIL_WAIT, TextWork, Utterance};
use crate::reader::Part;
use crate::session::output::{EpochKey, Outbox};
use crate::wire::{ServerMessage, Text, TextSpoken, WireError, join};

impl Utterance {
    /// Takes the text of the next delta.
    pub(in crate::session) fn handle_text(&mut self, now: Tick, text: &Text, out: &mut Outbox) {
        self.began.get_or_insert(now);
        self.sequence += 1;
        let mut parts = Vec::new();
        match (self.half, text.lead) {
            (Some((high, _)), Some(low)) => {
                self.half = None;
                // `Json` gives only high halves as trail and only low ones as lead: they always join.
                let mut joined = [0; 4];
                if let Some(c) = join(high, low) {
                    self.characters += 1;
                    self.reader.push(c.encode_utf8(&mut joined), &mut parts);
                }
            }
            (Some(_), None) if text.is_empty() => {}
            (half, lead) => {
                if half.is_some() || lead.is_some() {
                    self.report_half(now, out);
                }
            }
        }
        self.characters += text.body.chars().count() as u64;
        self.reader.push(&text.body, &mut parts);
        if let Some(high) = text.trail {
            self.half = Some((high, self.sequence));
        }
        self.take(now, parts, out);
        self.wait_for_more(now);
    }

    /// Ends the current segment; `end` also ends the text.
    pub(in crate::session) fn handle_flush(&mut self, now: Tick, end: bool, out: &mut Outbox) {
        if self.half.is_some() {
            self.report_half(now, out);
        }
        let mut parts = Vec::new();
        self.reader.flush(&mut parts);
        self.take(now, parts, out);
        self.dry_at = None;
        if !end {
            self.flushes.handle_flush(self.alignment.segments());
            return;
        }
        self.text_ended = true;
        self.began.get_or_insert(now);
        if self.engine == EngineState::Unopened && self.work.is_empty() {
            self.fail(now, &WireError::EmptyText, out);
        } else if self.finished.is_none() && self.verdict.is_none() {
            self.work.push_back(TextWork::Finish);
        }
    }

    fn report_half(&mut self, now: Tick, out: &mut Outbox) {
        let sequence = self.half.take().map_or(self.sequence, |(_, sequence)| sequence);
        let error = WireError::LoneSurrogate { param: "text".to_owned(), sequence: Some(sequence) };
        out.error(now, &error, Some(self.key), None, None);
    }

    fn take(&mut self, now: Tick, parts: Vec<Part>, out: &mut Outbox) {
        let readings = self.reader.take_readings();
        if self.finished.is_some() || self.verdict.is_some() {
            return;
        }
        let EpochKey { context, epoch } = self.key;
        for reading in readings.into_iter().filter(|_| self.trace) {
            let (at, original, spoken) = (reading.at, reading.original, reading.said);
            let spoken = TextSpoken { context, epoch: epoch.0, at, original, spoken };
            out.send(now, &ServerMessage::TextSpoken(spoken));
        }
        for part in parts {
            self.alignment.handle_part(&part);
            match part {
                Part::Cut => {
                    self.work.push_back(TextWork::EndSegment);
                    self.shape.handle_cut();
                }
                Part::Skip(_) => {}
                Part::Pause { ms, .. } => {
                    self.breath |= ms > 0;
                    let silence = self.shape.handle_pause(ms);
                    self.put(silence, out);
                }
                Part::Speak { said, .. } => {
                    if std::mem::take(&mut self.breath) {
                        self.work.push_back(TextWork::Breath);
                    }
                    self.waiting += said.chars().count() as u64;
                    match self.work.back_mut() {
                        Some(TextWork::Text(waiting)) => waiting.push_str(&said),
                        _ => self.work.push_back(TextWork::Text(said)),
                    }
                }
            }
        }
    }

    pub(super) fn wait_for_more(&mut self, now: Tick) {
        let held = self.held_bytes > 0 || self.reader.held_bytes() > 0;
        let waits = self.streamed && held && !self.text_ended && self.finished.is_none();
        self.dry_at = waits.then(|| now + TAIL_WAIT);
    }

    /// The text has run dry: nothing more is held back for its sake.
    pub(super) fn release(&mut self, now: Tick, out: &mut Outbox) {
        self.dry_at = None;
        let held = self.held_bytes + u32::try_from(self.reader.held_bytes()).unwrap_or(u32::MAX);
        if held == 0 {
            return;
        }
        let mut parts = Vec::new();
        self.reader.release(&mut parts);
        self.take(now, parts, out);
        if self.reader.is_speaking() {
            self.work.push_back(TextWork::Release);
            let EpochKey { context, epoch } = self.key;
            out.send(now, &ServerMessage::TextReleased { context, epoch: epoch.0, held_bytes: held });
        }
        self.held_bytes = 0;
    }
}
