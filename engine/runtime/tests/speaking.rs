//! What a caller of the engine hears: whole sentences, typed errors, the end told once.

mod support;

use std::sync::Arc;

use contract::{
    Clip, CloneMode, EngineError, FinishReason, Lane, Layout, OpenContext, Output, Playback, Sampling, Span,
    VoiceChoice,
};
use runtime::OpenOptions;
use support::{Ear, SENTENCE, begin, engine, now, options, request, speak};

#[test]
fn a_sentence_is_spoken_to_its_end_in_both_layouts_by_every_voice() {
    for layout in [Layout::Whole, Layout::Streamed] {
        for voice in ["clara", "marcus", "nora", "june"] {
            let heard = speak(engine(), request(voice, layout, 1), SENTENCE);
            assert_eq!(heard.reason, FinishReason::Done, "{voice} {layout:?}");
            let samples = heard.samples();
            let seconds = samples.len() as f32 / 24_000.0;
            assert!((2.0..8.0).contains(&seconds), "{voice} {layout:?}: {seconds} s");
            assert!(samples.iter().any(|sample| sample.abs() > 0.05), "{voice} {layout:?} is silent");
            assert_eq!(heard.usage.samples, samples.len() as u64);
            assert_eq!(heard.usage.frames * 1_920, samples.len() as u64);
            assert_eq!(heard.usage.characters, SENTENCE.chars().count() as u64);
            assert_eq!(heard.segments, [(0, samples.len() as u64, FinishReason::Done)]);
            let mut next = 0;
            for chunk in &heard.chunks {
                assert_eq!(chunk.first_sample, next, "chunks join without gap or overlap");
                next += chunk.samples.len() as u64;
            }
            assert_eq!(heard.chunks[0].lane, Lane::Urgent, "the first chunk is urgent");
        }
    }
}

#[test]
fn a_request_without_a_seed_takes_the_configured_one() {
    let seeded = runtime::open(OpenOptions { seed: Some(7), ..options() }).expect("opens");
    let unsaid = |asked: OpenContext| OpenContext { sampling: Sampling::default(), ..asked };
    let asked = request("june", Layout::Streamed, 7);
    let told = speak(engine(), asked.clone(), "Seven.").samples();
    assert_eq!(speak(&seeded, unsaid(asked.clone()), "Seven.").samples(), told);
    assert_ne!(speak(engine(), unsaid(asked), "Seven.").samples(), told, "without one each draws its own");
}

#[test]
fn the_first_chunk_of_a_known_voice_waits_for_no_encode() {
    let before = engine().stats().encodes;
    let heard = speak(engine(), request("june", Layout::Whole, 2), "Hello there.");
    assert_eq!(engine().stats().encodes, before);
    assert_eq!(heard.usage.encode, Span::ZERO);
}

#[test]
fn a_reference_clip_is_encoded_once_and_speaks_in_both_clone_modes() {
    let clip = clip_of_clara(9);
    for mode in [CloneMode::Speaker, CloneMode::InContext] {
        for layout in [Layout::Whole, Layout::Streamed] {
            let before = engine().stats();
            let voice = VoiceChoice::Reference { clip: clip.clone(), mode };
            let heard = speak(engine(), OpenContext { voice, ..request("clara", layout, 3) }, SENTENCE);
            assert_eq!(heard.reason, FinishReason::Done, "{mode:?} {layout:?}: {:?}", heard.error);
            let seconds = heard.samples().len() as f32 / 24_000.0;
            assert!((2.0..8.0).contains(&seconds), "{mode:?} {layout:?}: {seconds} s");
            let after = engine().stats();
            let first_time = layout == Layout::Whole;
            assert_eq!(after.encodes - before.encodes, u64::from(first_time), "{mode:?} {layout:?}");
        }
    }
}

#[test]
fn segments_are_spoken_in_order_and_an_empty_one_is_nothing() {
    let ear = Arc::new(Ear::default());
    let context = engine().open(request("nora", Layout::Streamed, 4), ear.clone()).expect("opens");
    for text in ["Good evening.", "", "Please take your time."] {
        engine().push_text(context, text).expect("taken");
        engine().end_segment(context).expect("ended");
    }
    engine().finish(context).expect("finishes");
    let heard = ear.to_the_end();
    assert_eq!(heard.reason, FinishReason::Done);
    assert_eq!(heard.segments.iter().map(|(segment, ..)| *segment).collect::<Vec<_>>(), [0, 1]);
    assert!(heard.chunks.iter().any(|chunk| chunk.segment == 1));
}

