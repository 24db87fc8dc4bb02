use contract::Span;
use load::rates::{Rates, RatesError};
use load::report::Rate;
use proptest::prelude::*;

const WINDOW: Span = Span::from_millis(60_000);

/// What a system with this capacity would give: all well below it, ever less above.
fn result(rate: f64, capacity: f64) -> Rate {
    let attained = if rate <= capacity { 1.0 } else { (1.8 - rate / capacity).clamp(0.0, 0.89) };
    let mut result = Rate { rate, offered: 1_000, ..Rate::default() };
    for limit in ["200", "250", "500", "1000"] {
        result.attainment.insert(limit.to_owned(), attained);
    }
    result
}

#[test]
fn a_sweep_offers_every_step_and_stops_when_nothing_is_to_be_learnt() {
    let mut chooser = Rates::sweep("2:2:20").expect("valid").chooser(WINDOW);
    let mut offered = Vec::new();
    while let Some(offer) = chooser.offer() {
        assert!(offer.reported && offer.window == WINDOW);
        offered.push(offer.rate);
        chooser.taken(&result(offer.rate, 5.0));
    }
    // At 8 the attainment is 0.2: hopeless, and the last.
    assert_eq!(offered, [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn one_rate_is_a_sweep_of_one() {
    let mut chooser = Rates::sweep("7").expect("valid").chooser(WINDOW);
    assert_eq!(chooser.offer().map(|offer| offer.rate), Some(7.0));
    chooser.taken(&result(7.0, 100.0));
    assert_eq!(chooser.offer(), None);
}

#[test]
fn a_step_too_small_to_change_a_rate_offers_it_once() {
    for (text, count) in [("1:1e-13:1", 1), ("5:1e-300:5", 1), ("0.1:0.1:0.3", 3), ("1:2:4", 2)] {
        let mut chooser = Rates::sweep(text).expect("valid").chooser(WINDOW);
        let mut offered = 0;
        while let Some(offer) = chooser.offer().filter(|_| offered < 10) {
            offered += 1;
            chooser.taken(&result(offer.rate, 100.0));
        }
        assert_eq!(offered, count, "{text}");
    }
}

#[test]
fn rates_that_cannot_be_offered_are_refused() {
    for wrong in ["0", "0:1:5", "5:1:2", "1:0:5", "x", "1:2", "1:1:inf", "-1", ""] {
        assert!(matches!(Rates::sweep(wrong), Err(RatesError::Sweep(_))), "{wrong}");
    }
    assert_eq!(Rates::sweep("1:0.0001:50"), Err(RatesError::TooMany));
    for wrong in ["5", "5:5", "9:2", "0:4", "a:b"] {
        assert!(matches!(Rates::search(wrong), Err(RatesError::Search(_))), "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_search_brackets_capacity_with_full_windows(capacity in 0.6..59.0_f64, low in 0.5..5.0_f64, high in 30.0..80.0_f64) {
        prop_assume!(capacity < high);
        let mut chooser = Rates::search(&format!("{low}:{high}")).expect("valid").chooser(WINDOW);
        let (mut below, mut above, mut offers) = (None, None, 0);
        while let Some(offer) = chooser.offer() {
            offers += 1;
            prop_assert!(offers < 40, "it ends");
            if offer.reported {
                prop_assert_eq!(offer.window, WINDOW);
                let held = offer.rate <= capacity;
                *(if held { &mut below } else { &mut above }) = Some(offer.rate);
            }
            chooser.taken(&result(offer.rate, capacity));
        }
        let (below, above) = (below.expect("one that held"), above.expect("one that did not"));
        prop_assert!(below <= capacity && capacity < above);
        prop_assert!(above - below <= 0.1 * capacity.max(1.0) + 0.2, "{} to {} around {}", below, above, capacity);
    }
}

#[test]
fn a_search_among_rates_of_which_none_holds_ends_with_nothing() {
    let mut chooser = Rates::search("0.01:0.1").expect("valid").chooser(Span::from_millis(1_000));
    let mut offers = 0;
    while let Some(offer) = chooser.offer() {
        offers += 1;
        assert!(offer.rate > 0.0 && offers < 100, "{offer:?} is the {offers}th");
        chooser.taken(&Rate { rate: offer.rate, offered: 10, ..Rate::default() });
    }
}

#[test]
fn a_search_that_finds_no_rate_that_fails_says_so() {
    let open_end = |capacity: f64| {
        let mut chooser = Rates::search("1:5").expect("valid").chooser(WINDOW);
        while let Some(offer) = chooser.offer() {
            chooser.taken(&result(offer.rate, capacity));
        }
        chooser.open_end()
    };
    assert_eq!(open_end(3.0), None);
    assert!(open_end(50.0).is_some_and(|what| what.contains("at least")));
}

#[test]
fn a_short_window_in_which_nobody_came_does_not_end_a_search() {
    let mut chooser = Rates::search("0.5:8").expect("valid").chooser(WINDOW);
    let mut found = 0.0_f64;
    while let Some(offer) = chooser.offer() {
        let empty = !offer.reported && offer.rate < 1.0;
        chooser.taken(&if empty {
            Rate { rate: offer.rate, ..Rate::default() }
        } else {
            result(offer.rate, 5.0)
        });
        found = if offer.rate <= 5.0 { found.max(offer.rate) } else { found };
    }
    assert!(found > 4.5, "{found}");
}

#[test]
fn more_requests_than_a_schedule_can_hold_are_refused_before_any_is_drawn() {
    for wild in ["1e300", "1:1e5:1e7", "20000"] {
        let rates = Rates::sweep(wild).expect("numbers");
        assert!(matches!(rates.check(WINDOW), Err(RatesError::TooBusy { .. })), "{wild}");
    }
    assert!(Rates::search("1:1e9").expect("numbers").check(WINDOW).is_err());
    assert!(Rates::sweep("10000").expect("numbers").check(WINDOW).is_ok());
}
