//! One step ahead of the host: what is launched before the last results were read changes no sample, and what was
//! launched for somebody who has ended is thrown away.

mod support;

use std::sync::{Arc, OnceLock};

use contract::{EngineHandle, FinishReason, Layout, Output, Span};
use runtime::OpenOptions;
use support::{Ear, SENTENCE, begin, engine, options, request, speak};

fn ahead() -> &'static Arc<dyn EngineHandle> {
    static ENGINE: OnceLock<Arc<dyn EngineHandle>> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = OpenOptions { ahead: Some(Span::from_millis(1_000)), ..options() };
        runtime::open(options).expect("the embedded checkpoint opens")
    })
}

#[test]
fn a_request_sounds_the_same_one_step_ahead_alone_and_beside_others() {
    for layout in [Layout::Whole, Layout::Streamed] {
        let waited_for = speak(engine(), request("june", layout, 77), SENTENCE).samples();
        assert!(speak(ahead(), request("june", layout, 77), SENTENCE).samples() == waited_for, "{layout:?}");
        // Whoever comes after them gets slots in which steps were thrown away.
        for round in 0..3 {
            let beside = [1, 2].map(|seed| begin(ahead(), request("marcus", layout, seed), "Hello there.").1);
            let heard = speak(ahead(), request("june", layout, 77), SENTENCE);
            assert!(heard.error.is_none() && heard.samples() == waited_for, "{layout:?}, round {round}");
            beside.iter().for_each(|ear| assert_eq!(ear.to_the_end().reason, FinishReason::Done));
        }
    }
}

#[test]
fn text_that_comes_in_pieces_is_waited_for_one_step_ahead() {
    let at_once = speak(engine(), request("clara", Layout::Streamed, 5), SENTENCE).samples();
    let ear = Arc::new(Ear::default());
    let context = ahead().open(request("clara", Layout::Streamed, 5), ear.clone()).expect("opens");
    for piece in SENTENCE.split_inclusive(' ') {
        ahead().push_text(context, piece).expect("taken");
        std::thread::park_timeout(std::time::Duration::from_millis(15));
    }
    ahead().finish(context).expect("finishes");
    assert!(ear.to_the_end().samples() == at_once);
}

#[test]
fn a_cancel_one_step_ahead_ends_its_context_alone() {
    let whole = speak(engine(), request("june", Layout::Whole, 3), SENTENCE).samples();
    let (cancelled, ear) = begin(ahead(), request("marcus", Layout::Whole, 9), SENTENCE);
    let (_, other) = begin(ahead(), request("june", Layout::Whole, 3), SENTENCE);
    ear.wait_for(|output| matches!(output, Output::Chunk(_) | Output::Finished { .. }));
    ahead().cancel(cancelled);
    assert_eq!(ear.to_the_end().reason, FinishReason::Cancelled);
    assert!(other.to_the_end().samples() == whole);
    let after = speak(ahead(), request("june", Layout::Whole, 3), SENTENCE).samples();
    assert!(after == whole, "in the slot that it left");
}
