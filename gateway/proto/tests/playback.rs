//! The playback clock against simulated listeners: steady, behind jitter, paused, starved, silent,
//! lying and drifting. Times are microseconds of the server's clock.

use contract::{Epoch, Playback, Span, Tick};
use proptest::prelude::*;
use proto::link::Link;
use proto::playback::{PlaybackClock, ReportOutcome};
use proto::wire::{ListenerState, PlaybackReport, Player};

const PACKET: i64 = 20_000;

/// SplitMix64: seeded, so that a failure can be had again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn exponential(&mut self, mean: i64) -> i64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean as f64) as i64
    }
}

/// How a listener and its network behave.
#[derive(Clone, Copy)]
struct World {
    one_way: i64,
    jitter: i64,
    /// What the player waits for; the server is told only when `announced`.
    prebuffer: i64,
    announced: bool,
    /// The listener's sound card against the server's clock, parts per million.
    drift: i64,
    /// The server sends nothing from the first to the second of these.
    stall: (i64, i64),
    /// The listener pauses from the first to the second of these.
    pause: (i64, i64),
    reports: bool,
}

const STEADY: World = World {
    one_way: 15_000,
    jitter: 0,
    prebuffer: 0,
    announced: false,
    drift: 0,
    stall: (0, 0),
    pause: (0, 0),
    reports: true,
};

/// One observation each 100 ms: server time, the clock's A and the true one.
struct Run {
    errors: Vec<(i64, i64)>,
    starved: bool,
    last: Playback,
    ignored: usize,
}

fn run(world: World, seconds: i64, seed: u64) -> Run {
    let mut random = Random(seed);
    let mut link = Link::new();
    let player = Player { prebuffer_ms: world.prebuffer as f64 / 1_000.0, target_ms: 40.0 };
    let mut clock = PlaybackClock::new(world.announced.then_some(player));
    let began = 5_000_000;
    // The wire, both ways in order: (arrival, end position in samples) and (arrival, report).
    let mut down: Vec<(i64, u64)> = Vec::new();
    let mut up: Vec<(i64, PlaybackReport)> = Vec::new();
    let (mut sent, mut received, mut played) = (0_u64, 0_u64, 0_f64);
    let (mut playing, mut last_arrival, mut last_up) = (false, 0_i64, 0_i64);
    let (mut underruns, mut state, mut next_report) = (0_u32, ListenerState::Prebuffer, 0_i64);
    let mut run = Run { errors: Vec::new(), starved: false, last: Playback::NotStarted, ignored: 0 };
    let mut now = began;
    while now < began + seconds * 1_000_000 {
        let tick = Tick::from_micros(now as u64);
        let at = now - began;
        if at % 1_000_000 == 0 {
            let round =
                2 * world.one_way + random.exponential(world.jitter) + random.exponential(world.jitter);
            link.record(Span::from_micros(round));
        }
        // Real time plus a lead of 400 ms, as an engine that is just fast enough.
        let stalled = at >= world.stall.0 && at < world.stall.1;
        while !stalled && (sent / 960) as i64 * PACKET <= at + 400_000 {
            clock.handle_sent(tick, sent, sent + 960, false, &link);
            sent += 960;
            last_arrival = last_arrival.max(now + world.one_way + random.exponential(world.jitter));
            down.push((last_arrival, sent));
        }
        received = down.iter().take_while(|(arrival, _)| *arrival <= now).last().map_or(received, |d| d.1);
        let cut = down.partition_point(|(arrival, _)| *arrival <= now);
        down.drain(..cut);
        let before = state;
        let paused = at >= world.pause.0 && at < world.pause.1;
        if !playing && received as f64 - played >= (world.prebuffer * 48 / 1_000) as f64 && received > 0 {
            playing = true;
        }
        if playing && !paused {
            let step = 48.0 * (1.0 + world.drift as f64 / 1e6);
            if played + step <= received as f64 {
                played += step;
                state = ListenerState::Playing;
            } else {
                playing = false;
                underruns += 1;
                state = ListenerState::Starved;
                run.starved = true;
            }
        }
        if paused {
            state = ListenerState::Paused;
        }
        if world.reports && received > 0 && (now >= next_report || state != before) {
            next_report = now + 200_000;
            last_up = last_up.max(now + world.one_way + random.exponential(world.jitter));
            up.push((
                last_up,
                PlaybackReport {
                    context: 1,
                    epoch: Epoch(0),
                    t: at as f64 / 1_000.0,
                    played: played as u64,
                    buffered: received - played as u64,
                    state,
                    underruns,
                    sequence: (received / 960) as u32,
                },
            ));
        }
        while up.first().is_some_and(|(arrival, _)| *arrival <= now) {
            let (_, report) = up.remove(0);
            let outcome = clock.handle_report(tick, &report, (sent / 960) as u32, &link);
            run.ignored += usize::from(outcome != ReportOutcome::Accepted);
        }
        if clock.poll_timeout(tick) <= tick {
            clock.handle_timeout(tick, &link);
        }
        if at % 100_000 == 0 && playing && !paused {
            let truth = now - (played / 48.0 * 1_000.0) as i64;
            let estimate = clock.sounds_at(0, &link).as_micros() as i64;
            run.errors.push((at, estimate - truth));
        }
        run.last = clock.playback(tick, &link);
        now += 1_000;
    }
    run
}

