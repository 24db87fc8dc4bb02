//! One random schedule: made from a seed, run to its end, and shrunk when it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use contract::{CloneMode, EngineError, Lane, LaunchId, Partition, Playback, Span, Stage, Tick};
use sched::{
    Command, Completion, CostTable, Counters, EncodeKey, GuardConfig, LaunchResult, PrefillPolicy, Profile,
    SchedConfig,
};

use crate::world::{Script, World, id, ms};

/// A small counter-based generator: the same seed gives the same schedule everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open {
        tenant: u32,
        exact: Option<u32>,
        encode: Option<u8>,
        late: u32,
    },
    Segment {
        which: u32,
        prompt: u32,
        streamed: bool,
        ids: u32,
        closed: bool,
        eos_at: u32,
        max: u32,
        odd: Odd,
    },
    Ids {
        which: u32,
        more: u32,
        closed: bool,
    },
    Finish {
        which: u32,
    },
    Play {
        which: u32,
        ago: u32,
    },
    Pause {
        which: u32,
        played: u32,
    },
    Cancel {
        which: u32,
    },
    Fail {
        which: u32,
    },
    Lose {
        lane: Lane,
    },
    BadReference,
    /// A completion that names no launch in flight.
    Stale,
    /// A command that contradicts what was said before.
    Nonsense {
        which: u32,
        kind: u32,
    },
}

/// What else is wrong with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    Nothing,
    Repeats,
    Silent,
    NotFinite,
}

#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) config: SchedConfig,
    pub(crate) profile: Profile,
    pub(crate) pace_permille: i64,
    /// Microseconds before the operation, and the operation.
    pub(crate) ops: Vec<(u32, Op)>,
}

/// What the driver knows of the contexts it opened.
#[derive(Default)]
struct Opened {
    next: u64,
    contexts: Vec<Told>,
}

struct Told {
    number: u64,
    segments: u32,
    streamed: bool,
    ids: u32,
    closed: bool,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound.max(1))) as u32
    }

    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn one_in(&mut self, chance: u32) -> bool {
        self.below(chance) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

impl Schedule {
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut config = random_config(&mut random);
        // Drawn apart, so that the schedules that once failed stay what they were.
        if seed.is_multiple_of(3) {
            let mut random = Random::new(!seed);
            config.ride_rows_max = random.pick(&[2, 4, 64]);
            config.ride_tokens_max = random.pick(&[8, 24, 64]);
        }
        if seed.is_multiple_of(2) {
            config.lm_ahead = ms(Random::new(seed ^ 0xA4EA_D000).pick(&[0, 1, 3, 20]));
        }
        let profile = random_profile(&mut random);
        let pace_permille = random.pick(&[1_000, 1_000, 1_000, 700, 1_600]);
        let hurry = random.pick(&[4_000, 20_000, 60_000, 60_000]);
        let contexts = random.between(1, 6);
        let mut ops = Vec::new();
        for _ in 0..contexts {
            open_and_fill(&mut random, &mut ops, hurry);
        }
        for _ in 0..random.below(10) {
            ops.push((random.below(hurry), later_op(&mut random)));
        }
        // One urgent call longer than a chunk plays: only then can the chunk after the next be the one
        // that a background batch makes late. Drawn last, so that the draws before keep their meaning.
        let slow_urgent = random.one_in(8);
        let costly = CostTable::linear(140_000, 1_000, 0, 16, 64);
        let profile =
            if slow_urgent { profile.with_cost(Stage::Codec, Partition::Whole, costly) } else { profile };
        Self { config, profile, pace_permille, ops }
    }

    /// Runs it under the reference model until every context has gone.
    pub(crate) fn run(&self) -> Result<Counters, String> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run_unguarded()));
        outcome.map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        })
    }

    /// The smallest schedule, by leaving operations out, that still fails.
    pub(crate) fn shrunk(&self) -> Self {
        let mut small = self.clone();
        let mut size = small.ops.len().div_ceil(2);
        while size > 0 {
            let mut start = 0;
            while start < small.ops.len() {
                let mut shorter = small.clone();
                shorter.ops.drain(start..(start + size).min(small.ops.len()));
                if shorter.run().is_err() {
                    small = shorter;
                } else {
                    start += size;
                }
            }
            size /= 2;
        }
        small
    }

    fn run_unguarded(&self) -> Counters {
        let mut world = World::new(self.config.clone(), self.profile.clone()).watched();
        world.pace_permille = self.pace_permille;
        let mut opened = Opened::default();
        for (wait, op) in &self.ops {
            world.run_for(Span::from_micros(i64::from(*wait)));
            apply(&mut world, &mut opened, op);
        }
        // Faults stop: everything must come to its end.
        world.losing = None;
        for told in &opened.contexts {
            world.command(Command::Finish { context: id(told.number) });
            world.playback(told.number, Playback::Playing { zero: world.now });
        }
        assert!(world.run_dry(6_000), "contexts that never end: {:?}", world.sched.snapshot());
        let snapshot = world.sched.snapshot();
        assert_eq!(snapshot.engine.open, 0, "contexts that never end, with nothing due: {snapshot:?}");
        assert_eq!((snapshot.engine.pages_used, snapshot.engine.running), (0, 0), "something is left behind");
        snapshot.counters
    }
}

