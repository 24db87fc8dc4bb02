//! The commands that measure, as processes: what they take, print, write and refuse.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use load::report::Report;
use serde_json::Value;

use crate::cli::{binary, stderr, voxlane};
use crate::support::start;

/// A folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-measuring-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `voxlane bench` with these arguments beside the server of a test.
async fn bench(arguments: Vec<String>) -> Output {
    let run = move || {
        voxlane(&[&["bench"][..], &arguments.iter().map(String::as_str).collect::<Vec<_>>()].concat())
    };
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

fn arguments(target: &[String], more: &[&str]) -> Vec<String> {
    let targets = target.iter().flat_map(|target| ["--target".to_owned(), target.clone()]);
    targets.chain(more.iter().map(|&one| one.to_owned())).collect()
}

#[test]
fn the_commands_take_what_their_interface_promises() {
    for (command, flags) in [
        (
            "bench",
            &[
                "--target",
                "--workload",
                "--rate",
                "--search",
                "--window",
                "--seeds",
                "--mood",
                "--token",
                "--json",
                "--svg",
                "--exact-frames",
            ][..],
        ),
        (
            "simulate",
            &[
                "--profile",
                "--workload",
                "--rate",
                "--search",
                "--window",
                "--seeds",
                "--mood",
                "--json",
                "--svg",
                "--variant",
            ],
        ),
        ("profile", &["--out", "--device", "--splits"]),
        ("plan", &["--profile", "--devices"]),
    ] {
        let help = stdout(&voxlane(&[command, "--help"]));
        for flag in flags {
            assert!(help.contains(&format!("{flag} ")), "{command} {flag}: {help}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_targets_take_turns_and_the_report_holds_every_field_by_name() {
    let server = start("").await;
    let folder = folder("report");
    let json = folder.join("report.json");
    let target = |name: &str, adapter: &str| format!("{name}={adapter},ws://{}", server.address());
    let targets = [target("one", "native"), target("two", "native+pcm")];
    let (file, plots) = (text(&json), text(&folder.join("plots")));
    let more = [
        "--workload",
        "agent-turns",
        "--rate",
        "4:4:8",
        "--window",
        "900ms",
        "--mood",
        "jitter=0.5",
        "--json",
        &file,
        "--svg",
        &plots,
    ];
    let output = bench(arguments(&targets, &more)).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(printed.contains("windows of 0.9 s"), "{printed}");
    // Progress: a line a rate, the targets in turns.
    let lines: Vec<String> = stderr(&output).lines().map(str::to_owned).collect();
    let order: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(": attained").next().filter(|it| it.len() < line.len()))
        .collect();
    // A machine too busy for the first rate is asked for no more.
    assert_eq!(order[..2], ["one at 4/s", "two at 4/s"], "{lines:?}");

    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("JSON");
    let keys = |value: &Value| -> Vec<String> {
        let keys: std::collections::BTreeSet<_> =
            value.as_object().expect("an object").keys().cloned().collect();
        keys.into_iter().collect()
    };
    assert_eq!(keys(&report), ["host", "notes", "seeds", "targets", "version", "workload"]);
    assert_eq!(keys(&report["host"]), ["cores", "cpu"]);
    assert_eq!(report["targets"].as_array().map(Vec::len), Some(2));
    for target in report["targets"].as_array().expect("targets") {
        assert_eq!(keys(target), ["capacity", "name", "rates"]);
        assert_eq!(keys(&target["capacity"]), ["90", "99"]);
        for rate in target["rates"].as_array().expect("rates") {
            assert_eq!(
                keys(rate),
                [
                    "attainment",
                    "audio_s_per_s",
                    "completed",
                    "failed",
                    "first_chunk_ms",
                    "frames_made",
                    "frames_sent",
                    "generator_cpu",
                    "generator_late_ms",
                    "goodput",
                    "no_stall",
                    "offered",
                    "rate",
                    "refused_by",
                    "stall_s",
                    "text_starved_s",
                    "ttfa_ms",
                    "ttfb_ms",
                    "window_s"
                ]
            );
            assert_eq!(keys(&rate["attainment"]), ["1000", "200", "250", "500"]);
            for times in ["ttfa_ms", "ttfb_ms"] {
                assert_eq!(keys(&rate[times]), ["p50", "p90", "p95", "p99", "p999"]);
            }
            assert_eq!((&rate["frames_made"], &rate["failed"]), (&rate["frames_sent"], &Value::from(0)));
        }
    }
    for picture in ["attainment.svg", "ttfa.svg", "goodput.svg"] {
        let svg = std::fs::read_to_string(folder.join("plots").join(picture)).expect("drawn");
        assert!(svg.contains(">one</text>") && svg.contains(">two</text>"), "{picture}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_prints_and_writes_the_report_so_far() {
    let server = start("").await;
    let json = folder("cut").join("report.json");
    let workload = folder("cut").join("short.jsonl");
    std::fs::write(&workload, "{\"text\": \"Good morning.\", \"seconds\": 0.8}").expect("written");
    let target = format!("a=native,ws://{}", server.address());
    let mut command = binary();
    command.args([
        "bench",
        "--target",
        &target,
        "--workload",
        &text(&workload),
        "--rate",
        "6",
        "--window",
        "60s",
    ]);
    command.args(["--json", &text(&json)]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary runs");
    let pid = child.id().to_string();
    // The lead-in is 10 s long, and nothing in it counts.
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    let output = tokio::time::timeout(Duration::from_secs(10), ended).await.expect("it ends at once");
    let output = output.expect("no panic").expect("ends");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("was cut short after"), "{}", stdout(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("a report");
    let rate = &report.targets[0].rates[0];
    assert!(rate.completed > 0 && (1.0..30.0).contains(&rate.window_s), "{rate:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_cannot_be_written_is_refused_before_the_run_or_printed_after_it() {
    let server = start("").await;
    let folder = folder("unwritable");
    let target = [format!("a=native,ws://{}", server.address())];
    let (within, itself) = (text(&folder.join("none/report.json")), text(&folder));
    for file in [&within, &itself] {
        let more = ["--workload", "seed-tts", "--rate", "5", "--window", "60s", "--json", file];
        let refused = tokio::time::timeout(Duration::from_secs(20), bench(arguments(&target, &more))).await;
        let output = refused.expect("it does not begin to measure");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    }
    let gone = folder.join("gone");
    std::fs::create_dir_all(&gone).expect("a folder");
    let file = text(&gone.join("report.json"));
    let more = ["--workload", "seed-tts", "--rate", "5", "--window", "1500ms", "--json", &file];
    let running = tokio::spawn(bench(arguments(&target, &more)));
    while !gone.join("report.json").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::fs::remove_dir_all(&gone).expect("removed under the run");
    let output = running.await.expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let printed = stdout(&output);
    let report: Report =
        serde_json::from_str(&printed[printed.find("\n{").expect("JSON")..]).expect("a report");
    assert!(report.targets[0].rates[0].completed > 0, "{printed}");
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_the_run_and_a_link_keeps_pointing_where_it_does() {
    let folder = folder("links");
    let simulate = |more: &[&str]| {
        let what = ["simulate", "--profile", "h100-published", "--workload", "seed-tts", "--rate", "5"];
        voxlane(&[&what[..], &["--window", "2s"], more].concat())
    };
    let plots = folder.join("plots");
    std::fs::create_dir_all(plots.join("goodput.svg")).expect("a folder where a file is to be");
    let refused = simulate(&["--svg", &text(&plots)]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).lines().count() == 1 && stderr(&refused).contains("goodput.svg"));
    let (real, link) = (folder.join("real.json"), folder.join("link.json"));
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    for _ in 0..2 {
        assert_eq!(simulate(&["--json", &text(&link)]).status.code(), Some(0));
        assert!(link.is_symlink(), "it points no more");
        let report: Report =
            serde_json::from_str(&std::fs::read_to_string(&real).expect("written")).expect("a report");
        assert_eq!(report.targets[0].rates.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_target_that_is_gone_leaves_the_others_report_and_exits_with_1() {
    let server = start("").await;
    let json = folder("partial").join("report.json");
    let targets =
        ["gone=native,ws://127.0.0.1:1".to_owned(), format!("here=native,ws://{}", server.address())];
    let more = ["--workload", "seed-tts", "--rate", "5", "--window", "900ms", "--json", &text(&json)];
    let output = bench(arguments(&targets, &more)).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).lines().filter(|line| line.starts_with("voxlane: target gone")).count(), 1);
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("a report");
    assert!(report.targets[0].rates.is_empty() && report.targets[1].rates[0].completed > 0, "{report:?}");
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
        &["--workload", "libritts", "--rate", "1e300"],
        &["--workload", "libritts", "--rate", "NaN"],
        &["--workload", "libritts", "--rate", "100000"],
        &["--workload", "libritts", "--rate", "1:1e-9:2"],
        &["--workload", "libritts", "--search", "1:1e12"],
        &["--workload", "/dev/zero", "--rate", "1"],
        &["--workload", "/", "--rate", "1"],
    ] {
        let output = bench(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
    let folder = folder("workloads");
    let line = "{\"text\": \"Good morning.\"}\n";
    for (name, content, what) in [
        ("empty.jsonl", String::new(), "holds no utterance"),
        ("large.jsonl", line.repeat((17 << 20) / line.len()), "larger than 16 MiB"),
        ("odd.jsonl", format!("{line}{{\"text\": \"...\"}}"), "line 2"),
    ] {
        let file = folder.join(name);
        std::fs::write(&file, content).expect("written");
        let output = bench(&["--workload", &text(&file), "--rate", "1"]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(
            stderr(&output).contains(what) && stderr(&output).lines().count() == 1,
            "{}",
            stderr(&output)
        );
    }
    std::fs::remove_dir_all(&folder).expect("removed");
    let unreachable = bench(&["--workload", "libritts", "--rate", "1"]);
    assert_eq!(unreachable.status.code(), Some(1));
    assert_eq!(stderr(&unreachable).lines().count(), 1, "{}", stderr(&unreachable));
    let simulate = voxlane(&["simulate", "--profile", "none", "--workload", "libritts", "--rate", "1"]);
    assert_eq!(simulate.status.code(), Some(2));
}

#[test]
fn what_could_only_mislead_is_refused_before_anything_is_measured() {
    let nowhere = text(&folder("nowhere").join("none/file"));
    let fine = text(&folder("nowhere").join("profile.json"));
    let simulate = [
        "simulate",
        "--profile",
        "h100-published",
        "--workload",
        "seed-tts",
        "--rate",
        "2",
        "--window",
        "1s",
    ];
    let plan = ["plan", "--profile", "h100-published", "--devices", "1", "--json", &nowhere];
    let bench = [
        "bench",
        "--target",
        "a=realtime,ws://127.0.0.1:1",
        "--workload",
        "seed-tts",
        "--rate",
        "1",
        "--exact-frames",
    ];
    for (command, what) in [
        (
            [&simulate[..], &["--variant", "a", "--variant", "a:urgent=off"]].concat(),
            "two variants are called a",
        ),
        ([&simulate[..], &["--decisions", &nowhere]].concat(), "cannot write"),
        (plan.to_vec(), "cannot write"),
        (bench.to_vec(), "cannot fix a request's frames"),
        (vec!["profile", "--out", &nowhere], "cannot write"),
        (vec!["profile", "--out", &fine, "--splits", "1/1", "--svg", &nowhere], "cannot write"),
    ] {
        let output = voxlane(&command);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(what) && stdout(&output).is_empty(), "{}", stderr(&output));
    }
}

#[test]
fn simulate_and_plan_write_what_they_print() {
    let folder = folder("simulated");
    let path = |name: &str| text(&folder.join(name));
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
    let printed = stdout(&output);
    assert!(printed.contains("guessed in the profile") && printed.contains("ratio at 90%"), "{printed}");
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("a report");
    assert_eq!(report.targets.len(), 2);
    assert!(std::fs::read_to_string(folder.join("plots/ttfa.svg")).is_ok_and(|svg| svg.contains("off")));
    let decisions: Value =
        serde_json::from_str(&std::fs::read_to_string(&log).expect("written")).expect("JSON");
    assert!(decisions["on"][0]["launches_by_reason"]["urgent_first"].as_u64() > Some(0), "{decisions}");
    let plan = voxlane(&["plan", "--profile", "h100-published", "--devices", "4"]);
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    assert!(stdout(&plan).lines().count() > 5);
}

#[test]
fn ctrl_c_ends_a_simulation_with_the_rates_that_were_whole() {
    let json = folder("cut-simulation").join("report.json");
    let mut command = binary();
    // Far more rates than are over when the first one is told.
    command.args(["simulate", "--profile", "h100-published", "--workload", "seed-tts", "--window", "3s"]);
    command.args(["--rate", "0.5:0.001:1.4", "--seeds", "50", "--json", &text(&json)]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    // The first rate is whole; the command listens for the signal since before it began.
    assert!(lines.next().expect("a line").expect("readable").contains("at 0.5/s: attained"));
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.expect("kill").success());
    lines.for_each(drop);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("a report");
    let rates = &report.targets[0].rates;
    assert!((1..900).contains(&rates.len()) && !rates[0].cut_short, "{}", rates.len());
    // At most the one under way is not whole, and it comes last.
    assert!(rates.iter().rev().skip(1).all(|rate| !rate.cut_short), "{rates:?}");
    assert!(stdout(&output).contains("capacity (requests/s): at least 0."), "{}", stdout(&output));
}

#[test]
fn a_profile_with_a_stage_missing_is_one_message_and_exit_2() {
    let file = folder("profiles").join("profile.json");
    let whole = include_str!("../../../config/profiles/tiny-2-cores.json");
    for stage in ["decode", "prefill", "codec"] {
        let mut profile: Value = serde_json::from_str(whole).expect("JSON");
        profile["stages"].as_array_mut().expect("stages").retain(|cost| cost["stage"] != stage);
        std::fs::write(&file, profile.to_string()).expect("written");
        for command in
            [&["simulate", "--workload", "seed-tts", "--rate", "1"][..], &["plan", "--devices", "2"]]
        {
            let output = voxlane(&[command, &["--profile", &text(&file)]].concat());
            assert_eq!(output.status.code(), Some(2), "{stage}: {}", stderr(&output));
            assert!(
                stderr(&output).contains(stage) && stderr(&output).lines().count() == 1,
                "{}",
                stderr(&output)
            );
        }
    }
}
