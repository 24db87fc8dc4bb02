//! One step ahead of the host: what is launched before the last results were read changes no sample, and what was
//! launched for somebody who has ended is thrown away.

mod support;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use contract::{EngineError, EngineHandle, FinishReason, Layout, OpenContext, Output, Span};
use runtime::OpenOptions;
use support::{Ear, SENTENCE, begin, engine, options, request, speak};

/// Two launches stand in the lm lane all the time.
fn ahead() -> &'static Arc<dyn EngineHandle> {
    static ENGINE: OnceLock<Arc<dyn EngineHandle>> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = OpenOptions { ahead: Some(Span::from_millis(1_000)), ..options() };
        runtime::open(options).expect("the embedded checkpoint opens")
    })
}

/// One test at a time: two engines take all cores.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Samples of the sentence, asked for again where a machine busy with other things refuses.
fn samples(engine: &Arc<dyn EngineHandle>, request: &OpenContext) -> Vec<f32> {
    const ROUNDS_MAX: usize = 50;
    for _ in 0..ROUNDS_MAX {
        let heard = speak(engine, request.clone(), SENTENCE);
        match heard.error {
            None => return heard.samples(),
            Some(EngineError::Overloaded { .. }) => {}
            Some(other) => panic!("{other}"),
        }
    }
    panic!("refused {ROUNDS_MAX} times");
}

#[test]
fn a_request_sounds_the_same_one_step_ahead_alone_and_beside_others() {
    let _turn = turn();
    for layout in [Layout::Whole, Layout::Streamed] {
        let june = request("june", layout, 77);
        let waited_for = samples(engine(), &june);
        assert!(samples(ahead(), &june) == waited_for, "{layout:?}");
        // Whoever comes after them gets slots in which steps were thrown away.
        for round in 0..3 {
            let beside = [1, 2].map(|seed| begin(ahead(), request("marcus", layout, seed), "Hello there.").1);
            assert!(samples(ahead(), &june) == waited_for, "{layout:?}, round {round}");
            beside.iter().for_each(|ear| drop(ear.to_the_end()));
        }
    }
}

#[test]
fn text_that_comes_in_pieces_is_waited_for_one_step_ahead() {
    let _turn = turn();
    let at_once = samples(engine(), &request("clara", Layout::Streamed, 5));
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
    let _turn = turn();
    let june = request("june", Layout::Whole, 3);
    let whole = samples(engine(), &june);
    let (cancelled, ear) = begin(ahead(), request("marcus", Layout::Whole, 9), SENTENCE);
    ear.wait_for(|output| matches!(output, Output::Chunk(_) | Output::Finished { .. }));
    ahead().cancel(cancelled);
    assert_eq!(ear.to_the_end().reason, FinishReason::Cancelled);
    assert!(samples(ahead(), &june) == whole, "in the slot that it left");
}