fn random_config(random: &mut Random) -> SchedConfig {
    let page_positions = random.pick(&[4, 8]);
    SchedConfig {
        open_max: random.pick(&[3, 8, 8, 8]),
        slots: random.pick(&[1, 2, 4, 8, 8]),
        pages: random.pick(&[6, 10, 16, 64, 64]),
        page_positions,
        prefix_pages_max: 0,
        segments_max: 4,
        ttfa_target: ms(i64::from(random.between(40, 250))),
        first_audio_limit: ms(random.pick(&[150, 600, 2_000, 4_000])),
        lm_load_max_permille: random.pick(&[1_000, 2_000, 4_000]),
        urgent_margin: ms(random.pick(&[0, 40, 100, 100])),
        urgent_batch_max: random.pick(&[1, 2, 8, 8]),
        background_batch: random.pick(&[1, 2, 3, 8]),
        lm_depth: random.pick(&[1, 2]),
        lm_ahead: ms(1_000),
        lm_lead: ms(random.pick(&[300, 800, 2_000])),
        deferral_cap: ms(random.pick(&[0, 20, 60, 100])),
        prefill_tokens_max: random.pick(&[12, 24, 64]),
        prefill_rows_max: random.pick(&[1, 2, 8]),
        prefill_policy: random.pick(&[
            PrefillPolicy::Automatic,
            PrefillPolicy::Automatic,
            PrefillPolicy::DeadlineAware,
            PrefillPolicy::PrefillFirst,
        ]),
        policy_hold: ms(random.pick(&[10, 20, 100])),
        prefill_beside_background: random.one_in(2),
        ladder_budget_permille: random.pick(&[1, 30, 250, 1_000]),
        ladder_window: ms(random.pick(&[100, 1_000])),
        continuation_margin: ms(random.pick(&[0, 50, 300])),
        idle_limit: ms(random.pick(&[150, 1_000, 60_000])),
        guard: GuardConfig {
            repeat_period_max: 3,
            repeat_frames: 5,
            silence_peak: 0.001,
            silence_limit: ms(400),
        },
        records_max: 16,
        steps_between_prefills: random.pick(&[0, 1, 2, 5]),
        ride_rows_max: 0,
        ride_tokens_max: 64,
    }
}

