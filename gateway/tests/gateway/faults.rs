//! A server whose processor fails, as a process: rehearsed by scripts on the embedded model.

use crate::cli::{Serving, binary, serving, stderr};
use crate::support::{get, post};

/// Serves the embedded model with faults; gives the admin address as well.
fn rehearse(faults: &str, keys: &[(&str, &str)]) -> (Serving, std::net::SocketAddr) {
    // A free port that is given back: the admin side prints none.
    let admin = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let admin = admin.expect("a free port");
    let mut command = binary();
    command.args(["serve", "--device", "cpu", "--bench", "--listen", "127.0.0.1:0"]);
    command.args(["--admin", &admin.to_string()]).env("VOXLANE_ENGINE_FAULTS", faults);
    command.env("VOXLANE_ENGINE_STUCK_MS", "3000").env("VOXLANE_ENGINE_FIRST_AUDIO_LIMIT_MS", "60000");
    command.envs(keys.iter().copied());
    (serving(command), admin)
}

const SPEECH: &str = r#"{"model":"tts-tiny","input":"The boats came home before the rain.","stream":false}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_stay_says_at_readyz_which_launch_is_stuck() {
    let (server, admin) = rehearse("stuck@decode:5", &[("VOXLANE_SERVER_EXIT_WHEN_LOST", "false")]);
    assert_eq!(get(admin, "/readyz").await.status, 200);
    let answer = post(server.public, "/v1/audio/speech", SPEECH).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "device_lost"));
    let ready = get(admin, "/readyz").await;
    let json = ready.json();
    assert_eq!(ready.status, 503, "{json}");
    for reason in [&json["reason"], &json["devices"][0]["reason"]] {
        let reason = reason.as_str().expect("a reason");
        assert!(reason.contains("a decode of 1 rows in the lm lane has not come back"), "{reason}");
    }
    let refused = post(server.public, "/v1/audio/speech", SPEECH).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"));
    assert_eq!(get(admin, "/livez").await.status, 200);
    let (status, _) = server.terminate();
    assert_eq!(status, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_device_ends_with_1_to_be_started_again() {
    for fault in ["lost@decode:5", "stuck@codec:1", "hang@prefill:1"] {
        let (server, _) = rehearse(fault, &[]);
        let answer = post(server.public, "/v1/audio/speech", SPEECH).await;
        assert_eq!((answer.status, answer.code().as_str()), (500, "device_lost"), "{fault}");
        let (status, log) = tokio::task::spawn_blocking(|| server.ended()).await.expect("no panic");
        assert_eq!(status, Some(1), "{fault}: {log}");
        assert!(log.contains("no device is left"), "{fault}: {log}");
    }
}

#[test]
fn a_server_without_memory_says_what_it_asked_for_what_is_free_and_which_setting_helps() {
    let mut command = binary();
    command.args([
        "serve",
        "--device",
        "cpu",
        "--bench",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    let output = command.env("VOXLANE_ENGINE_FAULTS", "memory@pages:1").output().expect("the binary runs");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["bytes are free", "needs ", "lower engine.contexts_max"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_is_only_for_measuring_is_refused_where_nobody_measures_or_where_it_cannot_be_read() {
    let (faults, without) = ("VOXLANE_ENGINE_FAULTS", "VOXLANE_ENGINE_WITHOUT");
    for (name, bench, value, why) in [
        (faults, "false", "stuck@decode:5", "--bench"),
        (faults, "true", "stuck@talker:5", "stages are"),
        (without, "false", "urgent", "--bench"),
        (without, "true", "lanes", "cannot be left out"),
    ] {
        let mut command = binary();
        command.arg("serve").env(name, value).env("VOXLANE_ENGINE_BENCH", bench);
        let output = command.output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}
