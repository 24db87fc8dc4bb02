//! How well `heard` knows the word a listener was at, and `timed` when a word begins: against the word times
//! of the embedded voices' clips (tests/golden/words), whose own borders are good to some 50 ms.

use proto::alignment::{Alignment, Pace, Words};

const WORDS: &str = include_str!("../../../tests/golden/words/words.json");

/// What is known of the segment being spoken.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    /// Where its sound ends.
    End,
    /// The voice's rate, from the segment before.
    Rate,
    Nothing,
}

struct Clip {
    text: String,
    starts_ms: Vec<u64>,
    ends_ms: Vec<u64>,
    samples: Vec<f32>,
    rate: u32,
}

fn clips() -> Vec<Clip> {
    let listed: serde_json::Value = serde_json::from_str(WORDS).expect("JSON");
    let listed = listed.as_array().expect("a list").iter();
    listed
        .map(|entry| {
            let file = entry["file"].as_str().expect("a file");
            let path = format!("{}/../../config/models/tiny/voices/{file}", env!("CARGO_MANIFEST_DIR"));
            let mut reader = hound::WavReader::open(path).expect("a clip");
            let samples = reader.samples::<i16>().map(|s| f32::from(s.expect("a sample")) / 32_768.0);
            let times = |name: &str| {
                let times = entry[name].as_array().expect("times").iter();
                times.map(|time| time.as_u64().expect("ms")).collect()
            };
            Clip {
                text: entry["text"].as_str().expect("a text").to_owned(),
                starts_ms: times("starts_ms"),
                ends_ms: times("ends_ms"),
                samples: samples.collect(),
                rate: reader.spec().sample_rate,
            }
        })
        .collect()
}

/// For each word the estimated end of it minus the true one, in ms: the first position, in steps of 10 ms,
/// at which it counts as heard.
fn errors(clip: &Clip, known: Known) -> Vec<i64> {
    let mut alignment = Alignment::new();
    let samples_48k = clip.samples.len() as u64 * 48_000 / u64::from(clip.rate);
    // A segment before it, where the voice's rate is known by then.
    let before = u32::from(known == Known::Rate);
    for segment in 0..=before {
        alignment.handle_text(segment, &clip.text);
        let first = u64::from(segment) * clip.samples.len() as u64;
        alignment.handle_chunk(segment, first, &clip.samples, clip.rate);
        if segment < before || known == Known::End {
            alignment.handle_segment_end(segment, samples_48k * u64::from(segment + 1));
        }
    }
    let (start, said) =
        (u64::from(before) * samples_48k, u64::from(before) * clip.text.chars().count() as u64);
    let mut needed = 0;
    let borders: Vec<u64> = clip
        .text
        .split(' ')
        .map(|word| {
            needed += word.chars().count() as u64 + 1;
            needed - 1
        })
        .collect();
    let mut estimated = vec![samples_48k / 48; borders.len()];
    for ms in (0..=samples_48k / 48).rev().step_by(10) {
        // A fresh copy: an estimate that was given never goes back, and this one goes backwards in time.
        let characters = alignment.clone().heard(start + ms * 48).characters.saturating_sub(said);
        for (border, estimate) in borders.iter().zip(&mut estimated) {
            if characters >= *border {
                *estimate = ms;
            }
        }
    }
    let pairs = estimated.iter().zip(&clip.ends_ms);
    pairs.map(|(estimate, truth)| *estimate as i64 - *truth as i64).collect()
}

/// For each word the estimated start of it minus the true one, in ms, as a client is told while the sound is
/// being made: chunks of `chunk_ms`, the times so far after each.
fn start_errors(clip: &Clip, chunk_ms: usize, pace: Pace) -> Vec<i64> {
    let mut alignment = Alignment::with_times().knowing(pace);
    alignment.handle_text(0, &clip.text);
    let (mut words, mut out, mut at) = (Words::default(), Vec::new(), 0);
    let wire = |samples: usize| samples as u64 * 48_000 / u64::from(clip.rate);
    for chunk in clip.samples.chunks(clip.rate as usize * chunk_ms / 1_000) {
        alignment.handle_chunk(0, at as u64, chunk, clip.rate);
        at += chunk.len();
        if at == clip.samples.len() {
            alignment.handle_segment_end(0, wire(at));
        }
        words.push(&alignment.timed(wire(at)), &mut out);
    }
    words.finish(&mut out);
    let said: Vec<&str> = out.iter().map(|word| word.word.as_str()).collect();
    assert_eq!(said.join(" "), clip.text);
    let pairs = out.iter().zip(&clip.starts_ms);
    pairs.map(|(word, truth)| (word.start / 48) as i64 - *truth as i64).collect()
}

/// How fast the clip's voice speaks: what an earlier context has measured.
fn pace_of(clip: &Clip) -> Pace {
    let mut alignment = Alignment::new();
    alignment.handle_text(0, &clip.text);
    alignment.handle_chunk(0, 0, &clip.samples, clip.rate);
    alignment.handle_segment_end(0, clip.samples.len() as u64 * 48_000 / u64::from(clip.rate));
    alignment.pace()
}

/// Mean, median, 90th percentile and maximum.
fn figures(what: &str, errors: impl Iterator<Item = i64>) -> i64 {
    let mut sizes: Vec<i64> = errors.map(i64::abs).collect();
    assert!(sizes.len() >= 50, "{} words", sizes.len());
    sizes.sort_unstable();
    let at = |percent: usize| sizes[(sizes.len() - 1) * percent / 100];
    let mean = sizes.iter().sum::<i64>() / sizes.len() as i64;
    println!(
        "{what}, {} words: |error| mean {mean} p50 {} p90 {} max {} ms",
        sizes.len(),
        at(50),
        at(90),
        at(100)
    );
    at(90)
}

#[test]
fn the_word_a_listener_was_at_is_known_within_a_few_hundred_ms() {
    for (what, known, p90_max) in [
        ("finished segments", Known::End, 260),
        ("unfinished segments, rate known", Known::Rate, 300),
        ("unfinished first segments", Known::Nothing, 620),
    ] {
        let p90 = figures(what, clips().iter().flat_map(|clip| errors(clip, known)));
        assert!(p90 <= p90_max, "{what}: {p90} ms");
    }
}

#[test]
fn a_words_start_is_told_within_a_few_hundred_ms_whole_or_while_it_is_made() {
    for (what, chunk_ms, known, p90_max) in [
        ("starts, told at the segment's end", 60_000, false, 200),
        ("starts, told while it is made, of a known voice", 320, true, 250),
        ("starts, told while it is made, of an unknown one", 320, false, 600),
    ] {
        let errors = clips().into_iter().flat_map(|clip| {
            let pace = if known { pace_of(&clip) } else { Pace::default() };
            start_errors(&clip, chunk_ms, pace)
        });
        let p90 = figures(what, errors);
        assert!(p90 <= p90_max, "{what}: {p90} ms");
    }
}