fn worst(run: &Run, from: i64, to: i64) -> (i64, i64) {
    let errors = run.errors.iter().filter(|(at, _)| *at >= from && *at < to).map(|(_, error)| *error);
    (errors.clone().min().expect("it played"), errors.max().expect("it played"))
}

#[test]
fn reports_find_a_player_whose_prebuffer_nobody_announced() {
    let run = run(World { prebuffer: 300_000, ..STEADY }, 10, 1);
    let (early, late) = worst(&run, 1_000_000, 10_000_000);
    assert!(early >= -5_000 && late <= 5_000, "{early} {late}");
    assert_eq!(run.ignored, 0);
}

#[test]
fn jitter_on_the_way_up_makes_no_deadline_later_than_the_guard_allows() {
    for seed in 0..20 {
        let run = run(World { jitter: 20_000, prebuffer: 250_000, announced: true, ..STEADY }, 30, seed);
        // Until eight reports are there the least of them may still be late.
        assert!(worst(&run, 0, 2_000_000).1 <= 150_000, "seed {seed}");
        let settled = run.errors.iter().filter(|(at, _)| *at >= 2_000_000);
        let mut errors: Vec<i64> = settled.map(|(_, error)| *error).collect();
        errors.sort_unstable();
        let p99 = errors[errors.len() * 99 / 100];
        assert!(p99 <= 40_000, "seed {seed}: {p99}");
        assert!(errors[0] >= -150_000, "seed {seed}: {}", errors[0]);
    }
}

/// The estimator's error against the truth, over twenty listeners of half a minute each. The figures are
/// printed for docs/performance.md.
#[test]
fn the_estimators_error_is_within_20_ms_at_20_ms_of_jitter() {
    for (jitter, bound) in [(5_000, 10_000), (20_000, 20_000), (60_000, 60_000)] {
        let mut errors: Vec<i64> = Vec::new();
        for seed in 0..20 {
            let run = run(World { jitter, prebuffer: 250_000, announced: true, ..STEADY }, 30, seed);
            errors.extend(run.errors.iter().filter(|(at, _)| *at >= 2_000_000).map(|(_, error)| *error));
        }
        let mut sizes: Vec<i64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_unstable();
        errors.sort_unstable();
        let at = |sorted: &[i64], percent: usize| sorted[(sorted.len() - 1) * percent / 100] as f64 / 1_000.0;
        println!(
            "jitter {} ms: |error| p50 {:.1} p99 {:.1} ms; early p1 {:.1}, late p99 {:.1}",
            jitter / 1_000,
            at(&sizes, 50),
            at(&sizes, 99),
            at(&errors, 1),
            at(&errors, 99),
        );
        assert!(at(&sizes, 99) * 1_000.0 <= bound as f64, "jitter {jitter}: {}", at(&sizes, 99));
    }
}

