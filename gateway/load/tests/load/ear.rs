use contract::{Span, Tick};
use load::arrivals::Arrival;
use load::ear::{Ear, playing_time, samples};
use load::hearing::Hearing;
use load::mood::{Habits, Mood};
use load::outcome::Ending;
use load::random::Random;
use proptest::prelude::*;
use proto::wire::ListenerState;

fn habits(mood: Mood) -> Habits {
    Habits { pause: None, cut: None, prebuffer: Span::ZERO, ..Habits::draw(mood, &mut Random::new(1)) }
}

fn at(millis: u64) -> Tick {
    Tick::from_millis(1_000_000 + millis)
}

/// 48 kHz samples of so many milliseconds.
const fn ms(millis: u64) -> u64 {
    millis * 48
}

#[test]
fn sound_that_comes_in_time_is_heard_without_a_stall() {
    let mut ear = Ear::new(&habits(Mood::Steady));
    for n in 0..50 {
        ear.hear(at(n * 20), ms(20));
    }
    assert_eq!((ear.stalled(), ear.underruns()), (Span::ZERO, 0));
    assert_eq!(ear.played(at(990)), ms(990));
}

#[test]
fn a_late_packet_stalls_for_its_lateness() {
    let mut ear = Ear::new(&habits(Mood::Steady));
    ear.hear(at(0), ms(160));
    ear.hear(at(192), ms(160));
    ear.hear(at(400), ms(160));
    ear.complete(at(400));
    ear.advance(at(10_000));
    // Dry at 160 until 192, then again from 352 to 400.
    assert_eq!((ear.stalled(), ear.underruns()), (Span::from_millis(80), 2));
}

#[test]
fn running_out_at_the_end_is_no_stall() {
    let mut ear = Ear::new(&habits(Mood::Steady));
    ear.hear(at(0), ms(100));
    ear.complete(at(50));
    ear.advance(at(5_000));
    assert_eq!(ear.stalled(), Span::ZERO);
    assert_eq!(ear.position(at(5_000)).map(|it| it.state), Some(ListenerState::Ended));
}

#[test]
fn a_pause_of_the_listeners_own_is_no_stall_and_gives_the_server_time() {
    let mut ear =
        Ear::new(&Habits { pause: Some((ms(100), Span::from_millis(2_000))), ..habits(Mood::Paused) });
    ear.hear(at(0), ms(200));
    assert_eq!(
        ear.position(at(150)).map(|it| (it.state, it.played)),
        Some((ListenerState::Playing, ms(150)))
    );
    ear.advance(at(150));
    let paused = ear.position(at(1_000)).expect("heard something");
    assert_eq!((paused.state, paused.played, paused.buffered), (ListenerState::Paused, ms(100), ms(100)));
    // It plays again from 2,100 on and has 100 ms left: 150 ms later than that is 50 ms late.
    ear.hear(at(2_250), ms(100));
    assert_eq!(ear.stalled(), Span::from_millis(50));
}

#[test]
fn a_slow_starter_waits_for_its_buffer() {
    let mut ear = Ear::new(&Habits { prebuffer: Span::from_millis(400), ..habits(Mood::SlowStart) });
    ear.hear(at(0), ms(160));
    assert_eq!(ear.position(at(10)).map(|it| it.state), Some(ListenerState::Prebuffer));
    ear.hear(at(300), ms(320));
    assert_eq!(ear.played(at(400)), ms(100));
    assert_eq!(ear.stalled(), Span::ZERO);
}