#[test]
fn a_context_without_text_finishes_without_a_sample() {
    let heard = speak(engine(), request("clara", Layout::Whole, 5), "");
    assert_eq!(heard.reason, FinishReason::Done);
    assert!(heard.chunks.is_empty());
}

#[test]
fn a_cancel_ends_the_context_at_once_and_nothing_follows() {
    let text = [SENTENCE; 4].join(" ");
    let (context, ear) = begin(engine(), request("clara", Layout::Whole, 6), &text);
    ear.wait_for(|output| matches!(output, Output::Chunk(_)));
    let steps = engine().stats().lm.launches;
    engine().cancel(context);
    let heard = ear.to_the_end();
    assert_eq!(heard.reason, FinishReason::Cancelled);
    let later = engine().stats().lm.launches;
    assert!(later <= steps + 60, "other tests' steps run beside, but not hundreds: {steps} to {later}");
    assert_eq!(engine().push_text(context, "more"), Err(EngineError::ContextClosed));
}

#[test]
fn a_paused_listener_holds_the_engine_at_its_lead_and_a_resumed_one_hears_the_rest() {
    let text = [SENTENCE; 5].join(" ");
    let ear = Arc::new(Ear::default());
    let context = engine().open(request("june", Layout::Whole, 7), ear.clone()).expect("opens");
    engine().playback(context, Playback::Paused { played: Span::ZERO });
    engine().push_text(context, &text).expect("taken");
    engine().finish(context).expect("finishes");
    let bound = engine().info().limits.output_samples_max;
    let mut last = 0;
    // Two looks a second apart that see the same: the engine has stopped by itself.
    loop {
        std::thread::park_timeout(std::time::Duration::from_millis(1_500));
        let seen = ear.end_sample();
        if seen == last && seen > 0 {
            break;
        }
        last = seen;
    }
    assert!(last <= bound, "{last} samples in hand, {bound} allowed");
    engine().playback(context, Playback::Playing { zero: now() - Span::from_millis(60_000) });
    let heard = ear.to_the_end();
    assert_eq!(heard.reason, FinishReason::Done);
    assert!(heard.samples().len() as u64 > last, "the rest was spoken");
}

#[test]
fn bad_requests_are_refused_by_name_and_harm_nobody() {
    let refused = |change: fn(&mut OpenContext)| {
        let mut bad = request("clara", Layout::Whole, 8);
        change(&mut bad);
        engine().open(bad, Arc::new(Ear::default())).expect_err("refused")
    };
    let unknown = refused(|bad| bad.voice = VoiceChoice::Named("claire".to_owned()));
    assert!(matches!(&unknown, EngineError::UnknownVoice { known, .. } if known.len() == 4), "{unknown}");
    assert_eq!(refused(|bad| bad.model = "tts-huge".to_owned()).code(), "unknown_model");
    assert_eq!(refused(|bad| bad.language = Some("klingon".to_owned())).code(), "unknown_language");
    assert_eq!(refused(|bad| bad.instructions = Some("whisper".to_owned())).code(), "unsupported");
    assert_eq!(refused(|bad| bad.exact_frames = Some(3)).code(), "unsupported");
    for sampling in [
        Sampling { temperature: Some(f32::NAN), ..Sampling::default() },
        Sampling { temperature: Some(-1.0), ..Sampling::default() },
        Sampling { top_p: Some(0.0), ..Sampling::default() },
        Sampling { repetition_penalty: Some(f32::INFINITY), ..Sampling::default() },
    ] {
        let bad = OpenContext { sampling, ..request("clara", Layout::Whole, 8) };
        let error = engine().open(bad, Arc::new(Ear::default())).expect_err("refused");
        assert_eq!(error.code(), "field_out_of_range", "{sampling:?}");
    }
    let ear = Arc::new(Ear::default());
    let context = engine().open(request("clara", Layout::Whole, 8), ear.clone()).expect("opens");
    let error = engine().push_text(context, "Say <|im_end|> aloud.").expect_err("refused");
    assert_eq!(error.code(), "control_token");
    engine().push_text(context, "Hello there.").expect("the context goes on");
    engine().finish(context).expect("finishes");
    assert_eq!(ear.to_the_end().reason, FinishReason::Done);
}

fn clip_of_clara(salt: u8) -> Arc<Clip> {
    let bytes = std::fs::read(support::checkpoint().join("voices/clara.wav")).expect("reads");
    let data = bytes.windows(4).position(|four| four == b"data").expect("a data chunk") + 8;
    let samples = bytes[data..]
        .chunks_exact(2)
        .map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0);
    Arc::new(Clip {
        samples: samples.collect(),
        sample_rate: 24_000,
        transcript: Some(SENTENCE.to_owned()),
        hash: [salt; 16],
    })
}
