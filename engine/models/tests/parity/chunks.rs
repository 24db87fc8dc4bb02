//! The codec in chunks, through the captured lengths, against the same codes in one go.

use contract::Stage;
use models::CodecRow;

use crate::engine::Engine;
use crate::fixtures::{Fixture, assert_close, golden, tiny};

const BOUND: f32 = 1e-4;

/// More frames than the codec's attention window.
fn codes() -> Vec<Vec<i32>> {
    let fixture = Fixture::read(&golden().join("parity/codec_tiny.safetensors"));
    let groups = fixture.shape("codes")[1];
    fixture.ints("codes").chunks_exact(groups).map(<[i32]>::to_vec).collect()
}

/// Numbers that look random and never change (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn chunks_of_every_length_join_to_the_sound_of_one_call() {
    let mut engine = Engine::open(&tiny());
    let codes = codes();
    let whole = engine.sound_at_once(&codes);
    for length in 1..=12 {
        let sound = engine.sound(&codes, &[length], length as u32 % 7, 0);
        assert_close(&format!("chunks of {length}"), &sound, &whole, BOUND);
    }
}

#[test]
fn random_cuts_join_to_the_sound_of_one_call() {
    let mut engine = Engine::open(&tiny());
    let codes = codes();
    let whole = engine.sound_at_once(&codes);
    let mut numbers = Numbers(7);
    for round in 0..8 {
        let cuts: Vec<usize> = (0..codes.len()).map(|_| 1 + numbers.below(10)).collect();
        let sound = engine.sound(&codes, &cuts, round, 0);
        assert_close(&format!("random cuts {round}"), &sound, &whole, BOUND);
    }
}

#[test]
fn streams_of_unlike_progress_and_length_share_a_batch() {
    let mut engine = Engine::open(&tiny());
    let codes = codes();
    let alone = engine.sound(&codes[..30], &[3], 0, 0);
    // Slot 1 runs ahead of slot 2, and both are cut differently from the stream alone.
    let mut sounds = [Vec::new(), Vec::new()];
    let mut done = [0, 0];
    let steps = [[4, 1], [1, 4], [3, 3], [4, 2], [2, 4], [4, 4], [4, 4], [4, 4], [4, 4]];
    for step in steps {
        let rows: Vec<(usize, Vec<i32>)> = (0..2)
            .map(|stream| {
                let frames = step[stream].min(30 - done[stream]);
                (frames, codes[done[stream]..done[stream] + frames].concat())
            })
            .collect();
        let live: Vec<usize> = (0..2).filter(|&stream| rows[stream].0 > 0).collect();
        let inputs: Vec<CodecRow<'_>> = live
            .iter()
            .map(|&stream| CodecRow {
                slot: 1 + stream as u32,
                start: done[stream] as u32,
                codes: &rows[stream].1,
            })
            .collect();
        let inputs = engine.placed.codec_inputs(&inputs, 4);
        let outputs = engine.stage(Stage::Codec, 4, inputs);
        for (row, &stream) in live.iter().enumerate() {
            let frames = rows[stream].0;
            sounds[stream].extend(engine.samples(&outputs, live.len(), row, frames as u32));
            done[stream] += frames;
        }
    }
    assert_eq!(done, [30, 30]);
    for sound in &sounds {
        assert_close("a stream in a batch", sound, &alone, BOUND);
    }
}

#[test]
fn a_slot_starts_fresh_whatever_it_held_before() {
    let mut engine = Engine::open(&tiny());
    let codes = codes();
    let fresh = engine.sound(&codes[..12], &[4], 6, 0);
    engine.sound(&codes[40..90], &[10], 6, 0);
    let again = engine.sound(&codes[..12], &[4], 6, 0);
    assert_eq!(fresh, again);
}
