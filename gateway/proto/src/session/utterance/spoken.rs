//! What a listener who wants to know is told of the text that has been sent as sound.

use std::collections::VecDeque;

use contract::Span;

use super::Utterance;
use crate::alignment::{Pace, TimedCharacter};
use crate::wire::CLOCK_HZ;

/// Sound of a segment that may wait in an encoder for the next segment's: a packet, and what a resampler
/// holds back. It is no reason to wait with the news that the segment was spoken.
const HELD_MAX: Span = Span::from_millis(100);

/// Flushes whose text has not been spoken to its end.
#[derive(Debug)]
pub(super) struct Flushes {
    wanted: bool,
    /// One for each number of segments, so no more of them than text waits.
    waiting: VecDeque<Flush>,
    /// Segments that have ended, and where the last one did, in 48 kHz samples.
    ended: u32,
    end: u64,
}

#[derive(Debug)]
struct Flush {
    /// Segments before it.
    segments: u32,
    /// Where the last of them ended, in 48 kHz samples.
    end: Option<u64>,
    count: u32,
}

impl Flushes {
    pub(super) const fn new(wanted: bool) -> Self {
        Self { wanted, waiting: VecDeque::new(), ended: 0, end: 0 }
    }

    /// A flush came after this many segments.
    pub(super) fn handle_flush(&mut self, segments: u32) {
        match self.waiting.back_mut() {
            _ if !self.wanted => {}
            Some(last) if last.segments == segments => last.count += 1,
            _ => {
                let end = (segments <= self.ended).then_some(self.end);
                self.waiting.push_back(Flush { segments, end, count: 1 });
            }
        }
    }

    pub(super) fn handle_segment_end(&mut self, segment: u32, end: u64) {
        self.ended = self.ended.max(segment.saturating_add(1));
        self.end = self.end.max(end);
        for flush in self.waiting.iter_mut().filter(|flush| flush.segments <= self.ended) {
            flush.end.get_or_insert(end);
        }
    }

    /// Takes a flush away whose text was sent, `sent` 48 kHz samples having been.
    fn spoken(&mut self, sent: u64) -> bool {
        let held = HELD_MAX.as_micros().unsigned_abs() * u64::from(CLOCK_HZ) / 1_000_000;
        let Some(first) = self.waiting.front_mut() else { return false };
        if first.end.is_none_or(|end| end > sent.saturating_add(held)) {
            return false;
        }
        first.count -= 1;
        if first.count == 0 {
            self.waiting.pop_front();
        }
        true
    }
}

impl Utterance {
    /// Characters that sound in what has been sent and were not given before; all that are left once the
    /// epoch has nothing more to send.
    pub(in crate::session) fn take_times(&mut self) -> Vec<TimedCharacter> {
        let until = if self.is_sent() { u64::MAX } else { self.clock.sent() };
        self.alignment.timed(until)
    }

    /// What is known of the voice's pace by now.
    pub(in crate::session) const fn pace(&self) -> Pace {
        self.alignment.pace()
    }

    /// Whether a flush has been spoken to its end that was not told before.
    pub(in crate::session) fn take_flush(&mut self) -> bool {
        let sent = if self.is_sent() { u64::MAX } else { self.clock.sent() };
        self.flushes.spoken(sent)
    }

    /// Everything of the epoch has been made and sent.
    fn is_sent(&self) -> bool {
        self.finished.is_some() && self.encoded && self.pacer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_spoken_once_its_last_segment_has_been_sent() {
        let mut flushes = Flushes::new(true);
        flushes.handle_flush(1);
        flushes.handle_flush(1);
        flushes.handle_flush(3);
        assert!(!flushes.spoken(1_000_000), "nothing has ended");
        flushes.handle_segment_end(0, 48_000);
        assert!(!flushes.spoken(40_000), "most of it has not been sent");
        assert!(flushes.spoken(47_000) && flushes.spoken(48_000) && !flushes.spoken(48_000));
        flushes.handle_segment_end(1, 96_000);
        assert!(!flushes.spoken(96_000));
        flushes.handle_segment_end(2, 144_000);
        flushes.handle_flush(4);
        flushes.handle_segment_end(3, 192_000);
        assert!(!flushes.spoken(96_000), "an engine may be ahead of what was sent");
        assert!(flushes.spoken(144_000) && !flushes.spoken(144_000) && flushes.spoken(192_000));
        flushes.handle_flush(4);
        assert!(flushes.spoken(192_000) && !flushes.spoken(u64::MAX), "nothing new to speak");
    }
}
