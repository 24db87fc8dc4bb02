//! What the pages tell a reader to type works as it is written.

use std::process::Command;

use crate::keyring::{Keyring, ask};
use crate::support::{eventually, start};
use crate::voices::{CLARA, Kept};

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = std::fs::read_to_string(path).expect("a page");
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or("").to_owned()).collect()
}

/// Runs a block as a shell does, in the ring's folder, with this build first on the path.
async fn typed(ring: &Keyring, block: &str) -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_voxlane")).parent().expect("a folder").to_owned();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", block]).current_dir(ring.path("")).env("PATH", path);
    let done =
        tokio::task::spawn_blocking(move || shell.output()).await.expect("no panic").expect("bash runs");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{block}\n{out}{err}");
    out.into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_pages_make_a_key_a_token_and_a_voice_as_they_are_written() {
    let ring = Keyring::new();
    let kept = Kept::new("pages");
    let secret = blocks("security.md", "sh");
    assert_eq!(secret.len(), 1, "each block is run here");
    let token = typed(&ring, &secret[0]).await;
    let config = format!("[auth]\nsecret_file = {:?}\n{}", ring.path("secret"), kept.config());
    let server = start(&config).await;
    assert_eq!(ask(&server, token.trim()).await.0, 200);
    std::fs::write(ring.path("clip.mp3"), CLARA).expect("written");
    let voice = blocks("voices.md", "sh");
    assert_eq!(voice.len(), 1, "each block is run here");
    let made = typed(&ring, &voice[0].replace("127.0.0.1:8080", &server.address())).await;
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    assert_eq!((&made["object"], &made["name"]), (&"audio.voice".into(), &"warm".into()), "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_static_keys_of_the_page_are_a_file_that_is_taken() {
    let ring = Keyring::new();
    let example = blocks("security.md", "toml");
    assert_eq!(example.len(), 1, "each block is read here");
    ring.write("page.toml", &example[0]);
    let server = start(&format!("[auth]\napi_keys_file = {:?}\n", ring.path("page.toml"))).await;
    let key = example[0].split("\nkey = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a key");
    eventually("it is let in", async || ask(&server, key).await.0 == 200).await;
}
