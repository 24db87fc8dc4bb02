//! A folder of voices that cannot be used: the start says what to do, a running server goes on with what it has.

use serde_json::json;

use crate::cli::{binary, serving, stderr, voxlane};
use crate::keyring::send;
use crate::support::{get, post, start};
use crate::voices::{CLARA, Kept, speech, upload, upload_to};

#[test]
fn a_folder_that_cannot_be_used_ends_the_start_with_what_to_do() {
    let kept = Kept::new("start");
    std::fs::create_dir_all(kept.0.join("music")).expect("made");
    std::fs::create_dir_all(kept.0.join("newer")).expect("made");
    std::fs::create_dir_all(kept.0.join("locked/lock")).expect("made");
    std::fs::write(kept.0.join("file"), "no folder").expect("written");
    std::fs::write(kept.0.join("music/song.wav"), "a song").expect("written");
    let newer = json!({ "format": "voxlane-voices", "version": 9, "voices": [] });
    std::fs::write(kept.0.join("newer/manifest.json"), newer.to_string()).expect("written");
    for (folder, says, advice) in [
        ("file", "cannot make", "can make and write to"),
        ("file/voices", "cannot make", "can make and write to"),
        ("locked", "cannot lock", "can make and write to"),
        ("music", "song.wav", "holds nothing else"),
        ("newer", "version 9", "name another folder"),
    ] {
        let folder = kept.0.join(folder);
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[voices]\nfolder = {:?}\n",
            folder.display().to_string()
        );
        let config = kept.0.join("config.toml");
        std::fs::write(&config, text).expect("written");
        let config = config.display().to_string();
        let ended = voxlane(&["serve", "--engine", "scripted", "--config", &config]);
        let told = stderr(&ended);
        assert_eq!(ended.status.code(), Some(2), "{told}");
        for word in ["voices.folder", says, advice, &folder.display().to_string()] {
            assert!(told.contains(word), "{word:?} in {told}");
        }
    }
    assert!(kept.0.join("music/song.wav").exists(), "nobody's music is swept");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_folder_is_away_uploads_are_refused_by_code_and_what_is_known_speaks_on() {
    let kept = Kept::new("away");
    let server = start(&kept.config()).await;
    let parts = |name: &'static str| -> [(&str, &[u8]); 3] {
        [("name", name.as_bytes()), ("consent", b"yes"), ("audio", CLARA)]
    };
    let made = upload(&server, None, &parts("warm")).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(upload(&server, None, &parts("cold")).await.status, 200);
    assert_eq!(post(server.public, "/v1/audio/speech", &speech("warm")).await.status, 200);
    let faults = async || server.metric("voxlane_voices_folder_faults_total", "").await;
    assert_eq!(faults().await, 0.0);

    let elsewhere = kept.0.with_extension("elsewhere");
    std::fs::rename(&kept.0, &elsewhere).expect("moved");
    let refused = upload(&server, None, &parts("new")).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"), "{}", refused.text());
    let path = format!("/v1/audio/voices/{id}");
    let refused = send(&server, "DELETE", &path, &[], "").await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"), "{}", refused.text());
    assert!(server.metric("voxlane_errors_total", "unavailable").await >= 2.0);
    assert!(faults().await >= 2.0);
    let listed = get(server.public, "/v1/audio/voices").await;
    assert!(listed.status == 200 && listed.text().contains(&id), "{}", listed.text());
    assert_eq!(post(server.public, "/v1/audio/speech", &speech("warm")).await.status, 200, "it is at hand");
    assert_eq!(post(server.public, "/v1/audio/speech", &speech("steady")).await.status, 200, "the model's");
    let unread = post(server.public, "/v1/audio/speech", &speech("cold")).await;
    assert_eq!((unread.status, unread.code().as_str()), (503, "unavailable"), "{}", unread.text());
    assert!(!unread.text().contains(&kept.0.display().to_string()), "paths stay in our log");
    let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
    sender.open(crate::support::open(1, "cold")).await.expect("sent");
    assert_eq!(crate::support::error_code(&mut receiver).await, "unavailable");
    assert_eq!(get(server.admin, "/readyz").await.status, 200, "it serves");

    std::fs::rename(&elsewhere, &kept.0).expect("moved back");
    assert_eq!(upload(&server, None, &parts("new")).await.status, 200);
    assert_eq!(post(server.public, "/v1/audio/speech", &speech("cold")).await.status, 200);
    assert_eq!(send(&server, "DELETE", &path, &[], "").await.status, 200);
}

/// A folder in the way of the file: what is written is refused, what is read goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_takes_nothing_more_is_told_and_left_as_it_was() {
    let kept = Kept::new("full");
    let server = start(&kept.config()).await;
    let parts: [(&str, &[u8]); 3] = [("name", b"warm"), ("consent", b"yes"), ("audio", CLARA)];
    std::fs::create_dir(kept.0.join(".new-manifest.json")).expect("made");
    let refused = upload(&server, None, &parts).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"), "{}", refused.text());
    std::fs::remove_dir(kept.0.join(".new-manifest.json")).expect("removed");
    let sounds = std::fs::read_dir(&kept.0).expect("a folder").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|ending| ending == "wav"))
    });
    assert_eq!(sounds.count(), 0);
    assert_eq!(upload(&server, None, &parts).await.status, 200);
}

/// With the embedded model: what each answer says that it cost, and its samples.
#[tokio::test(flavor = "multi_thread")]
async fn a_clip_is_encoded_once_whatever_it_is_called_and_not_again_after_a_restart() {
    let kept = Kept::new("once");
    std::fs::create_dir_all(&kept.0).expect("made");
    let config = kept.0.with_extension("toml");
    std::fs::write(&config, kept.config()).expect("written");
    let mut sounds = Vec::new();
    let mut encodes = Vec::new();
    for (brought, asked) in [("warm", &["warm", "warm", "again"][..]), ("last", &["warm", "last"])] {
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]).arg(&config);
        let server = tokio::task::spawn_blocking(|| serving(command)).await.expect("no panic");
        let names = if brought == "warm" { &["warm", "again"][..] } else { &["last"] };
        for name in names {
            let parts: [(&str, &[u8]); 3] =
                [("name", name.as_bytes()), ("consent", b"yes"), ("audio", CLARA)];
            assert_eq!(upload_to(server.public, None, &parts).await.status, 200);
        }
        for voice in asked {
            let body = json!({
                "input": "Hi.", "voice": voice, "seed": 3, "response_format": "pcm", "stream": false,
            });
            let answer = post(server.public, "/v1/audio/speech", &body.to_string()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let usage = answer.header("x-voxlane-usage").expect("a usage header");
            let usage: serde_json::Value = serde_json::from_str(usage).expect("JSON");
            encodes.push(usage["encode_ms"].as_f64().expect("a time") > 0.0);
            sounds.push(answer.body);
        }
        assert_eq!(tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic").0, Some(0));
    }
    std::fs::remove_file(&config).expect("removed");
    assert_eq!(encodes, [true, false, false, false, false]);
    assert!(sounds.iter().all(|sound| *sound == sounds[0]), "and it is the same voice");
}
