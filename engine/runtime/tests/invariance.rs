//! The same request gives the same samples, bit for bit: alone, in any batch, in any admission order,
//! with any split of its text (DESIGN.md section 8).

mod support;

use std::sync::Arc;

use contract::Layout;
use support::{Ear, Heard, SENTENCE, begin, engine, request, speak};

const OTHERS: [&str; 3] = [
    "Hello there.",
    "Your order number is 1664, and it will arrive on Monday.",
    "I found the old map in the kitchen.",
];

#[test]
fn a_request_sounds_the_same_alone_and_in_any_batch_and_order() {
    for layout in [Layout::Whole, Layout::Streamed] {
        let alone = speak(engine(), request("june", layout, 77), SENTENCE).samples();
        for position in 0..=OTHERS.len() {
            let heard = in_company(layout, position);
            assert!(heard.samples() == alone, "{layout:?}, admitted at {position}: samples differ");
        }
    }
}

/// The request among others, the `position`th of them. A machine that is busy with other things refuses some of
/// them; then all begin again.
fn in_company(layout: Layout, position: usize) -> Heard {
    const ROUNDS_MAX: usize = 50;
    for _ in 0..ROUNDS_MAX {
        let ours = || begin(engine(), request("june", layout, 77), SENTENCE).1;
        let mut ears = Vec::new();
        for (index, other) in OTHERS.iter().enumerate() {
            if index == position {
                ears.push((true, ours()));
            }
            let seed = index as u64;
            ears.push((false, begin(engine(), request("marcus", Layout::Streamed, seed), other).1));
        }
        if position == OTHERS.len() {
            ears.push((true, ours()));
        }
        let heard: Vec<(bool, Heard)> =
            ears.into_iter().map(|(ours, ear)| (ours, ear.to_the_end())).collect();
        if heard.iter().all(|(_, heard)| heard.error.is_none()) {
            return heard.into_iter().find_map(|(ours, heard)| ours.then_some(heard)).expect("one is ours");
        }
    }
    panic!("refused {ROUNDS_MAX} times");
}

#[test]
fn how_text_is_split_never_changes_a_sample() {
    let alone = speak(engine(), request("clara", Layout::Streamed, 5), SENTENCE).samples();
    for size in [1, 3, 7] {
        let ear = Arc::new(Ear::default());
        let context = engine().open(request("clara", Layout::Streamed, 5), ear.clone()).expect("opens");
        let characters: Vec<char> = SENTENCE.chars().collect();
        for piece in characters.chunks(size) {
            engine().push_text(context, &piece.iter().collect::<String>()).expect("taken");
            std::thread::yield_now();
        }
        engine().finish(context).expect("finishes");
        assert!(ear.to_the_end().samples() == alone, "pieces of {size} characters: samples differ");
    }
}

#[test]
fn another_seed_speaks_otherwise() {
    let one = speak(engine(), request("clara", Layout::Whole, 1), SENTENCE).samples();
    let two = speak(engine(), request("clara", Layout::Whole, 2), SENTENCE).samples();
    assert!(one != two);
}
