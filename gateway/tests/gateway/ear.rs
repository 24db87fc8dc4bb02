//! Text for the ear, sound on request, and what an answer cost, over real sockets.

use codecs::{AudioLimits, wav};
use gateway::config::Layers;
use serde_json::{Value, json};

use crate::cli::serve;
use crate::keyring::Keyring;
use crate::support::{Answer, Running, eventually, post, request, start};

async fn spoken(server: &Running, input: &str, more: Value) -> Answer {
    let mut body = json!({ "input": input, "voice": "instant", "seed": 5, "response_format": "pcm" });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    post(server.public, "/v1/audio/speech", &body.to_string()).await
}

/// What the head of a whole answer says that it cost.
fn usage(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_str(answer.header("x-voxlane-usage").expect("a usage header")).expect("JSON")
}

/// The scripted engine speaks 0.8 frames for a character.
fn frames(words: &str) -> u64 {
    (words.chars().count() as f64 * 0.8).ceil() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_read_for_the_ear_unless_the_request_says_otherwise() {
    let server = start("").await;
    let text = "Dr. Hill paid $3.50";
    for (more, words) in [
        (json!({ "stream": false }), "Doctor Hill paid three dollars and fifty cents"),
        (json!({ "stream": false, "normalize": false }), text),
    ] {
        let usage = usage(&spoken(&server, text, more).await);
        assert_eq!(usage["frames"], frames(words), "{usage}");
        assert_eq!(usage["characters"], 19, "what was sent is counted: {usage}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_is_so_much_silence_and_no_more() {
    let server = start("").await;
    let plain = spoken(&server, "One two. Three four.", json!({ "stream": false })).await;
    let paused = spoken(&server, "One two.<break time=\"700ms\"/>Three four.", json!({})).await;
    let (pairs, _) = paused.body.as_chunks::<2>();
    let samples: Vec<i16> = pairs.iter().map(|pair| i16::from_le_bytes(*pair)).collect();
    let longest = samples.split(|sample| *sample != 0).map(<[i16]>::len).max().unwrap_or(0);
    assert!((16_800..16_900).contains(&longest), "{longest} samples of silence");
    // Two segments round their frames up each.
    let speech = frames("One two.") + frames("Three four.");
    assert_eq!(samples.len() as u64, speech * 1_920 + 16_800);
    assert_eq!(plain.body.len() as u64 / 2, frames("One two. Three four.") * 1_920);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_streamed_knows_its_length_and_says_that_a_machine_spoke() {
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nwhole_answer_s_max = 2\n\
                [engine]\nkind = \"scripted\"\n";
    let config = Layers::default().text("test.toml", text).resolve().and_then(|read| read.config());
    let server = crate::support::start_with(config.expect("valid")).await;
    let answer = spoken(&server, "Whole.", json!({ "stream": false, "response_format": "wav" })).await;
    let file = &answer.body;
    assert_eq!(answer.header("content-length"), Some(file.len().to_string().as_str()));
    assert_eq!(answer.header("transfer-encoding"), None);
    let size = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes")) as usize;
    assert_eq!(size(4), file.len() - 8);
    let data = file.windows(4).position(|four| four == b"data").expect("a data chunk");
    assert_eq!(size(data + 4), file.len() - data - 8);
    let head = String::from_utf8_lossy(&file[..data]);
    assert!(head.contains("AI-generated") && head.contains("trainedAlgorithmicMedia"), "{head}");
    let audio = wav::decode(file, &AudioLimits::default()).expect("readable");
    let usage = usage(&answer);
    assert_eq!(usage["samples"].as_u64(), Some(audio.samples.len() as u64 * 2), "{usage}");
    assert_eq!(usage["encode_ms"], 0.0);
    // Longer than the bound, and what contradicts itself.
    let long = spoken(&server, &"word ".repeat(200), json!({ "stream": false })).await;
    assert_eq!((long.status, long.code().as_str()), (400, "answer_too_long"));
    let both = spoken(&server, "Both.", json!({ "stream": false, "stream_format": "sse" })).await;
    assert_eq!((both.status, both.code().as_str()), (400, "unsupported"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_answer_says_what_it_cost_at_its_end() {
    let server = start("").await;
    let body = json!({ "input": "Streamed.", "voice": "instant", "response_format": "pcm" }).to_string();
    let address = server.public;
    let head = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nhost: {address}\r\nconnection: close, te\r\nte: trailers\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(address).await.expect("a listener");
    let mut raw = Vec::new();
    {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        socket.write_all(head.as_bytes()).await.expect("sent");
        socket.read_to_end(&mut raw).await.expect("read");
    }
    let text = String::from_utf8_lossy(&raw);
    assert!(text.to_lowercase().contains("\r\ntrailer: x-voxlane-usage\r\n"), "{}", &text[..400]);
    let trailer = text.rsplit("x-voxlane-usage: ").next().and_then(|rest| rest.lines().next()).expect("it");
    let usage: Value = serde_json::from_str(trailer).expect("JSON");
    assert_eq!((&usage["characters"], &usage["frames"]), (&json!(9), &json!(frames("Streamed."))));
    let events = spoken(&server, "Streamed.", json!({ "stream_format": "sse" })).await.text();
    let done = events.lines().find(|line| line.contains("speech.audio.done")).expect("a last event");
    let done: Value = serde_json::from_str(done.trim_start_matches("data: ")).expect("JSON");
    assert_eq!(done["usage"]["characters"], 9);
    assert_eq!(done["usage"]["audio_ms"], frames("Streamed.") * 80);
}

#[tokio::test(flavor = "multi_thread")]
async fn loudness_comes_to_its_target() {
    let server = start("").await;
    // Of the last second: a stream has come near by then.
    let rms = |answer: &Answer| {
        let (pairs, _) = answer.body[answer.body.len() - 48_000..].as_chunks::<2>();
        let power: f64 = pairs.iter().map(|pair| f64::from(i16::from_le_bytes(*pair)).powi(2)).sum();
        10.0 * (power / pairs.len() as f64).log10()
    };
    let text = "A tone that goes on for some seconds, so that its loudness can be measured well enough.";
    let at = async |lufs: i8, stream: bool| {
        rms(&spoken(&server, text, json!({ "loudness": lufs, "stream": stream })).await)
    };
    let (quiet, loud) = (at(-30, false).await, at(-20, false).await);
    assert!((loud - quiet - 10.0).abs() < 0.1, "{quiet} and {loud} dB");
    let streamed = (at(-30, true).await, at(-20, true).await);
    assert!((streamed.0 - quiet).abs() < 1.5 && (streamed.1 - loud).abs() < 1.5, "{streamed:?} dB");
    let refused = spoken(&server, text, json!({ "loudness": -5 })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "field_out_of_range"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_says_its_words_by_its_lexicon_and_a_hangup_reads_it_again() {
    let ring = Keyring::new();
    std::fs::create_dir_all(ring.folder.join("words")).expect("a folder");
    ring.write("words/default.toml", "gif = \"jif\"\nsql = \"sequel\"\n");
    ring.write("words/acme.toml", "SQL = \"squirrel\"\n");
    let voices = format!("[voices]\nlexicons = {:?}\n", ring.path("words"));
    ring.write("voxlane.toml", &format!("{}{voices}", ring.config("")));
    let server = serve(&["--config", &ring.path("voxlane.toml")]);
    let (address, pid) = (server.public, server.child.id().to_string());
    let cost = async |input: &str| {
        let body = json!({ "input": input, "voice": "instant", "stream": false }).to_string();
        let head = format!(
            "POST /v1/audio/speech HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             authorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            crate::keyring::API_KEY,
            body.len()
        );
        usage(&request(address, &head).await)["frames"].as_u64()
    };
    // The key's tenant is acme: its own word goes before everybody's.
    assert_eq!(cost("gif of SQL").await, Some(frames("jif of squirrel")));
    ring.write("words/acme.toml", "sql = \"S Q L\"\ngif = \"graphics interchange\"\n");
    let hangup = || {
        let told = std::process::Command::new("kill").args(["-HUP", &pid]).status().expect("kill");
        assert!(told.success());
    };
    hangup();
    let new = Some(frames("graphics interchange of S Q L"));
    eventually("the new words are taken", async || cost("gif of SQL").await == new).await;
    // A lexicon that cannot be read changes nothing.
    ring.write("words/acme.toml", "\"two words\" = \"x\"\n");
    hangup();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(cost("gif of SQL").await, new);
    let (code, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    assert_eq!(code, Some(0));
    assert!(log.contains("cannot be reloaded") && log.contains("acme.toml"), "{log}");
    assert!(!log.contains("squirrel"), "a lexicon is text of a tenant's: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_and_what_was_abandoned_stand_in_the_usage_log_too() {
    let ring = Keyring::new();
    let path = ring.path("usage.jsonl");
    let server = start(&format!("[log]\nusage = {path:?}\n")).await;
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).expect("a log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let text = "A sentence that has some length, for the failing voice.";
    let failed = spoken(&server, text, json!({ "voice": "failing" })).await;
    assert!(!failed.whole, "the body broke off");
    eventually("a failure is written", async || lines().len() == 1).await;
    // One whose client goes away in the middle, on either door.
    let body = json!({ "input": text.repeat(20), "voice": "steady", "response_format": "pcm" }).to_string();
    let head = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(server.public).await.expect("a listener");
    {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let host = server.public.to_string();
        socket.write_all(head.replace("host: x", &format!("host: {host}")).as_bytes()).await.expect("sent");
        let mut some = [0; 4_096];
        socket.read_exact(&mut some).await.expect("sound");
    }
    drop(socket);
    eventually("an abandoned answer is written", async || lines().len() == 2).await;
    let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
    sender.open(crate::support::open(3, "steady")).await.expect("sent");
    sender.append(3, &text.repeat(20)).await.expect("sent");
    crate::support::until(&mut receiver, |event| matches!(event, client::Event::Packet { .. }).then_some(()))
        .await;
    sender.close().await.expect("closed");
    eventually("an abandoned context is written", async || lines().len() == 3).await;
    let lines = lines();
    let of = |at: usize, field: &str| lines[at][field].clone();
    assert_eq!((of(0, "reason"), of(0, "characters")), (json!("failed"), json!(55)));
    assert_eq!((of(1, "reason"), of(1, "door")), (json!("cancelled"), json!("speech")));
    assert_eq!((of(2, "reason"), of(2, "door")), (json!("cancelled"), json!("stream")));
    for line in &lines {
        assert!(line["frames"].as_u64().is_some_and(|frames| frames > 0), "{line}");
        assert!(line["audio_ms"].as_u64().is_some_and(|ms| ms > 0), "{line}");
    }
    assert_eq!(of(2, "characters"), 55 * 20);
}
