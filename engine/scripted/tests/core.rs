//! The scripted engine on virtual time.

use contract::{
    ContextId, EngineError, FinishReason, Lane, Layout, OpenContext, Output, Playback, Sampling, Span, Tick,
    VoiceChoice,
};
use scripted::{Core, Script};

fn request(voice: &str) -> OpenContext {
    OpenContext {
        model: "tts-scripted".to_owned(),
        voice: VoiceChoice::Named(voice.to_owned()),
        language: None,
        instructions: None,
        layout: Layout::Streamed,
        sampling: Sampling::default(),
        arrival: Tick::ZERO,
        tenant: 0,
        exact_frames: None,
    }
}

/// Runs until nothing is due, or `until`; gives every output with its time.
fn run(core: &mut Core, mut now: Tick, until: Tick) -> Vec<(Tick, ContextId, Output)> {
    let mut outputs = Vec::new();
    loop {
        core.handle_timeout(now);
        while let Some((id, output)) = core.poll_output() {
            outputs.push((now, id, output));
        }
        let due = core.poll_timeout();
        if due > until || due == Tick::NEVER {
            return outputs;
        }
        now = due.max(now);
    }
}

fn frames(outputs: &[(Tick, ContextId, Output)]) -> Vec<u32> {
    let chunk = |output: &Output| if let Output::Chunk(chunk) = output { Some(chunk.frames) } else { None };
    outputs.iter().filter_map(|(_, _, output)| chunk(output)).collect()
}

fn finish(outputs: &[(Tick, ContextId, Output)]) -> Option<FinishReason> {
    match outputs.last() {
        Some((_, _, Output::Finished { reason, .. })) => Some(*reason),
        _ => None,
    }
}

#[test]
fn chunks_follow_the_ladder_and_first_audio_the_script() {
    let mut core = Core::new(Script::default());
    let id = core.open(&request("steady")).expect("a known voice");
    core.push_text(Tick::from_millis(10), id, &"x".repeat(40)).expect("open");
    core.finish(Tick::from_millis(10), id).expect("open");
    let outputs = run(&mut core, Tick::from_millis(10), Tick::NEVER - Span::from_micros(1));
    assert_eq!(frames(&outputs), [2, 4, 10, 10, 6]);
    assert_eq!(outputs[0].0, Tick::from_millis(50));
    assert!(matches!(&outputs[0].2, Output::Chunk(chunk) if chunk.lane == Lane::Urgent));
    assert_eq!(finish(&outputs), Some(FinishReason::Done));
}

#[test]
fn how_text_is_split_never_changes_the_sound() {
    let sound = |pieces: &[&str]| {
        let mut core = Core::new(Script::default());
        let mut opening = request("instant");
        opening.sampling.seed = Some(9);
        let id = core.open(&opening).expect("a known voice");
        for piece in pieces {
            core.push_text(Tick::ZERO, id, piece).expect("open");
        }
        core.finish(Tick::ZERO, id).expect("open");
        let mut samples = Vec::new();
        for (_, _, output) in run(&mut core, Tick::ZERO, Tick::from_millis(10)) {
            if let Output::Chunk(chunk) = output {
                assert_eq!(chunk.first_sample, samples.len() as u64);
                samples.extend_from_slice(&chunk.samples);
            }
        }
        samples
    };
    let whole = sound(&["a sentence in pieces"]);
    assert_eq!(whole.len(), 16 * 1_920);
    assert_eq!(whole, sound(&["a sen", "tence i", "n", " pieces"]));
}

#[test]
fn a_context_rests_when_its_listener_has_enough() {
    let mut core = Core::new(Script::default());
    let id = core.open(&request("instant")).expect("a known voice");
    core.push_text(Tick::ZERO, id, &"x".repeat(1_000)).expect("open");
    core.playback(Tick::ZERO, id, Playback::Playing { zero: Tick::ZERO });
    let made: u32 = frames(&run(&mut core, Tick::ZERO, Tick::from_millis(1))).iter().sum();
    // 6 s ahead and the chunk that crosses it.
    assert!((75..=86).contains(&made), "{made}");
    core.playback(Tick::from_millis(2), id, Playback::Paused { played: Span::ZERO });
    assert!(frames(&run(&mut core, Tick::from_millis(2), Tick::from_millis(60_000))).is_empty());
    core.playback(Tick::from_millis(5_000), id, Playback::Playing { zero: Tick::ZERO });
    assert!(!frames(&run(&mut core, Tick::from_millis(5_000), Tick::from_millis(5_001))).is_empty());
}

