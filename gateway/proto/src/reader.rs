//! The text of one epoch on its way to a model: read for the ear, then cut into segments, with what was
//! written kept beside what is said.
//!
//! The ear stands before the segmenter, so that "3.5" and "Dr." end no sentence: they are words by then.

use std::collections::VecDeque;

use ear::{Ear, Span};

use crate::segmenter::{Piece, Segmenter, Zones};

/// A step of the text, in order. The originals of all parts are the text as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The segment ends here. It has spoken text.
    Cut,
    /// Silence between two segments; `original` is its markup.
    Pause { original: String, ms: u32 },
    /// Not for the model.
    Skip(String),
    /// Text of the current segment.
    Speak { said: String, runs: Vec<Run> },
}

/// Text that is said, beside what stands written for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub original: String,
    /// Scalar values said for it.
    pub said: u64,
    /// It is said as it stands, so that a part of it can be told.
    pub as_is: bool,
}

/// A span that is said otherwise than it is written, for the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Scalar values of the text before it.
    pub at: u64,
    pub original: String,
    pub said: String,
}

/// Reads and cuts the text of one epoch.
#[derive(Clone, Debug)]
pub struct Reader {
    /// None: the text is taken as it stands, markup and all.
    ear: Option<Ear>,
    segmenter: Segmenter,
    /// What the segmenter has and has not given back: scalar values said, and what is written for them
    /// where that differs.
    inside: VecDeque<(u64, Option<String>)>,
    /// Scalar values of the text given to the segmenter.
    at: u64,
    readings: Vec<Reading>,
    spans: Vec<Span>,
    pieces: Vec<Piece>,
}

impl Reader {
    #[must_use]
    pub fn new(ear: Option<Ear>, zones: Zones) -> Self {
        Self {
            ear,
            segmenter: Segmenter::new(zones),
            inside: VecDeque::new(),
            at: 0,
            readings: Vec::new(),
            spans: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Takes text in and appends what can go on to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        match &mut self.ear {
            None => self.give(text, None, out),
            Some(ear) => {
                ear.push(text, &mut self.spans);
                self.spans(out);
            }
        }
    }

    /// After a dry spell: lets go of what is held. Ends no segment.
    pub fn release(&mut self, out: &mut Vec<Part>) {
        if let Some(ear) = &mut self.ear {
            ear.release(&mut self.spans);
            self.spans(out);
        }
        self.segmenter.release(&mut self.pieces);
        self.pieces(out);
    }

    /// Ends the current segment, if there is one, and lets go of everything.
    pub fn flush(&mut self, out: &mut Vec<Part>) {
        if let Some(ear) = &mut self.ear {
            ear.flush(&mut self.spans);
            self.spans(out);
        }
        self.segmenter.flush(&mut self.pieces);
        self.pieces(out);
    }

    /// Whether a segment has text and no end.
    #[must_use]
    pub const fn is_speaking(&self) -> bool {
        self.segmenter.is_speaking()
    }

    /// Bytes that [`Reader::release`] would let go.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.segmenter.cluster_bytes() + self.ear.as_ref().map_or(0, Ear::held_bytes)
    }

    /// What was read otherwise than it stands written, since the last call.
    pub fn take_readings(&mut self) -> Vec<Reading> {
        std::mem::take(&mut self.readings)
    }

    fn spans(&mut self, out: &mut Vec<Part>) {
        for span in std::mem::take(&mut self.spans) {
            match span {
                Span::AsIs(text) => self.give(&text, None, out),
                Span::Said { original, said } => self.give(&said, Some(original), out),
                Span::Pause { original, ms } => {
                    self.segmenter.flush(&mut self.pieces);
                    self.pieces(out);
                    self.note(&original, &format!("<break time=\"{ms}ms\"/>"));
                    out.push(Part::Pause { original, ms });
                }
            }
        }
    }

    fn give(&mut self, said: &str, original: Option<String>, out: &mut Vec<Part>) {
        match &original {
            Some(original) => self.note(original, said),
            None => self.at += said.chars().count() as u64,
        }
        self.inside.push_back((said.chars().count() as u64, original));
        self.segmenter.push(said, &mut self.pieces);
        self.pieces(out);
    }

