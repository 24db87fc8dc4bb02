//! Any commands and completions in any order: no panic, and every invariant holds.

use contract::{CloneMode, ContextId, EngineError, LaunchId, Playback, Span, Tick};
use proptest::prelude::*;
use sched::{
    ChunkResult, Command, Completion, EncodeKey, FrameOutcome, FrameResult, LaunchResult, Sched, SchedConfig,
};

use crate::world::profile;

#[derive(Clone, Debug)]
enum Event {
    Command(Command),
    Completion(Completion),
    Timeout,
}

/// Small numbers that meet each other, and the largest there are.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..6_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn tick() -> impl Strategy<Value = Tick> {
    prop_oneof![4 => (0..2_000_u64).prop_map(Tick::from_millis), 1 => any::<u64>().prop_map(Tick::from_micros)]
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![4 => (-500..500_i64).prop_map(Span::from_millis), 1 => any::<i64>().prop_map(Span::from_micros)]
}

fn context() -> impl Strategy<Value = ContextId> {
    (0..4_u64).prop_map(ContextId)
}

fn command() -> impl Strategy<Value = Command> {
    let key = (0..2_u8).prop_map(|hash| EncodeKey { hash: [hash; 16], mode: CloneMode::Speaker });
    let playback = prop_oneof![
        Just(Playback::NotStarted),
        span().prop_map(|played| Playback::Paused { played }),
        tick().prop_map(|zero| Playback::Playing { zero }),
    ];
    let share = (context(), 0..2_u8, number()).prop_map(|(context, hash, positions)| Command::SharePrefix {
        context,
        key: EncodeKey { hash: [hash; 16], mode: CloneMode::Speaker },
        positions,
    });
    let open = (context(), tick(), number(), prop::option::of(number()), prop::option::of(key), number())
        .prop_map(|(context, arrival, tenant, exact_frames, voice_encode, encode_samples)| Command::Open {
            context,
            arrival,
            tenant,
            exact_frames,
            voice_encode,
            encode_samples,
        });
    let segment = (context(), (number(), number(), number()), any::<(bool, bool)>(), (number(), number()))
        .prop_map(
            |(context, (segment, prompt_tokens, ids), (closed, streamed), (frames_predicted, frames_max))| {
                Command::SegmentReady {
                    context,
                    segment,
                    prompt_tokens,
                    ids,
                    closed,
                    streamed,
                    frames_predicted,
                    frames_max,
                }
            },
        );
    let ids = (context(), number(), number(), any::<bool>(), (number(), number())).prop_map(
        |(context, segment, total, closed, (frames_predicted, frames_max))| Command::Ids {
            context,
            segment,
            total,
            closed,
            frames_predicted,
            frames_max,
        },
    );
    prop_oneof![
        3 => open,
        2 => share,
        5 => segment,
        3 => ids,
        1 => context().prop_map(|context| Command::Finish { context }),
        2 => (context(), playback).prop_map(|(context, playback)| Command::Playback { context, playback }),
        1 => context().prop_map(|context| Command::Cancel { context }),
        1 => context().prop_map(|context| Command::Fail { context, error: EngineError::OutputFull }),
    ]
}

fn completion() -> impl Strategy<Value = Completion> {
    let outcome = prop_oneof![
        6 => Just(FrameOutcome::Made),
        1 => Just(FrameOutcome::EndOfSpeech),
        1 => Just(FrameOutcome::NoOp),
    ];
    let frame = (outcome, 0..3_u64).prop_map(|(outcome, code_hash)| FrameResult { outcome, code_hash });
    let chunk = prop_oneof![
        4 => any::<f32>().prop_map(|peak| ChunkResult::Made { peak }),
        1 => Just(ChunkResult::NotFinite),
    ];
    let result = prop_oneof![
        6 => prop::collection::vec(frame, 1..3).prop_map(LaunchResult::Frames),
        4 => prop::collection::vec(chunk, 1..3).prop_map(LaunchResult::Chunks),
        1 => Just(LaunchResult::Encoded),
        1 => Just(LaunchResult::EncodeFailed { error: EngineError::NotFinite }),
        1 => Just(LaunchResult::Lost { what: String::new() }),
    ];
    (1..60_u64, tick(), span(), result).prop_map(|(launch, at, took, result)| Completion {
        launch: LaunchId(launch),
        at,
        took,
        result,
    })
}

fn event() -> impl Strategy<Value = (Tick, Event)> {
    let event = prop_oneof![
        4 => command().prop_map(Event::Command),
        6 => completion().prop_map(Event::Completion),
        1 => Just(Event::Timeout),
    ];
    (tick(), event)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn no_order_of_commands_and_completions_panics_or_breaks_an_invariant(events in prop::collection::vec(event(), 1..80)) {
        let config = SchedConfig { slots: 2, pages: 8, page_positions: 2, prefix_pages_max: 3, open_max: 3, lm_depth: 2, ..SchedConfig::default() };
        let mut sched = Sched::new(config, profile()).expect("a sound configuration");
        for (now, event) in events {
            match event {
                Event::Command(command) => sched.handle_command(now, command),
                Event::Completion(completion) => sched.handle_completion(now, completion),
                Event::Timeout => sched.handle_timeout(now),
            }
            let mut drained = 0;
            while sched.poll_decision(now).is_some() {
                drained += 1;
                prop_assert!(drained < 64, "decisions without end");
            }
            while sched.poll_output().is_some() {}
            sched.check_invariants().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
            let _ = (sched.poll_timeout(), sched.snapshot(), sched.predict_first_audio(now, 7));
        }
    }
}
