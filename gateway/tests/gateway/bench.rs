//! `voxlane bench` against this server, and the commands that measure as processes.

use std::process::Output;
use std::sync::Arc;

use contract::Span;
use load::bench::{Run, run};
use load::mood::{Mood, Moods};
use load::open_loop::Settings;
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
    };
    let target = Target::parse(&format!("a={adapter},ws://{}{query}", server.address())).expect("valid");
    let (_alive, cut) = watch::channel(false);
    let rates = Rates::sweep("25").expect("valid");
    run(vec![target], settings, rates, Span::from_millis(900), &|_| {}, cut).await
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

fn voxlane(arguments: &[&str]) -> Output {
    crate::cli::binary().args(arguments).output().expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn measuring_what_cannot_be_measured_exits_with_2_or_1() {
    let target = ["--target", "a=native,ws://127.0.0.1:1"];
    let bench = |more: &[&str]| voxlane(&[&["bench"][..], &target[..], more].concat());
    for wrong in [
        &["--workload", "libritts", "--rate", "0"][..],
        &["--workload", "libritts", "--search", "5:2"],
        &["--workload", "nothing-of-the-kind", "--rate", "1"],
        &["--workload", "libritts"],
        &["--workload", "libritts", "--rate", "1", "--mood", "sulking=1"],
        &["--workload", "libritts", "--rate", "1", "--window", "soon"],
    ] {
        let output = bench(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
    let unreachable = bench(&["--workload", "libritts", "--rate", "1"]);
    assert_eq!(unreachable.status.code(), Some(1));
    assert_eq!(stderr(&unreachable).lines().count(), 1, "{}", stderr(&unreachable));
    let simulate = voxlane(&["simulate", "--profile", "none", "--workload", "libritts", "--rate", "1"]);
    assert_eq!(simulate.status.code(), Some(2));
}

#[test]
fn simulate_and_plan_write_what_they_print() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulated");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (json, log) = (path("report.json"), path("decisions.json"));
    let output = voxlane(&[
        "simulate",
        "--profile",
        "h100-published",
        "--workload",
        "seed-tts",
        "--rate",
        "2",
        "--window",
        "3s",
        "--variant",
        "on",
        "--variant",
        "off:reports=off",
        "--json",
        &json,
        "--svg",
        &path("plots"),
        "--decisions",
        &log,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("guessed in the profile") && text.contains("ratio at 90%"), "{text}");
    let report: load::report::Report =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("a report");
    assert_eq!(report.targets.len(), 2);
    assert!(std::fs::read_to_string(folder.join("plots/ttfa.svg")).is_ok_and(|svg| svg.contains("off")));
    let decisions: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&log).expect("written")).expect("JSON");
    assert!(decisions["on"][0]["launches_by_reason"]["urgent_first"].as_u64() > Some(0), "{decisions}");
    let plan = voxlane(&["plan", "--profile", "h100-published", "--devices", "4"]);
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    assert!(String::from_utf8_lossy(&plan.stdout).lines().count() > 5);
}