    fn note(&mut self, original: &str, said: &str) {
        if !original.is_empty() {
            let reading = Reading { at: self.at, original: original.to_owned(), said: said.to_owned() };
            self.readings.push(reading);
        }
        self.at += original.chars().count() as u64;
    }

    fn pieces(&mut self, out: &mut Vec<Part>) {
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Cut => out.push(Part::Cut),
                Piece::Skip(text) => {
                    let skipped = self.runs(&text);
                    out.push(Part::Skip(skipped.into_iter().map(|run| run.original).collect()));
                }
                Piece::Speak(said) => {
                    let runs = self.runs(&said);
                    out.push(Part::Speak { said, runs });
                }
            }
        }
    }

    /// What is written for text that comes back from the segmenter. A reading that is cut in two belongs to
    /// where it ends.
    fn runs(&mut self, said: &str) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut rest = said;
        while !rest.is_empty() {
            // The segmenter gives back exactly what it was given.
            let Some((left, original)) = self.inside.front_mut() else { break };
            let count = usize::try_from(*left).unwrap_or(usize::MAX);
            let end = rest.char_indices().nth(count).map_or(rest.len(), |(at, _)| at);
            let (part, after) = rest.split_at(end);
            rest = after;
            let taken = part.chars().count() as u64;
            *left -= taken;
            let ended = *left == 0;
            let as_is = original.is_none();
            let written = match original {
                None => part.to_owned(),
                Some(original) if ended => std::mem::take(original),
                Some(_) => String::new(),
            };
            if ended {
                self.inside.pop_front();
            }
            match runs.last_mut() {
                Some(last) if last.as_is && as_is => {
                    last.original.push_str(&written);
                    last.said += taken;
                }
                _ => runs.push(Run { original: written, said: taken, as_is }),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn reader(zones: Zones) -> Reader {
        Reader::new(Some(Ear::new(ear::language("english"), Arc::default())), zones)
    }

    fn original(parts: &[Part]) -> String {
        let runs = |runs: &[Run]| runs.iter().map(|run| run.original.clone()).collect::<String>();
        parts
            .iter()
            .map(|part| match part {
                Part::Cut => String::new(),
                Part::Pause { original, .. } | Part::Skip(original) => original.clone(),
                Part::Speak { runs: all, .. } => runs(all),
            })
            .collect()
    }

    fn segments(parts: &[Part]) -> Vec<String> {
        let mut all = vec![String::new()];
        for part in parts {
            match part {
                Part::Cut => all.push(String::new()),
                Part::Speak { said, .. } => all.last_mut().expect("one").push_str(said),
                Part::Pause { .. } | Part::Skip(_) => {}
            }
        }
        all.retain(|segment| !segment.is_empty());
        all
    }

    #[test]
    fn a_number_or_a_title_ends_no_segment_and_a_break_does() {
        let text = "It is 3.5 km to Dr. Hill's house. Go<break time=\"1s\"/> now, please.";
        let mut reader = reader(Zones::whole(200));
        let mut parts = Vec::new();
        reader.push(text, &mut parts);
        reader.flush(&mut parts);
        assert_eq!(
            segments(&parts),
            ["It is three point five kilometers to Doctor Hill's house.", "Go", "now, please."]
        );
        assert!(parts.iter().any(|part| matches!(part, Part::Pause { ms: 1_000, .. })));
        assert_eq!(original(&parts), text);
        let readings: Vec<_> = reader.take_readings().into_iter().map(|r| (r.at, r.original)).collect();
        let expected = [(6, "3.5 km"), (16, "Dr."), (36, "<break time=\"1s\"/>")];
        assert_eq!(readings, expected.map(|(at, text)| (at, text.to_owned())));
    }

    #[test]
    fn a_reading_longer_than_a_segment_is_cut_and_its_original_kept() {
        let text = format!("{} and $1,234,567.89.", "9".repeat(40));
        let mut reader = reader(Zones::streamed(60));
        let mut parts = Vec::new();
        for c in text.chars() {
            reader.push(&c.to_string(), &mut parts);
        }
        reader.flush(&mut parts);
        assert!(segments(&parts).len() > 3, "{parts:?}");
        assert!(segments(&parts).iter().all(|segment| segment.chars().count() <= 60));
        assert_eq!(original(&parts), text);
    }
}