#[test]
fn a_stall_moves_the_clock_by_the_stall_within_two_reports() {
    let world = World { stall: (5_000_000, 5_900_000), prebuffer: 100_000, announced: true, ..STEADY };
    let run = run(world, 15, 3);
    assert!(run.starved);
    let (early, late) = worst(&run, 6_500_000, 15_000_000);
    assert!(early >= -25_000 && late <= 5_000, "{early} {late}");
}

#[test]
fn open_loop_follows_a_stall_of_the_server_without_any_report() {
    let world = World { stall: (5_000_000, 5_900_000), reports: false, ..STEADY };
    let (early, late) = worst(&run(world, 15, 4), 6_500_000, 15_000_000);
    assert!(early >= -25_000 && late <= 25_000, "{early} {late}");
}

#[test]
fn a_paused_listener_has_no_deadline_and_goes_on_where_it_stopped() {
    let world = World { pause: (4_000_000, 30_000_000), ..STEADY };
    let Playback::Paused { played } = run(world, 20, 5).last else { panic!("not paused") };
    assert!((3_950..=4_000).contains(&played.as_millis()), "{played}");
    let (early, late) =
        worst(&run(World { pause: (4_000_000, 9_000_000), ..STEADY }, 20, 6), 10_000_000, 20_000_000);
    assert!(early >= -5_000 && late <= 5_000, "{early} {late}");
}

#[test]
fn a_sound_card_that_drifts_is_followed() {
    for drift in [-200, 200] {
        let run = run(World { drift, ..STEADY }, 120, 7);
        let (early, late) = worst(&run, 110_000_000, 120_000_000);
        // A fast card pulls the truth ahead of the open loop, and trust ends at the measured jitter.
        let allowed = if drift > 0 { 30_000 } else { 5_000 };
        assert!(early >= -5_000 && late <= allowed, "drift {drift}: {early} {late}");
    }
}

#[test]
fn a_listener_that_falls_silent_is_guarded_wider_and_after_three_seconds_left_to_the_open_loop() {
    let link = Link::new();
    let mut clock = PlaybackClock::new(None);
    let start: i64 = 1_000_000;
    for packet in 0..500_u64 {
        clock.handle_sent(Tick::from_micros(start as u64), packet * 960, (packet + 1) * 960, false, &link);
    }
    let report = PlaybackReport {
        context: 1,
        epoch: Epoch(0),
        t: 1.0,
        played: 4_800,
        buffered: 475_200,
        state: ListenerState::Playing,
        underruns: 0,
        sequence: 500,
    };
    let at = |millis: i64| Tick::from_micros((start + millis * 1_000) as u64);
    // It began 400 ms later than the open loop thinks.
    assert_eq!(clock.handle_report(at(500), &report, 500, &link), ReportOutcome::Accepted);
    let zero = |clock: &PlaybackClock, millis| match clock.playback(at(millis), &link) {
        Playback::Playing { zero } => zero.as_micros() as i64 - start,
        other => panic!("{other:?}"),
    };
    assert_eq!(zero(&clock, 1_000), 360_000);
    assert_eq!(clock.poll_timeout(at(1_000)), at(1_100));
    assert_eq!(zero(&clock, 1_100), 340_000);
    assert_eq!(zero(&clock, 3_400), 200_000);
    clock.handle_timeout(at(3_500), &link);
    assert_eq!(zero(&clock, 3_500), 360_000);
    assert_eq!(clock.poll_timeout(at(3_500)), Tick::NEVER);
}

