//! The same request gives the same samples, bit for bit: alone, in any batch, in any admission order,
//! with any split of its text (DESIGN.md section 8).

mod support;

use std::sync::Arc;

use contract::Layout;
use support::{Ear, SENTENCE, begin, engine, request, speak};

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
            let mut ears = Vec::new();
            for (index, other) in OTHERS.iter().enumerate() {
                if index == position {
                    ears.push((true, begin(engine(), request("june", layout, 77), SENTENCE).1));
                }
                let seed = index as u64;
                ears.push((false, begin(engine(), request("marcus", Layout::Streamed, seed), other).1));
            }
            if position == OTHERS.len() {
                ears.push((true, begin(engine(), request("june", layout, 77), SENTENCE).1));
            }
            for (ours, ear) in ears {
                let heard = ear.to_the_end();
                if ours {
                    assert!(heard.samples() == alone, "{layout:?}, admitted at {position}: samples differ");
                }
            }
        }
    }
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