fn random_profile(random: &mut Random) -> Profile {
    let mut flat =
        |bases: &[u32], rows: &[u32]| CostTable::linear(random.pick(bases), random.pick(rows), 0, 16, 64);
    let decode = flat(&[2_000, 8_000, 20_000, 50_000], &[200, 2_000]);
    let prefill = flat(&[4_000, 20_000, 80_000], &[0, 3_000]);
    let encode = flat(&[20_000, 150_000], &[0]);
    let background = flat(&[8_000, 25_000, 70_000], &[500, 6_000]);
    let urgent = flat(&[2_000, 8_000, 25_000], &[300, 2_000]);
    let mut profile = Profile::new(
        ms(80),
        random.pick::<&[u32]>(&[&[1, 2], &[1, 2, 4], &[2, 8]]).to_vec(),
        random.pick::<&[u32]>(&[&[1, 2, 4], &[1, 4, 16]]).to_vec(),
        random.pick::<&[u32]>(&[&[1, 2, 4], &[2, 4], &[3], &[1, 3, 6]]).to_vec(),
    )
    .with_cost(Stage::Decode, Partition::Lm, decode)
    .with_cost(Stage::Prefill, Partition::Whole, prefill)
    .with_cost(Stage::Encode, Partition::Whole, encode)
    .with_cost(Stage::Codec, Partition::Background, background)
    .with_cost(Stage::Codec, Partition::Whole, urgent);
    profile.look_ahead = random.pick(&[0, 0, 0, 1]);
    profile.state_grows = random.one_in(6);
    profile
}

fn open_and_fill(random: &mut Random, ops: &mut Vec<(u32, Op)>, hurry: u32) {
    let exact = random.one_in(8).then(|| random.between(1, 12));
    let encode = random.one_in(6).then(|| random.below(2) as u8);
    let late = random.pick(&[0, 0, 0, 30_000, 400_000]);
    ops.push((random.below(hurry), Op::Open { tenant: random.below(3), exact, encode, late }));
    for _ in 0..random.between(1, 2) {
        ops.push((random.below(hurry / 4), segment(random, u32::MAX)));
    }
    if random.one_in(2) {
        ops.push((random.below(hurry), Op::Finish { which: u32::MAX }));
    }
}

fn segment(random: &mut Random, which: u32) -> Op {
    let eos_at = random.between(0, 14);
    Op::Segment {
        which,
        prompt: random.between(1, 14),
        streamed: random.one_in(2),
        ids: random.between(1, 6),
        closed: random.one_in(2),
        eos_at,
        max: if random.one_in(6) { random.between(1, 8) } else { 24 },
        odd: random.pick(&[
            Odd::Nothing,
            Odd::Nothing,
            Odd::Nothing,
            Odd::Nothing,
            Odd::Repeats,
            Odd::Silent,
            Odd::NotFinite,
        ]),
    }
}

fn later_op(random: &mut Random) -> Op {
    let which = random.below(8);
    match random.below(20) {
        0..=2 => Op::Play { which, ago: random.below(600_000) },
        3 => Op::Pause { which, played: random.below(600_000) },
        4..=6 => Op::Cancel { which },
        7 => Op::Fail { which },
        8..=10 => Op::Ids { which, more: random.below(4), closed: random.one_in(2) },
        11..=12 => Op::Lose { lane: random.pick(&Lane::ALL) },
        13 => Op::BadReference,
        14 => Op::Stale,
        15..=16 => Op::Finish { which },
        17 => Op::Nonsense { which, kind: random.below(5) },
        _ => segment(random, which),
    }
}

