//! Splice: frame-exact joining of decoded chunks into one sample stream (DESIGN.md sections 1 and 8).
//!
//! The invariant held here: each sample leaves at most once, in order, under the epoch it was made for.
//! A chunk that does not continue the stream exactly is refused whole, because playing part of it would
//! hide a fault upstream.

use contract::Epoch;

use crate::{CodecError, error::check_finite};

/// Where one context's sample stream stands.
#[derive(Clone, Debug)]
pub struct Splice {
    /// The only epoch whose samples may leave.
    epoch: Epoch,
    /// Position of the next sample that may leave.
    next_sample: u64,
    refused_chunks: u64,
}

/// What became of one chunk. Everything but `Joined` is a refusal that leaves the stream as it was.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub enum Joined<'a> {
    /// Samples are missing between the stream's end and this chunk.
    Gap { expected_sample: u64, first_sample: u64 },
    /// The chunk continues the stream; these samples leave, and only now.
    Joined { first_sample: u64, samples: &'a [f32] },
    /// Made for an epoch that a cancel or interrupt has ended.
    OldEpoch { current: Epoch, chunk: Epoch },
    /// Starts before the stream's end: some of it has already left.
    Overlap { expected_sample: u64, first_sample: u64 },
    /// Made for an epoch that has not begun here.
    UnknownEpoch { current: Epoch, chunk: Epoch },
}

impl Splice {
    /// A stream that starts at sample 0 of `epoch`.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, next_sample: 0, refused_chunks: 0 }
    }

    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Position just after the last sample that has left.
    #[must_use]
    pub fn next_sample(&self) -> u64 {
        self.next_sample
    }

    /// Chunks refused so far, over all epochs, non-finite ones included.
    #[must_use]
    pub fn refused_chunks(&self) -> u64 {
        self.refused_chunks
    }

    /// Ends the current epoch: its samples never leave again. The next epoch's stream starts at
    /// `first_sample` (0, or the position where a client resumes). A repeated or older epoch is ignored
    /// and answered with false, so that a cancel delivered twice changes nothing.
    pub fn begin_epoch(&mut self, epoch: Epoch, first_sample: u64) -> bool {
        if epoch_distance(self.epoch, epoch) <= 0 {
            return false;
        }
        self.epoch = epoch;
        self.next_sample = first_sample;
        true
    }

    /// Offers a chunk whose first sample has position `first_sample` in its epoch's stream.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`] if the chunk would join but holds a NaN or an infinity; the stream is
    /// unchanged and the context should end as failed.
    pub fn join<'a>(
        &mut self,
        epoch: Epoch,
        first_sample: u64,
        samples: &'a [f32],
    ) -> Result<Joined<'a>, CodecError> {
        let outcome = self.judge(epoch, first_sample, samples);
        match outcome {
            Ok(Joined::Joined { .. }) => self.next_sample += samples.len() as u64,
            _ => self.refused_chunks += 1,
        }
        outcome
    }

    fn judge<'a>(
        &self,
        chunk: Epoch,
        first_sample: u64,
        samples: &'a [f32],
    ) -> Result<Joined<'a>, CodecError> {
        let (current, expected_sample) = (self.epoch, self.next_sample);
        match epoch_distance(current, chunk) {
            0 => {}
            distance if distance < 0 => return Ok(Joined::OldEpoch { current, chunk }),
            _ => return Ok(Joined::UnknownEpoch { current, chunk }),
        }
        if first_sample < expected_sample {
            return Ok(Joined::Overlap { expected_sample, first_sample });
        }
        if first_sample > expected_sample {
            return Ok(Joined::Gap { expected_sample, first_sample });
        }
        check_finite(samples, first_sample)?;
        Ok(Joined::Joined { first_sample, samples })
    }
}

/// How many interrupts `other` is ahead of `current`, by serial number arithmetic (RFC 1982), because the
/// wire's epoch has 16 bits and wraps.
fn epoch_distance(current: Epoch, other: Epoch) -> i16 {
    other.0.wrapping_sub(current.0).cast_signed()
}
