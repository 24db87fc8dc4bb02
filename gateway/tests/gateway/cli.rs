//! The binary as a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{get, post};

/// A sentence that must be found nowhere but in the audio.
const CANARY: &str = "The purple canary sings at quarter past nine.";

/// The binary, without what the shell that runs the tests says to it.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_voxlane"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("VOXLANE_")) {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn voxlane(arguments: &[&str]) -> Output {
    binary().args(arguments).output().expect("the binary runs")
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
    let checked =
        binary().args(["check", path]).env("VOXLANE_OPUS_THREADS", "2").output().expect("the binary runs");
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
fn check_refuses_what_serve_refuses_and_with_the_same_words() {
    let file = temporary("refused.toml");
    let path = file.to_str().expect("UTF-8");
    for (text, word) in [
        ("[server]\nlisten = \"0.0.0.0:0\"\n", "server.listen"),
        ("[server]\nadmin = \"192.0.2.1:0\"\n", "server.admin"),
        ("[engine]\ndevice = \"tpu:0\"\n", "engine.device"),
        ("[engine]\ndevice = \"cpu:one\"\n", "engine.device"),
        ("[engine]\ndevice = \"cuda:0,cuda:0\"\n", "cuda:0 is named twice"),
        ("[engine]\ndevice = \"cpu:0,cpu:0\"\n", "core 0 is named twice"),
        ("[engine]\nseed = \"x\"\n", "engine.seed"),
        ("[engine]\nrandom_weights = \"qwen3-tts-9b\"\n", "use qwen3-tts-1.7b or qwen3-tts-0.6b"),
        ("[engine]\nsplit = \"100/0\"\n", "is no split"),
        ("[log]\nfilter = \"gateway=loud\"\n", "log.filter"),
    ] {
        std::fs::write(&file, text).expect("a temporary file");
        let checked = voxlane(&["check", path]);
        let served = voxlane(&["serve", "--config", path]);
        assert_eq!((checked.status.code(), served.status.code()), (Some(2), Some(2)), "{text}");
        assert!(stderr(&checked).contains(word), "{}", stderr(&checked));
        assert_eq!(stderr(&checked), stderr(&served));
    }
}

