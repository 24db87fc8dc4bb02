//! Splice: each sample leaves at most once, in order, under the epoch it was made for.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use codecs::CodecError;
use codecs::splice::{Joined, Splice};
use contract::Epoch;
use proptest::prelude::*;

const EPOCH: Epoch = Epoch(4);

#[test]
fn chunks_that_follow_each_other_leave_as_they_came() {
    let mut splice = Splice::new(EPOCH);
    let chunks: [&[f32]; 4] = [&[0.1, 0.2], &[], &[0.3], &[0.4, 0.5, 0.6]];
    let mut left = Vec::new();
    for chunk in chunks {
        let at = splice.next_sample();
        match splice.join(EPOCH, at, chunk).unwrap() {
            Joined::Joined { first_sample, samples } => {
                assert_eq!(first_sample, at);
                left.extend_from_slice(samples);
            }
            refused => panic!("{refused:?}"),
        }
    }
    assert_eq!(left, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
    assert_eq!((splice.next_sample(), splice.refused_chunks()), (6, 0));
}

#[test]
fn a_gap_an_overlap_and_a_repeated_chunk_are_refused_whole() {
    let mut splice = Splice::new(EPOCH);
    let _ = splice.join(EPOCH, 0, &[0.0; 10]).unwrap();
    let refusals = [
        (11, Joined::Gap { expected_sample: 10, first_sample: 11 }),
        (9, Joined::Overlap { expected_sample: 10, first_sample: 9 }),
        (0, Joined::Overlap { expected_sample: 10, first_sample: 0 }),
        (u64::MAX, Joined::Gap { expected_sample: 10, first_sample: u64::MAX }),
    ];
    for (first_sample, outcome) in refusals {
        assert_eq!(splice.join(EPOCH, first_sample, &[0.0; 10]).unwrap(), outcome);
        assert_eq!(splice.next_sample(), 10);
    }
    assert_eq!(splice.refused_chunks(), 4);
}

#[test]
fn nothing_of_an_older_epoch_leaves_after_an_interrupt() {
    let mut splice = Splice::new(EPOCH);
    let _ = splice.join(EPOCH, 0, &[0.0; 10]).unwrap();
    assert!(splice.begin_epoch(Epoch(5), 0));
    let outcome = splice.join(EPOCH, 10, &[0.0; 10]).unwrap();
    assert_eq!(outcome, Joined::OldEpoch { current: Epoch(5), chunk: EPOCH });
    let outcome = splice.join(Epoch(6), 0, &[0.0; 10]).unwrap();
    assert_eq!(outcome, Joined::UnknownEpoch { current: Epoch(5), chunk: Epoch(6) });
    assert!(matches!(splice.join(Epoch(5), 0, &[0.5]).unwrap(), Joined::Joined { .. }));
}

#[test]
fn an_interrupt_delivered_twice_changes_nothing() {
    let mut splice = Splice::new(EPOCH);
    assert!(splice.begin_epoch(Epoch(5), 0));
    let _ = splice.join(Epoch(5), 0, &[0.0; 10]).unwrap();
    assert!(!splice.begin_epoch(Epoch(5), 0));
    assert!(!splice.begin_epoch(EPOCH, 0));
    assert_eq!((splice.epoch(), splice.next_sample()), (Epoch(5), 10));
}

#[test]
fn the_epoch_may_wrap() {
    let mut splice = Splice::new(Epoch(u16::MAX));
    assert!(splice.begin_epoch(Epoch(u16::MAX).next(), 0));
    let outcome = splice.join(Epoch(u16::MAX), 0, &[0.0]).unwrap();
    assert_eq!(outcome, Joined::OldEpoch { current: Epoch(0), chunk: Epoch(u16::MAX) });
}

#[test]
fn a_sample_that_is_not_finite_is_named_and_the_chunk_stays_out() {
    let mut splice = Splice::new(EPOCH);
    let _ = splice.join(EPOCH, 0, &[0.0; 10]).unwrap();
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = splice.join(EPOCH, 10, &[0.0, 0.0, poison]).unwrap_err();
        assert_eq!(error, CodecError::NonFinite { index: 12 });
    }
    assert_eq!((splice.next_sample(), splice.refused_chunks()), (10, 3));
    // A refused position is no excuse to look at the samples: the position is what is reported.
    assert!(matches!(splice.join(EPOCH, 99, &[f32::NAN]), Ok(Joined::Gap { .. })));
}

proptest! {
    /// Offers random chunks of random epochs at random positions; what leaves must be 0, 1, 2, ... of each
    /// epoch, as a plain model predicts.
    #[test]
    fn what_leaves_is_each_epochs_stream_in_order(
        offers in proptest::collection::vec((0u16..4, -2i64..3, 0usize..5, any::<bool>()), 1..200),
    ) {
        let mut splice = Splice::new(Epoch(0));
        let (mut epoch, mut next) = (0u16, 0u64);
        for (offered_epoch, offset, len, interrupt) in offers {
            if interrupt && offset == 0 {
                let accepted = splice.begin_epoch(Epoch(offered_epoch), 0);
                prop_assert_eq!(accepted, offered_epoch > epoch);
                if accepted {
                    (epoch, next) = (offered_epoch, 0);
                }
            }
            let first = next.saturating_add_signed(offset);
            let samples: Vec<f32> = (0..len).map(|index| (first + index as u64) as f32).collect();
            let outcome = splice.join(Epoch(offered_epoch), first, &samples).unwrap();
            let should_join = offered_epoch == epoch && first == next;
            if let Joined::Joined { first_sample, samples: left } = outcome {
                prop_assert!(should_join);
                prop_assert_eq!(first_sample, next);
                for (index, sample) in left.iter().enumerate() {
                    prop_assert_eq!(*sample, (next + index as u64) as f32);
                }
                next += len as u64;
            } else {
                prop_assert!(!should_join);
            }
            prop_assert_eq!(splice.next_sample(), next);
        }
    }
}
