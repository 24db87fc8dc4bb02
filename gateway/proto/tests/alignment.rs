//! How well `heard` knows the word a listener was at: against the word times of the embedded voices' clips
//! (tests/golden/words), whose own borders are good to some 50 ms.

use proto::alignment::Alignment;

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
            Clip {
                text: entry["text"].as_str().expect("a text").to_owned(),
                ends_ms: entry["ends_ms"]
                    .as_array()
                    .expect("ends")
                    .iter()
                    .map(|e| e.as_u64().expect("ms"))
                    .collect(),
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

#[test]
fn the_word_a_listener_was_at_is_known_within_a_few_hundred_ms() {
    for (what, known, p90_max) in [
        ("finished", Known::End, 260),
        ("unfinished, rate known,", Known::Rate, 300),
        ("unfinished, first,", Known::Nothing, 620),
    ] {
        let mut sizes: Vec<i64> = clips().iter().flat_map(|clip| errors(clip, known)).map(i64::abs).collect();
        assert!(sizes.len() >= 50, "{} words", sizes.len());
        sizes.sort_unstable();
        let at = |percent: usize| sizes[(sizes.len() - 1) * percent / 100];
        let mean = sizes.iter().sum::<i64>() / sizes.len() as i64;
        println!(
            "{what} segments, {} words: |error| mean {mean} p50 {} p90 {} max {} ms",
            sizes.len(),
            at(50),
            at(90),
            at(100)
        );
        assert!(at(90) <= p90_max, "{what}: {} ms", at(90));
    }
}
