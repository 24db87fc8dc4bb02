//! The binary as a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{get, post};

/// A sentence that must be found nowhere but in the audio.
const CANARY: &str = "The purple canary sings at quarter past nine.";

pub(crate) fn voxlane(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_voxlane")).args(arguments).output().expect("the binary runs")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn temporary(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

#[test]
fn bad_usage_and_bad_config_exit_with_2() {
    assert_eq!(voxlane(&[]).status.code(), Some(2));
    assert_eq!(voxlane(&["sing"]).status.code(), Some(2));
    assert_eq!(voxlane(&["serve", "--listen", "0.0.0.0:8080"]).status.code(), Some(2));
    let open = voxlane(&["serve", "--engine", "scripted", "--listen", "0.0.0.0:0"]);
    assert!(stderr(&open).contains("loopback"), "{}", stderr(&open));
    let file = temporary("typo.toml");
    std::fs::write(&file, "[server]\nlisten_on = \"127.0.0.1:1\"\n").expect("a temporary file");
    let typo = voxlane(&["check", file.to_str().expect("UTF-8")]);
    assert_eq!(typo.status.code(), Some(2));
    assert!(stderr(&typo).contains("server.listen"), "{}", stderr(&typo));
    let missing = voxlane(&["speak", "hello", "--out", "x.mp3", "--engine", "scripted"]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn check_prints_values_origins_and_the_hash() {
    let file = temporary("check.toml");
    std::fs::write(&file, "[opus]\ncomplexity = 3\n").expect("a temporary file");
    let path = file.to_str().expect("UTF-8");
    let checked = Command::new(env!("CARGO_BIN_EXE_voxlane"))
        .args(["check", path])
        .env("VOXLANE_OPUS_THREADS", "2")
        .output()
        .expect("the binary runs");
    assert_eq!(checked.status.code(), Some(0));
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("complexity = 3").ends_with(&format!("# file {path}")), "{text}");
    assert!(
        line("threads = 2 ").ends_with("# default") || text.contains("# environment VOXLANE_OPUS_THREADS")
    );
    assert!(line("listen = \"127.0.0.1:8080\"").ends_with("# default"), "{text}");
    assert!(text.lines().last().is_some_and(|last| last.starts_with("# hash ")), "{text}");
    // What check prints is a configuration itself.
    std::fs::write(&file, &text).expect("a temporary file");
    assert_eq!(voxlane(&["check", path]).status.code(), Some(0));
}

#[test]
fn speak_writes_a_file_and_says_how_fast() {
    for ending in ["wav", "opus", "pcm"] {
        let file = temporary(&format!("out.{ending}"));
        let path = file.to_str().expect("UTF-8");
        let spoken = voxlane(&["speak", CANARY, "--engine", "scripted", "--seed", "4", "--out", path]);
        assert_eq!(spoken.status.code(), Some(0), "{}", stderr(&spoken));
        let text = String::from_utf8_lossy(&spoken.stdout).into_owned();
        for word in ["first audio", "RTF", "reason       done"] {
            assert!(text.contains(word), "{text}");
        }
        let bytes = std::fs::read(&file).expect("the file");
        let samples = (CANARY.chars().count() as f64 * 0.8).ceil() as usize * 1_920;
        match ending {
            "pcm" => assert_eq!(bytes.len(), samples * 2),
            _ => {
                let audio = codecs::read_audio(&bytes, &codecs::AudioLimits::default()).expect("readable");
                assert_eq!(audio.samples.len(), samples, "{ending}");
            }
        }
    }
}

#[test]
fn speak_names_the_valid_voices() {
    let file = temporary("nobody.wav");
    let path = file.to_str().expect("UTF-8");
    let refused = voxlane(&["speak", "hello", "--engine", "scripted", "--voice", "bob", "--out", path]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("steady, instant"), "{}", stderr(&refused));
}

/// `voxlane serve` on free ports, with its ready line read.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) public: std::net::SocketAddr,
    log: std::thread::JoinHandle<String>,
}

pub(crate) fn serve(extra: &[&str]) -> Serving {
    serve_at("127.0.0.1:0", extra)
}

pub(crate) fn serve_at(listen: &str, extra: &[&str]) -> Serving {
    serve_at_both(listen, "127.0.0.1:0", extra)
}

pub(crate) fn serve_at_both(listen: &str, admin: &str, extra: &[&str]) -> Serving {
    let mut child = Command::new(env!("CARGO_BIN_EXE_voxlane"))
        .args(["serve", "--engine", "scripted", "--listen", listen, "--admin", admin])
        .args(extra)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("voxlane is ready: ").and_then(|url| url.split_once("://"));
    let (_, address) = address.expect("the ready line");
    let public = address.trim_end_matches('/').parse().expect("an address");
    let mut errors = child.stderr.take().expect("piped");
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).expect("UTF-8");
        text
    });
    Serving { child, public, log }
}

impl Serving {
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        let status = self.child.wait().expect("an end");
        (status.code(), self.log.join().expect("no panic"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_ends_with_0_after_a_drain_and_its_log_holds_no_text() {
    let server = serve(&[]);
    let body = serde_json::json!({ "input": CANARY }).to_string();
    assert_eq!(post(server.public, "/v1/audio/speech", &body).await.status, 200);
    assert!(get(server.public, "/?canary=purple").await.status < 500);
    let refused = serde_json::json!({ "input": format!("{CANARY} <|x|>") }).to_string();
    assert_eq!(post(server.public, "/v1/audio/speech", &refused).await.status, 400);
    let (mut sender, mut receiver, _) = client::connect(&server.public.to_string()).await.expect("connects");
    sender.open(crate::support::open(1, "instant")).await.expect("sent");
    sender.append(1, CANARY).await.expect("sent");
    sender.append(1, "{\"purple\": }").await.expect("sent");
    sender.end(1).await.expect("sent");
    crate::support::until(&mut receiver, |event| {
        matches!(event, client::Event::Message(proto::wire::ServerMessage::End(_))).then_some(())
    })
    .await;
    let (code, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
    assert!(log.contains("answered"), "there is a log to look at: {log}");
    assert!(!log.contains("purple") && !log.contains("canary"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_port_is_said_and_exits_with_1() {
    let server = serve(&[]);
    let address = server.public.to_string();
    let second = tokio::task::spawn_blocking(move || {
        voxlane(&["serve", "--engine", "scripted", "--listen", &address, "--admin", "127.0.0.1:0"])
    })
    .await
    .expect("no panic");
    assert_eq!(second.status.code(), Some(1));
    let text = stderr(&second);
    assert!(text.contains("in use") && text.contains("--listen"), "{text}");
    let (code, _) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
}