#[test]
fn a_liar_claims_no_more_than_could_be() {
    let mut ear = Ear::new(&habits(Mood::Lying));
    ear.hear(at(0), ms(3_000));
    let lie = ear.position(at(1_000)).expect("heard something");
    assert_eq!(lie.state, ListenerState::Playing);
    assert_eq!(lie.played, ms(1_090));
    assert_eq!(lie.played + lie.buffered, ms(3_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// From the first sound to the end of the last there is only playing, stalls and the listener's own
    /// pause, whatever came when.
    #[test]
    fn time_is_spent_playing_stalled_or_paused(
        pieces in prop::collection::vec((0..400_u64, 1..30_u64), 1..40),
        pause in prop::option::of((0..3_000_u64, 1..2_000_u64)),
    ) {
        let pause = pause.map(|(position, length)| (ms(position), Span::from_millis(length as i64)));
        let mut ear = Ear::new(&Habits { pause, ..habits(Mood::Paused) });
        let mut now = 0;
        let mut total = 0;
        let mut first = None;
        for (gap, packets) in &pieces {
            now += gap;
            total += packets * 960;
            first.get_or_insert(now);
            ear.hear(at(now), packets * 960);
        }
        ear.complete(at(now));
        let mut end = at(now);
        while let Some(next) = ear.next_change() {
            end = end.max(next);
            ear.advance(next);
        }
        prop_assert_eq!(ear.played(end), total);
        let paused = pause.filter(|(position, _)| *position <= total).map_or(Span::ZERO, |(_, length)| length);
        let spent = playing_time(total) + ear.stalled() + paused;
        let passed = end.since(at(first.unwrap_or(0)));
        // Positions are whole samples: each border may cost a microsecond or two.
        prop_assert!((spent - passed).as_micros().abs() <= 4 * pieces.len() as i64 + 8, "{} against {}", spent, passed);
    }

    #[test]
    fn positions_never_go_back_and_never_pass_what_came(
        pieces in prop::collection::vec((0..100_u64, 0..10_u64), 1..60),
        mood in prop::sample::select(Mood::ALL.to_vec()),
        seed in 0..1_000_u64,
    ) {
        let mut ear = Ear::new(&Habits::draw(mood, &mut Random::new(seed)));
        let (mut now, mut received, mut played) = (0, 0, 0);
        for (gap, packets) in pieces {
            now += gap;
            received += packets * 960;
            ear.hear(at(now), packets * 960);
            if let Some(position) = ear.position(at(now)) {
                prop_assert!(position.played >= played);
                prop_assert_eq!(position.played + position.buffered, received);
                played = position.played;
            }
        }
    }

    #[test]
    fn samples_and_time_are_each_others_inverse(count in 0..10_000_000_u64) {
        prop_assert_eq!(samples(playing_time(count)), count);
    }
}

/// What a listener hears of packets that are taken as they come, or only when somebody looks.
fn heard(packets: &[u64], mood: Mood, looks_away: bool) -> (Span, Option<Span>, u64) {
    let habits = Habits { cut: None, ..Habits::draw(mood, &mut Random::new(7)) };
    let arrival = Arrival { at: Span::ZERO, utterance: 0, habits, seed: 7, discarded: false };
    let mut hearing = Hearing::new(&arrival, at(0), at(0));
    let mut back = at(0);
    let mut longest = Span::ZERO;
    for (n, &millis) in packets.iter().enumerate() {
        let now = at(millis).max(back);
        longest = longest.max(now.since(at(millis)));
        hearing.sound(now, ms(20), true);
        // What has come is taken before anybody looks away.
        let more = packets.get(n + 1).is_some_and(|next| at(*next) <= now);
        back = hearing.may_look_away(now).filter(|_| looks_away && !more).unwrap_or(now);
    }
    assert!(longest <= Span::from_millis(200), "{longest}");
    let outcome = hearing.finish(back.max(at(packets.last().copied().unwrap_or(0))), Ending::Done);
    (outcome.stalled, outcome.ttfa(), outcome.audio.as_micros() as u64)
}

proptest! {
    #[test]
    fn looking_away_while_enough_is_in_hand_changes_nothing_that_is_heard(
        gaps in prop::collection::vec((0_u64..60, 0_u64..20), 1..300),
        burst in 0_usize..80,
        mood in prop::sample::select(vec![Mood::Steady, Mood::SlowStart, Mood::Paused, Mood::Jitter, Mood::NoReports]),
    ) {
        // A burst, then packets that come about as fast as they are played, some of them late.
        let mut now = 5;
        let later = gaps.iter().map(|(gap, late)| if *late == 0 { gap * 20 } else { gap / 2 });
        let packets: Vec<u64> = std::iter::repeat_n(0, burst).chain(later).map(|gap| { now += gap; now }).collect();
        prop_assert_eq!(heard(&packets, mood, true), heard(&packets, mood, false));
    }
}

#[test]
fn silence_shorter_than_a_frame_among_whole_frames_is_not_overlooked() {
    let spoken = |packets: u64| {
        let arrival =
            Arrival { at: Span::ZERO, utterance: 0, habits: habits(Mood::Steady), seed: 7, discarded: false };
        let mut hearing = Hearing::new(&arrival, at(0), at(0));
        for packet in 0..packets {
            hearing.sound(at(packet * 20), ms(20), true);
        }
        // Two frames of 80 ms.
        hearing.made(2, ms(160), Span::ZERO);
        hearing.finish(at(packets * 20), Ending::Done)
    };
    assert_eq!(spoken(8).frames_missing(), None);
    let filled = spoken(9);
    assert_eq!(filled.frames_sent, 2);
    assert!(filled.frames_missing().is_some_and(|what| what.contains("7680 samples were made, but 8640")));
}
