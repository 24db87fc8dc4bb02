//! `voxlane bench` against this server.

use std::sync::Arc;

use contract::Span;
use load::bench::{Run, Witness, run};
use load::mood::{Mood, Moods};
use load::open_loop::{PATIENCE, Settings};
use load::rates::Rates;
use load::target::Target;
use load::workload::Workload;
use tokio::sync::watch;

use crate::support::{Running, start};

const TEXTS: &str = "{\"text\": \"The harbour was quiet, and the boats came home.\", \"seconds\": 2.4}\n\
                     {\"text\": \"Good morning.\", \"seconds\": 0.8}\n";

async fn bench(server: &Running, adapter: &str, query: &str, moods: &[&str], exact: bool) -> Run {
    let settings = Settings {
        workload: Arc::new(Workload::parse("two", TEXTS).expect("valid")),
        moods: Moods::parse(moods).expect("valid"),
        seeds: 0..1,
        token: None,
        exact_frame_ms: exact.then_some(80.0),
        patience: PATIENCE,
    };
    let target = Target::parse(&format!("a={adapter},ws://{}{query}", server.address())).expect("valid");
    let (_alive, cut) = watch::channel(false);
    let rates = Rates::sweep("25").expect("valid");
    let witness = Witness { progress: &|_| {}, so_far: &|_| {}, cut };
    run(vec![target], settings, rates, Span::from_millis(900), witness).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mood_is_served_and_every_frame_is_heard() {
    let server = start("").await;
    let shares: Vec<String> = Mood::ALL.iter().map(|mood| format!("{}=0.14", mood.name())).collect();
    let shares: Vec<&str> = shares.iter().map(String::as_str).collect();
    let run = bench(&server, "native", "", &shares, false).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.offered >= 10 && rate.completed == rate.offered, "{rate:?}");
    assert!(rate.frames_wrong.is_empty() && rate.frames_made == Some(rate.frames_sent), "{rate:?}");
    assert_eq!(rate.first_chunk_ms, Some(160.0));
    // The script makes its first chunk 40 ms after the first character.
    assert!(rate.ttfa_ms.p50.is_some_and(|p50| p50 >= 40.0), "{rate:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_adapter_of_ours_hears_the_same_sound() {
    let server = start("").await;
    let mut audio: Vec<f64> = Vec::new();
    for adapter in ["native", "native+pcm", "native+ids=100", "speech", "speech+wav"] {
        let run = bench(&server, adapter, "", &[], false).await;
        assert_eq!(run.error, None, "{adapter}");
        let rate = &run.report.targets[0].rates[0];
        assert_eq!(rate.completed, rate.offered, "{adapter}: {rate:?}");
        audio.push(rate.audio_s_per_s);
    }
    assert!(audio.iter().all(|one| (one - audio[0]).abs() < 0.01), "{audio:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_frames_hold_on_a_server_for_benchmarking_and_are_refused_elsewhere() {
    let server = start("bench = true").await;
    let run = bench(&server, "native", "", &[], true).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    // 30 frames or 10 for each request, whatever its text.
    assert!(rate.frames_sent >= 10 * rate.offered && rate.frames_sent <= 30 * rate.offered, "{rate:?}");
    assert_eq!(rate.frames_made, Some(rate.frames_sent));

    let plain = start("").await;
    let run = bench(&plain, "native", "", &[], true).await;
    assert!(run.error.as_deref().is_some_and(|error| error.contains("--bench")), "{:?}", run.error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_errs_is_one_message() {
    let server = start("").await;
    for (voice, word) in [("failing", "internal"), ("overloaded", "overloaded"), ("nobody", "unknown_voice")]
    {
        let run = bench(&server, "native", &format!("?voice={voice}"), &[], false).await;
        let error = run.error.unwrap_or_default();
        assert!(error.starts_with("target a ") && error.contains(word), "{voice}: {error}");
    }
}