#[test]
fn a_packet_is_late_by_the_listeners_reports_and_without_them_by_what_was_sent() {
    let (link, at) = (Link::new(), |ms: i64| Tick::ZERO + Span::from_millis(1_000 + ms));
    let second = 48_000;
    let mut silent = PlaybackClock::new(None);
    assert!(!silent.is_late(at(0), 0, &link), "nothing was promised before the first packet");
    silent.handle_sent(at(0), 0, second, false, &link);
    let mut reporting = silent.clone();
    assert!(!silent.is_late(at(900), second, &link));
    assert!(silent.is_late(at(1_100), second, &link));
    // This listener began to play 400 ms after the first packet came, and says so.
    let mut report = PlaybackReport {
        context: 1,
        epoch: Epoch(0),
        t: 0.0,
        played: 0,
        buffered: second,
        state: ListenerState::Playing,
        underruns: 0,
        sequence: 50,
    };
    assert_eq!(reporting.handle_report(at(400), &report, 50, &link), ReportOutcome::Accepted);
    assert!(!reporting.is_late(at(1_300), second, &link));
    assert!(reporting.is_late(at(1_500), second, &link));
    report = PlaybackReport { state: ListenerState::Paused, t: 500.0, played: 4_800, ..report };
    report.buffered -= 4_800;
    assert_eq!(reporting.handle_report(at(500), &report, 50, &link), ReportOutcome::Accepted);
    assert!(!reporting.is_late(at(60_000), second, &link), "nothing is due to a paused listener");
    // The packet that came late has moved the clock of those who only listen.
    silent.handle_sent(at(1_500), second, 2 * second, false, &link);
    assert!(!silent.is_late(at(2_400), 2 * second, &link));
}

#[test]
fn a_report_flood_is_dropped_and_nothing_else() {
    let link = Link::new();
    let mut clock = PlaybackClock::new(None);
    clock.handle_sent(Tick::from_millis(1), 0, 960, false, &link);
    let report = PlaybackReport {
        context: 1,
        epoch: Epoch(0),
        t: 1.0,
        played: 0,
        buffered: 960,
        state: ListenerState::Prebuffer,
        underruns: 0,
        sequence: 1,
    };
    let outcomes: Vec<_> =
        (0..30).map(|at| clock.handle_report(Tick::from_millis(2 + at), &report, 1, &link)).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == ReportOutcome::Accepted).count(), 20);
    assert_eq!(clock.handle_report(Tick::from_millis(1_100), &report, 1, &link), ReportOutcome::Accepted);
}

fn any_report() -> impl Strategy<Value = PlaybackReport> {
    let state = prop::sample::select(vec![
        ListenerState::Prebuffer,
        ListenerState::Playing,
        ListenerState::Starved,
        ListenerState::Ended,
    ]);
    (0.0..20_000.0_f64, 0..600_000_u64, 0..600_000_u64, state, 0..3_u32, 0..700_u32).prop_map(
        |(t, played, buffered, state, underruns, sequence)| PlaybackReport {
            context: 1,
            epoch: Epoch(0),
            t,
            played,
            buffered,
            state,
            underruns,
            sequence,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a listener claims, no deadline comes earlier than open loop by more than J.
    #[test]
    fn a_liar_gains_at_most_the_jitter_measured(
        steps in prop::collection::vec((0..400_000_u64, prop::option::of(any_report()), 0..6_u64), 1..80),
        pings in prop::collection::vec(1_000..400_000_i64, 0..10),
    ) {
        let mut link = Link::new();
        for ping in pings {
            link.record(Span::from_micros(ping));
        }
        let trust = link.jitter_p99().min(Span::from_millis(200));
        let (mut liar, mut honest) = (PlaybackClock::new(None), PlaybackClock::new(None));
        let (mut now, mut sent) = (2_000_000_u64, 0_u64);
        for (wait, report, packets) in steps {
            now += wait;
            let tick = Tick::from_micros(now);
            for _ in 0..packets {
                liar.handle_sent(tick, sent, sent + 960, false, &link);
                honest.handle_sent(tick, sent, sent + 960, false, &link);
                sent += 960;
            }
            liar.handle_timeout(tick, &link);
            honest.handle_timeout(tick, &link);
            if let Some(report) = report {
                liar.handle_report(tick, &report, (sent / 960) as u32, &link);
            }
            match (liar.playback(tick, &link), honest.playback(tick, &link)) {
                (Playback::Playing { zero: claimed }, Playback::Playing { zero: open }) => {
                    prop_assert!(claimed >= open - trust, "{} < {} - {}", claimed, open, trust);
                }
                (claimed, open) => prop_assert_eq!(claimed, open),
            }
            prop_assert!(liar.sounds_at(0, &link) >= honest.sounds_at(0, &link) - trust, "the pacer's clock");
            prop_assert!(liar.position(tick, &link) <= sent);
            prop_assert!(liar.poll_timeout(tick) > tick);
        }
    }
}