fn apply(world: &mut World, opened: &mut Opened, op: &Op) {
    let pick = |which: u32| match opened.contexts.len() {
        0 => None,
        count => Some(if which == u32::MAX { count - 1 } else { which as usize % count }),
    };
    match *op {
        Op::Open { tenant, exact, encode, late } => {
            opened.next += 1;
            let number = opened.next;
            opened.contexts.push(Told { number, segments: 0, streamed: false, ids: 0, closed: true });
            world.command(Command::Open {
                context: id(number),
                arrival: world.now - Span::from_micros(i64::from(late)),
                tenant,
                exact_frames: exact,
                voice_encode: encode.map(|hash| EncodeKey { hash: [hash; 16], mode: CloneMode::Speaker }),
                encode_samples: 16,
            });
        }
        Op::Segment { which, prompt, streamed, ids, closed, eos_at, max, odd } => {
            let Some(told) = pick(which).map(|at| &mut opened.contexts[at]) else { return };
            if !told.closed {
                return;
            }
            let context = id(told.number);
            let script = Script {
                eos_at,
                period: if odd == Odd::Repeats { 2 } else { 0 },
                peak: if odd == Odd::Silent { 0.0 } else { 0.5 },
                not_finite_at: (odd == Odd::NotFinite).then_some(1),
            };
            let index = told.segments;
            world.scripts.insert((context, index), script);
            (told.segments, told.streamed, told.ids, told.closed) =
                (index + 1, streamed, ids, closed || !streamed);
            world.command(Command::SegmentReady {
                context,
                segment: index,
                prompt_tokens: prompt,
                ids,
                closed,
                streamed,
                frames_predicted: 6,
                frames_max: max,
            });
        }
        Op::Ids { which, more, closed } => {
            let Some(told) = pick(which).map(|at| &mut opened.contexts[at]) else { return };
            if told.segments == 0 || !told.streamed {
                return;
            }
            told.ids += more;
            told.closed |= closed;
            let (context, segment, total) = (id(told.number), told.segments - 1, told.ids);
            world.command(Command::Ids {
                context,
                segment,
                total,
                closed,
                frames_predicted: total,
                frames_max: total * 4,
            });
        }
        Op::Finish { which } => {
            if let Some(told) = pick(which).map(|at| &mut opened.contexts[at]) {
                told.closed = true;
                world.command(Command::Finish { context: id(told.number) });
            }
        }
        Op::Play { which, ago } => {
            if let Some(at) = pick(which) {
                let zero = world.now - Span::from_micros(i64::from(ago));
                world.playback(opened.contexts[at].number, Playback::Playing { zero });
            }
        }
        Op::Pause { which, played } => {
            if let Some(at) = pick(which) {
                let played = Span::from_micros(i64::from(played));
                world.playback(opened.contexts[at].number, Playback::Paused { played });
            }
        }
        Op::Cancel { which } => {
            if let Some(at) = pick(which) {
                world.command(Command::Cancel { context: id(opened.contexts[at].number) });
            }
        }
        Op::Fail { which } => {
            if let Some(at) = pick(which) {
                world.command(Command::Fail {
                    context: id(opened.contexts[at].number),
                    error: EngineError::OutputFull,
                });
            }
        }
        Op::Lose { lane } => world.losing = Some(lane),
        Op::BadReference => {
            world.encode_error = Some(EngineError::BadReference { what: "silent".to_owned() })
        }
        Op::Stale => {
            let result = LaunchResult::Frames(Vec::new());
            let completion = Completion { launch: LaunchId(1 << 40), at: world.now, took: ms(1), result };
            world.sched.handle_completion(world.now, completion);
            world.drain();
        }
        Op::Nonsense { which, kind } => {
            let Some(context) = pick(which).map(|at| id(opened.contexts[at].number)) else { return };
            let segment = |segment, ids| Command::SegmentReady {
                context,
                segment,
                prompt_tokens: 3,
                ids,
                closed: true,
                streamed: true,
                frames_predicted: 3,
                frames_max: 9,
            };
            world.command(match kind {
                0 => segment(77, 3),
                1 => segment(0, 0),
                2 => Command::Ids {
                    context,
                    segment: 0,
                    total: 0,
                    closed: false,
                    frames_predicted: 0,
                    frames_max: 0,
                },
                3 => Command::Cancel { context: id(1 << 30) },
                _ => Command::Open {
                    context,
                    arrival: Tick::ZERO,
                    tenant: 0,
                    exact_frames: None,
                    voice_encode: None,
                    encode_samples: 0,
                },
            });
        }
    }
}