#[test]
fn a_speak_that_fails_leaves_no_file_and_spares_an_older_one() {
    let folder = temporary("kept");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("out.wav");
    let path = file.to_str().expect("UTF-8");
    let listed = || std::fs::read_dir(&folder).expect("readable").count();
    // One is refused, the other fails after it has spoken for a while.
    for arguments in [["...", "steady"], ["A text that ends too soon, by the script.", "failing"]] {
        let [text, voice] = arguments;
        let speak = ["speak", text, "--engine", "scripted", "--voice", voice, "--out", path];
        assert_eq!(voxlane(&speak).status.code(), Some(1), "{voice}");
        assert_eq!(listed(), 0, "{voice}");
        std::fs::write(&file, "older").expect("written");
        assert_eq!(voxlane(&speak).status.code(), Some(1), "{voice}");
        assert_eq!((listed(), std::fs::read(&file).expect("still there").as_slice()), (1, &b"older"[..]));
        std::fs::remove_file(&file).expect("removed");
    }
    let spoken = voxlane(&["speak", "Whole.", "--engine", "scripted", "--out", path]);
    assert_eq!((spoken.status.code(), listed()), (Some(0), 1), "{}", stderr(&spoken));
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn a_speak_that_is_stopped_by_a_signal_leaves_no_file() {
    let folder = temporary("stopped");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("out.wav");
    let text = "This goes on for long enough to be stopped. ".repeat(200);
    for signal in ["-TERM", "-INT"] {
        let arguments = ["speak", &text, "--engine", "scripted", "--out", file.to_str().expect("UTF-8")];
        let mut child = Command::new(env!("CARGO_BIN_EXE_voxlane"))
            .args(arguments)
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let part = folder.join(format!(".out.wav.{}.part", child.id()));
        while !part.exists() {
            assert_eq!(child.try_wait().expect("waitable"), None, "it ended before it was stopped");
            std::thread::yield_now();
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
        assert_eq!(child.wait().expect("ends").code(), Some(1), "{signal}");
        assert_eq!(std::fs::read_dir(&folder).expect("readable").count(), 0, "{signal}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn files_that_are_no_files_are_refused_and_never_waited_for() {
    let pipe = temporary("pipe.wav");
    let path = pipe.to_str().expect("UTF-8");
    drop(std::fs::remove_file(&pipe));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let out = temporary("unheard.wav");
    let scripted = format!("scripted:{path}");
    let speak = ["speak", "hello", "--engine", "scripted", "--out"];
    let outputs = [
        voxlane(&[&speak[..], &[out.to_str().expect("UTF-8"), "--reference", path]].concat()),
        voxlane(&[&speak[..], &[out.to_str().expect("UTF-8"), "--reference", "/dev/zero"]].concat()),
        voxlane(&[&speak[..], &[path]].concat()),
        voxlane(&["speak", "hello", "--engine", &scripted, "--out", out.to_str().expect("UTF-8")]),
        voxlane(&["check", path]),
        voxlane(&["serve", "--config", path]),
    ];
    for output in outputs {
        assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
        assert!(stderr(&output).contains("regular file"), "{}", stderr(&output));
    }
    let huge = temporary("huge.wav");
    std::fs::File::create(&huge).expect("created").set_len(1 << 40).expect("a sparse file");
    let arguments =
        [&speak[..], &[out.to_str().expect("UTF-8"), "--reference", huge.to_str().expect("UTF-8")]];
    let refused = voxlane(&arguments.concat());
    assert!(stderr(&refused).contains("bytes long; at most"), "{}", stderr(&refused));
    for file in [pipe, huge] {
        std::fs::remove_file(file).expect("removed");
    }
}

#[test]
fn speak_takes_any_clip_that_an_upload_may_be_and_counts_pauses_in_its_file() {
    let uploads = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/uploads");
    let out = temporary("cloned.wav");
    let path = out.to_str().expect("UTF-8");
    for clip in ["clara-stereo.mp3", "clara.flac", "clara.webm", "clara-opus.ogg"] {
        let clip = format!("{uploads}/{clip}");
        let text = "One.<break time=\"500ms\"/>Two.";
        let spoken = voxlane(&["speak", text, "--engine", "scripted", "--reference", &clip, "--out", path]);
        assert_eq!(spoken.status.code(), Some(0), "{clip}: {}", stderr(&spoken));
        let file = std::fs::read(&out).expect("a file");
        let audio = codecs::wav::decode(&file, &codecs::AudioLimits::default()).expect("true sizes");
        let longest = audio.samples.split(|sample| *sample != 0.0).map(<[f32]>::len).max();
        assert!(longest.is_some_and(|samples| (12_000..12_100).contains(&samples)), "{longest:?}");
    }
    let silent = temporary("silent.wav");
    std::fs::write(&silent, codecs::wav::encode(&[0.0; 48_000], 16_000).expect("a file")).expect("written");
    let clip = silent.to_str().expect("UTF-8");
    let refused = voxlane(&["speak", "Hi.", "--engine", "scripted", "--reference", clip, "--out", path]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("silent"), "{}", stderr(&refused));
    for file in [out, silent] {
        std::fs::remove_file(file).expect("removed");
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
    let mut command = binary();
    command.args(["serve", "--engine", "scripted", "--listen", listen, "--admin", "127.0.0.1:0"]).args(extra);
    serving(command)
}

/// A server that this command starts, once it is ready.
pub(crate) fn serving(mut command: Command) -> Serving {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
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
    pub(crate) fn terminate(self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        self.ended()
    }

    /// Waits until it ends by itself.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
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
    let refused = serde_json::json!({ "input": format!("{CANARY} <|im_end|>") }).to_string();
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
async fn twenty_servers_stopped_while_they_speak_end_each_stream_with_a_close_and_each_body_whole() {
    let file = temporary("grace.toml");
    std::fs::write(&file, "[server]\ndrain_grace_ms = 400\n").expect("a temporary file");
    let path = file.to_str().expect("UTF-8").to_owned();
    let long = "No end in sight. ".repeat(100);
    let short = serde_json::json!({ "input": "Soon done.", "response_format": "pcm" }).to_string();
    let (mut cut, mut whole) = (0, 0);
    for round in 0..20 {
        let server = serve(&["--config", &path]);
        let (mut sender, mut receiver, _) =
            client::connect(&server.public.to_string()).await.expect("connects");
        sender.open(crate::support::open(1, "steady")).await.expect("sent");
        // One in two ends within the grace period, the other is cut by it.
        let text = if round % 2 == 0 { long.as_str() } else { "Soon done." };
        sender.append(1, text).await.expect("sent");
        sender.end(1).await.expect("sent");
        crate::support::until(&mut receiver, |event| {
            matches!(event, client::Event::Packet { .. }).then_some(())
        })
        .await;
        let speaking = tokio::spawn({
            let (address, short) = (server.public, short.clone());
            async move { post(address, "/v1/audio/speech", &short).await }
        });
        // Time for the request to arrive, a different one each round.
        tokio::time::sleep(std::time::Duration::from_millis(20 + 7 * round)).await;
        let ending = tokio::task::spawn_blocking(|| server.terminate());
        let mut ended = false;
        let code = loop {
            match crate::support::next(&mut receiver).await {
                client::Event::Closed { code, .. } => break code,
                client::Event::Message(proto::wire::ServerMessage::End(_)) => ended = true,
                _ => {}
            }
        };
        // 1012: nothing was being spoken any more. 1006 would be a socket that ended without a Close.
        assert!(code == 1_001 || (code == 1_012 && ended), "round {round}: {code}");
        if ended {
            whole += 1
        } else {
            cut += 1
        }
        let answer = speaking.await.expect("no panic");
        assert!(answer.status == 503 || (answer.status == 200 && answer.whole), "round {round}: {answer:?}");
        assert_eq!(ending.await.expect("no panic").0, Some(0));
    }
    assert_eq!((cut, whole), (10, 10));
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

#[test]
fn a_reader_that_has_enough_ends_no_command_in_a_panic() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/voxlane.toml");
    let mut command = binary();
    command.args(["check", config]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
