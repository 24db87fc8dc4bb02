use contract::Span;
use load::arrivals::arrivals;
use load::mood::{Mood, MoodError, Moods};
use proptest::prelude::*;

const LEAD: Span = Span::from_millis(5_000);
const WINDOW: Span = Span::from_millis(60_000);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_seed_always_draws_the_same_schedule_and_another_seed_another(seed in 0..1_000_u64, rate in 0.5..40.0_f64) {
        let draw = |seed| arrivals(rate, LEAD, WINDOW, seed, 7, &Moods::default());
        prop_assert_eq!(draw(seed), draw(seed));
        prop_assert_ne!(draw(seed), draw(seed + 1));
    }

    #[test]
    fn arrivals_ascend_within_the_run_and_the_lead_in_is_discarded(seed in 0..1_000_u64, rate in 0.5..40.0_f64) {
        let schedule = arrivals(rate, LEAD, WINDOW, seed, 7, &Moods::default());
        prop_assert!(schedule.windows(2).all(|pair| pair[0].at <= pair[1].at));
        for arrival in &schedule {
            prop_assert!(arrival.at < LEAD + WINDOW && arrival.utterance < 7);
            prop_assert_eq!(arrival.discarded, arrival.at < LEAD);
        }
    }
}

#[test]
fn arrivals_come_at_the_rate_and_as_irregularly_as_a_poisson_process() {
    let schedule = arrivals(20.0, Span::ZERO, Span::from_millis(1_000_000), 3, 10, &Moods::default());
    let rate = schedule.len() as f64 / 1_000.0;
    assert!((rate - 20.0).abs() < 0.5, "{rate}");
    // The standard deviation of exponential gaps is their mean.
    let gaps: Vec<f64> =
        schedule.windows(2).map(|pair| (pair[1].at - pair[0].at).as_micros() as f64 / 1e6).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
    assert!((deviation / mean - 1.0).abs() < 0.05, "{}", deviation / mean);
}

#[test]
fn nobody_comes_at_no_rate() {
    assert!(arrivals(0.0, LEAD, WINDOW, 1, 5, &Moods::default()).is_empty());
    assert!(arrivals(f64::NAN, LEAD, WINDOW, 1, 5, &Moods::default()).is_empty());
    assert!(arrivals(5.0, LEAD, WINDOW, 1, 0, &Moods::default()).is_empty());
}

#[test]
fn moods_come_in_their_shares_and_the_rest_is_steady() {
    let moods = Moods::parse(&["jitter=0.25", "paused=0.1"]).expect("valid");
    let schedule = arrivals(50.0, Span::ZERO, Span::from_millis(400_000), 9, 5, &moods);
    let part = |mood| {
        schedule.iter().filter(|arrival| arrival.habits.mood == mood).count() as f64 / schedule.len() as f64
    };
    assert!((part(Mood::Jitter) - 0.25).abs() < 0.02);
    assert!((part(Mood::Paused) - 0.1).abs() < 0.02);
    assert!((part(Mood::Steady) - 0.65).abs() < 0.02);
}

#[test]
fn a_mood_that_cannot_be_mixed_is_named() {
    assert_eq!(Moods::parse(&["sulking=0.1"]), Err(MoodError::Unknown("sulking".to_owned())));
    assert_eq!(Moods::parse(&["jitter=2"]), Err(MoodError::Share("jitter=2".to_owned())));
    assert_eq!(Moods::parse(&["jitter=0.7", "lying=0.7"]), Err(MoodError::Sum));
    assert_eq!(Moods::parse(&["jitter=0.2", "jitter=0.2"]), Err(MoodError::Twice("jitter")));
    let text = MoodError::Unknown("x".to_owned()).to_string();
    assert!(text.contains("barge-in"), "{text}");
}