#[test]
fn nothing_follows_a_cancel_but_its_end() {
    let mut core = Core::new(Script::default());
    let id = core.open(&request("steady")).expect("a known voice");
    core.push_text(Tick::ZERO, id, &"x".repeat(100)).expect("open");
    run(&mut core, Tick::ZERO, Tick::from_millis(60));
    core.cancel(id);
    let outputs = run(&mut core, Tick::from_millis(61), Tick::from_millis(9_000));
    assert_eq!((outputs.len(), finish(&outputs)), (1, Some(FinishReason::Cancelled)));
    assert_eq!(core.push_text(Tick::from_millis(62), id, "more"), Err(EngineError::ContextClosed));
    assert_eq!(core.stats().open, 0);
}

#[test]
fn failures_caps_and_stalls_come_at_their_frame() {
    let end = |voice: &str| {
        let mut core = Core::new(Script::default());
        let id = core.open(&request(voice)).expect("a known voice");
        core.push_text(Tick::ZERO, id, &"x".repeat(50)).expect("open");
        core.finish(Tick::ZERO, id).expect("open");
        let outputs = run(&mut core, Tick::ZERO, Tick::from_millis(60_000));
        (frames(&outputs).iter().sum::<u32>(), finish(&outputs), outputs)
    };
    assert_eq!(end("failing").1, Some(FinishReason::Failed));
    assert_eq!(end("failing").0, 6);
    assert_eq!((end("capped").0, end("capped").1), (10, Some(FinishReason::Capped)));
    let (total, reason, outputs) = end("stalling");
    assert_eq!((total, reason), (40, Some(FinishReason::Done)));
    let gap = |pair: &[(Tick, ContextId, Output)]| pair[1].0.since(pair[0].0);
    assert!(outputs.windows(2).map(gap).max() >= Some(Span::from_millis(800)));
}

#[test]
fn refusals_say_why_and_take_no_place() {
    let mut core = Core::new(Script::parse("open_max = 1").expect("valid"));
    let retry_after = Span::from_millis(1_500);
    assert_eq!(core.open(&request("overloaded")), Err(EngineError::Overloaded { retry_after }));
    assert!(matches!(core.open(&request("nobody")), Err(EngineError::UnknownVoice { .. })));
    let id = core.open(&request("steady")).expect("room for one");
    assert!(matches!(core.open(&request("steady")), Err(EngineError::TooManyContexts { .. })));
    let token = "<|im_end|>".to_owned();
    assert_eq!(core.push_text(Tick::ZERO, id, "a <|im_end|> b"), Err(EngineError::ControlToken { token }));
    assert_eq!(core.stats().refused, 3);
}

#[test]
fn whoever_rests_costs_those_who_speak_nothing() {
    let mut core = Core::new(Script::default());
    let start = Tick::ZERO;
    for _ in 0..1_000 {
        let id = core.open(&request("instant")).expect("a known voice");
        core.playback(start, id, Playback::Paused { played: Span::ZERO });
        core.push_text(start, id, &"x".repeat(1_000)).expect("open");
    }
    // All have made what a listener may have in hand.
    run(&mut core, start, Tick::from_millis(100));
    let id = core.open(&request("steady")).expect("a known voice");
    core.push_text(Tick::from_millis(100), id, &"x".repeat(50)).expect("open");
    let (mut looked_at, mut chunks) = (0, 0);
    while core.poll_timeout() != Tick::NEVER {
        let now = core.poll_timeout();
        looked_at += core.handle_timeout(now);
        while core.poll_output().is_some() {
            chunks += 1;
        }
    }
    assert_eq!((chunks, looked_at), (5, 5));
}
