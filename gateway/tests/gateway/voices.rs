//! Reference audio over HTTP: brought, judged, kept, spoken with, forgotten; and what is no reference.

use std::net::SocketAddr;
use std::path::PathBuf;

use proto::wire::{Flags, Header, PacketKind, ServerMessage};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::keyring::{Keyring, claims_with, get_with, hs256, send};
use crate::support::{Answer, Running, get, post, request_bytes, start};

pub(crate) const CLARA: &[u8] = include_bytes!("../../../config/models/tiny/voices/clara.wav");
const CLARA_MP3: &[u8] = include_bytes!("../../../tests/golden/uploads/clara.mp3");
const CLARA_WEBM: &[u8] = include_bytes!("../../../tests/golden/uploads/clara.webm");

/// A folder for voices that goes when the test does.
pub(crate) struct Kept(pub(crate) PathBuf);

impl Kept {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("voices-{}-{name}", std::process::id());
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(std::fs::remove_dir_all(&folder));
        Self(folder)
    }

    pub(crate) fn config(&self) -> String {
        format!(
            "[voices]\nfolder = {:?}\nper_tenant_max = 3\nupload_bytes_max = 1000000\n",
            self.0.display().to_string()
        )
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in parts {
        let file = if name.starts_with("audio") { "; filename=\"clip\"" } else { "" };
        body.extend_from_slice(
            format!("--border\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n").as_bytes(),
        );
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--border--\r\n");
    body
}

pub(crate) async fn upload(server: &Running, token: Option<&str>, parts: &[(&str, &[u8])]) -> Answer {
    upload_to(server.public, token, parts).await
}

pub(crate) async fn upload_to(address: SocketAddr, token: Option<&str>, parts: &[(&str, &[u8])]) -> Answer {
    post_form(address, token, &form(parts), "multipart/form-data; boundary=border", "").await
}

async fn post_form(address: SocketAddr, token: Option<&str>, body: &[u8], kind: &str, more: &str) -> Answer {
    let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let head = format!(
        "POST /v1/audio/voices HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: {kind}\r\n{authorization}{more}content-length: {}\r\n\r\n",
        address,
        body.len()
    );
    request_bytes(address, &[head.as_bytes(), body].concat()).await
}

pub(crate) fn speech(voice: &str) -> String {
    json!({ "input": "Hello there.", "voice": voice, "response_format": "pcm" }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clip_is_kept_listed_spoken_with_encoded_once_and_forgotten() {
    let kept = Kept::new("life");
    let server = start(&kept.config()).await;
    let parts: [(&str, &[u8]); 4] =
        [("name", b"warm"), ("consent", b"I agree. - C."), ("audio", CLARA), ("language", b"english")];
    let made = upload(&server, None, &parts).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let made = made.json();
    let id = made["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("v-") && id.len() == 34, "{id}");
    assert_eq!(
        (&made["object"], &made["type"], &made["name"]),
        (&json!("audio.voice"), &json!("clip"), &json!("warm"))
    );
    let list = || std::fs::read_to_string(kept.0.join("manifest.json")).expect("a list");
    assert!(list().contains("I agree. - C."), "what the speaker agreed to is kept with the clip");
    let listed = get(server.public, "/v1/audio/voices").await.json();
    assert!(listed["data"].as_array().expect("a list").contains(&made), "{listed}");
    let encodes = async || server.metric("voxlane_engine_encodes_total", "").await;
    assert_eq!(encodes().await, 0.0, "nothing is encoded before it is needed");
    assert_eq!(post(server.public, "/v1/audio/speech", &speech(&id)).await.status, 200);
    assert_eq!(encodes().await, 1.0);
    // By name; under another name; as a request's own clip: it is the same clip.
    assert_eq!(post(server.public, "/v1/audio/speech", &speech("warm")).await.status, 200);
    let again: [(&str, &[u8]); 3] = [("name", b"again"), ("consent", b"yes"), ("audio_sample", CLARA)];
    let again = upload(&server, None, &again).await.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(post(server.public, "/v1/audio/speech", &speech(&again)).await.status, 200);
    let audio = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, CLARA);
    let given =
        json!({ "input": "Hello.", "response_format": "pcm", "reference": { "audio": audio } }).to_string();
    assert_eq!(post(server.public, "/v1/audio/speech", &given).await.status, 200);
    assert_eq!(encodes().await, 1.0, "one clip, one encode");
    assert_eq!(server.metric("voxlane_engine_encode_hits_total", "").await, 3.0);

    // Forgotten: gone from the list, unknown to speak with; the other voice has the same clip and stays.
    let deleted = send(&server, "DELETE", &format!("/v1/audio/voices/{id}"), &[], "").await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(true)));
    assert!(!list().contains("I agree. - C.") && !list().contains(&id));
    let unknown = post(server.public, "/v1/audio/speech", &speech(&id)).await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "unknown_voice"));
    let twice = send(&server, "DELETE", &format!("/v1/audio/voices/{id}"), &[], "").await;
    assert_eq!((twice.status, twice.code().as_str()), (404, "unknown_voice"));
    assert_eq!(post(server.public, "/v1/audio/speech", &speech("again")).await.status, 200);
    assert_eq!(encodes().await, 1.0);
    assert_eq!(send(&server, "DELETE", &format!("/v1/audio/voices/{again}"), &[], "").await.status, 200);
    assert!(
        !std::fs::read_dir(&kept.0).expect("a folder").any(|entry| {
            entry.expect("an entry").path().extension().is_some_and(|ending| ending == "wav")
        })
    );
    // Now the engine has forgotten it, too.
    assert_eq!(post(server.public, "/v1/audio/speech", &given).await.status, 200);
    assert_eq!(encodes().await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_outlive_a_restart_and_are_shared_by_processes_of_one_folder() {
    let kept = Kept::new("restart");
    let first = start(&kept.config()).await;
    let second = start(&kept.config()).await;
    let parts: [(&str, &[u8]); 3] = [("name", b"warm"), ("consent", b"yes"), ("audio", CLARA_MP3)];
    assert_eq!(upload(&first, None, &parts).await.status, 200);
    assert_eq!(post(second.public, "/v1/audio/speech", &speech("warm")).await.status, 200);
    drop((first, second));
    let third = start(&kept.config()).await;
    assert_eq!(post(third.public, "/v1/audio/speech", &speech("warm")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_belong_to_a_tenant_within_its_quota() {
    let ring = Keyring::new();
    let kept = Kept::new("tenants");
    let server = start(&format!("{}{}", ring.config(""), kept.config())).await;
    let token = |tenant: &str, subject: &str, scope: &str| {
        let mut claims = claims_with("tenant", json!(tenant));
        claims["sub"] = json!(subject);
        claims["scope"] = json!(scope);
        hs256(&claims)
    };
    let (ann, bob, eve) = (
        token("acme", "ann", "speak voices"),
        token("acme", "bob", "speak"),
        token("evil", "eve", "speak voices"),
    );
    let bring = async |name: &str, sharing: &str, token: &str| {
        let parts: [(&str, &[u8]); 4] = [
            ("name", name.as_bytes()),
            ("consent", b"yes"),
            ("audio", CLARA_WEBM),
            ("sharing", sharing.as_bytes()),
        ];
        upload(&server, Some(token), &parts).await
    };
    assert_eq!(bring("warm", "tenant", &ann).await.status, 200);
    assert_eq!(bring("mine", "subject", &ann).await.status, 200);
    let refused = bring("all", "everyone", &ann).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "insufficient_scope"));
    let scope = bring("x", "tenant", &bob).await;
    assert_eq!((scope.status, scope.code().as_str()), (403, "insufficient_scope"));
    let twice = bring("warm", "tenant", &ann).await;
    assert_eq!((twice.status, twice.code().as_str()), (409, "voice_exists"));
    assert_eq!(bring("all", "everyone", &token("acme", "root", "admin")).await.status, 200);
    let over = bring("more", "tenant", &ann).await;
    assert_eq!((over.status, over.code().as_str()), (429, "quota_exceeded"));
    assert!(server.metric("voxlane_errors_total", "quota_exceeded").await >= 1.0);
    let names = async |token: &str| -> Vec<String> {
        let bearer = format!("Bearer {token}");
        let listed = get_with(&server, "/v1/audio/voices", &[("authorization", &bearer)]).await.json();
        let entries = listed["data"].as_array().expect("a list").iter();
        let kept = entries.filter(|entry| {
            entry["type"] == "clip" && entry["id"].as_str().is_some_and(|id| id.starts_with("v-"))
        });
        kept.map(|entry| entry["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&ann).await, ["warm", "mine", "all"]);
    assert_eq!(names(&bob).await, ["warm", "all"]);
    assert_eq!(names(&eve).await, ["all"]);
    for (voice, token, status) in
        [("warm", &bob, 200), ("mine", &bob, 404), ("warm", &eve, 404), ("all", &eve, 200)]
    {
        let bearer = format!("Bearer {token}");
        let answer =
            send(&server, "POST", "/v1/audio/speech", &[("authorization", &bearer)], &speech(voice)).await;
        assert_eq!(answer.status, status, "{voice}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_reference_is_refused_by_status_and_code() {
    let kept = Kept::new("refused");
    let server = start(&kept.config()).await;
    let silence = [&CLARA[..44], &vec![0; CLARA.len() - 44]].concat();
    let mut loud = CLARA.to_vec();
    for (at, byte) in loud.iter_mut().enumerate().skip(44) {
        *byte = if at / 120 % 2 == 0 { [0xFF, 0x7F][at % 2] } else { [0x01, 0x80][at % 2] };
    }
    let mut no_channels = CLARA.to_vec();
    no_channels[22] = 0;
    let mut fast = CLARA.to_vec();
    fast[24..28].copy_from_slice(&96_000_u32.to_le_bytes());
    let short = {
        let data = 24_000_u32; // half a second
        let mut short = CLARA[..44 + data as usize].to_vec();
        short[4..8].copy_from_slice(&(36 + data).to_le_bytes());
        short[40..44].copy_from_slice(&data.to_le_bytes());
        short
    };
    let mut counted = 0.0;
    for (what, audio, says) in [
        ("silence", &silence[..], "silent"),
        ("a square wave at full scale", &loud, "clipped"),
        ("half a second", &short, "at least 1000 ms"),
        ("no channels", &no_channels, "channel"),
        ("96 kHz", &fast, "sample rate"),
        ("half a file", &CLARA_MP3[..200], ""),
        ("a text", b"http://example.com/voice.wav", "first bytes"),
        ("a path", b"/etc/passwd", "first bytes"),
    ] {
        let parts: [(&str, &[u8]); 3] = [("name", b"x"), ("consent", b"yes"), ("audio", audio)];
        let answer = upload(&server, None, &parts).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "bad_reference"),
            "{what}: {}",
            answer.text()
        );
        assert!(answer.text().contains(says), "{what}: {}", answer.text());
        // The same bytes with a request.
        let audio = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, audio);
        let given = json!({ "input": "Hi.", "reference": { "audio": audio } }).to_string();
        let answer = post(server.public, "/v1/audio/speech", &given).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_reference"), "{what}");
        counted += 2.0;
    }
    assert_eq!(server.metric("voxlane_errors_total", "bad_reference").await, counted);
    let good: [(&str, &[u8]); 3] = [("name", b"x"), ("consent", b"yes"), ("audio", CLARA)];
    let long = [&[b' '][..], &[b'x'; 128]].concat();
    for (what, parts, status, code) in [
        ("no name", &good[1..], 400, "missing_field"),
        ("no consent", &[good[0], good[2]], 400, "missing_field"),
        ("no clip", &good[..2], 400, "missing_field"),
        ("a URL", &[good[0], good[1], ("url", b"http://example.com/v.wav")], 400, "unknown_field"),
        ("a path", &[good[0], good[1], ("path", b"/etc/passwd")], 400, "unknown_field"),
        ("a part twice", &[good[0], good[0], good[1]], 400, "duplicate_field"),
        ("a mode there is not", &[good[0], good[1], ("mode", b"exact")], 400, "field_out_of_range"),
        (
            "in context without words",
            &[good[0], good[1], good[2], ("mode", b"in_context")],
            400,
            "missing_field",
        ),
        ("a name too long with its space", &[("name", &long), good[1], good[2]], 400, "field_out_of_range"),
        (
            "a mode with a space",
            &[good[0], good[1], good[2], ("mode", b"speaker ")],
            400,
            "field_out_of_range",
        ),
        ("a name with a line break", &[("name", b"a\nb"), good[1], good[2]], 400, "missing_field"),
        (
            "a language with a null",
            &[good[0], good[1], good[2], ("language", b"en\0")],
            400,
            "field_out_of_range",
        ),
        ("consent that is no UTF-8", &[good[0], ("consent", &[0xFF]), good[2]], 400, "field_out_of_range"),
    ] as [(&str, &[(&str, &[u8])], u16, &str); 13]
    {
        let answer = upload(&server, None, parts).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{what}: {}", answer.text());
    }
    let kind = "multipart/form-data; boundary=border";
    let whole = form(&good);
    let json = post_form(server.public, None, b"{}", "application/json", "").await;
    assert_eq!((json.status, json.code().as_str()), (415, "unsupported_media_type"));
    let squeezed = post_form(server.public, None, &whole, kind, "content-encoding: gzip\r\n").await;
    assert_eq!((squeezed.status, squeezed.code().as_str()), (415, "unsupported_media_type"));
    let broken = post_form(server.public, None, &whole[..whole.len() / 2], kind, "").await;
    assert_eq!((broken.status, broken.code().as_str()), (400, "bad_form"));
    let borderless = post_form(server.public, None, &whole, "multipart/form-data", "").await;
    assert_eq!((borderless.status, borderless.code().as_str()), (400, "bad_form"));
    // Too large by its own word, before a byte of the body is read; and without a word, while it is.
    let head = format!(
        "POST /v1/audio/voices HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: 99999999\r\n\r\n",
        server.public
    );
    let answer = request_bytes(server.public, head.as_bytes()).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"));
    let giant = form(&[("name", b"x"), ("consent", b"yes"), ("audio", &vec![0; 1_000_001])]);
    let answer = post_form(server.public, None, &giant, kind, "").await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"));
    // A part whose head has no end, and what stands before the first part, in pieces that say no length.
    for opening in ["--border\r\ncontent-disposition: ", "no border yet "] {
        let filler = "x".repeat(60_000);
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let head = format!(
            "POST /v1/audio/voices HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n",
            server.public
        );
        let endless = head + &chunk(opening) + &chunk(&filler).repeat(20);
        let answer = request_bytes(server.public, endless.as_bytes()).await;
        assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"), "{opening}");
    }
    // Nothing of all this was kept.
    let listed = get(server.public, "/v1/audio/voices").await.json();
    let kept = listed["data"].as_array().expect("a list").iter();
    assert_eq!(kept.filter(|entry| entry["id"].as_str().is_some_and(|id| id.starts_with("v-"))).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_folder_keeps_nothing_but_clones_with_each_request() {
    let server = start("").await;
    let parts: [(&str, &[u8]); 3] = [("name", b"x"), ("consent", b"yes"), ("audio", CLARA)];
    let answer = upload(&server, None, &parts).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "unsupported"));
    let audio = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, CLARA_MP3);
    let ask = |reference: Value| {
        json!({ "input": "Hi.", "response_format": "pcm", "reference": reference }).to_string()
    };
    let good = ask(json!({ "audio": audio, "transcript": "Some words." }));
    assert_eq!(post(server.public, "/v1/audio/speech", &good).await.status, 200);
    for (reference, code) in [
        (json!({}), "missing_field"),
        (json!({ "audio": "!!" }), "bad_reference"),
        (json!({ "audio": audio, "url": "http://example.com" }), "unknown_field"),
        (json!({ "audio": audio, "mode": "exact" }), "field_out_of_range"),
        (json!("/etc/passwd"), "wrong_type"),
    ] {
        let answer = post(server.public, "/v1/audio/speech", &ask(reference.clone())).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{reference}");
    }
    let both = json!({ "input": "Hi.", "voice": "steady", "reference": { "audio": audio } }).to_string();
    assert_eq!(post(server.public, "/v1/audio/speech", &both).await.code(), "unsupported");
}

/// Sends a clip in binary messages of 60 ms, as `open` announced it.
pub(crate) async fn stream_clip(sender: &mut client::Sender, kind: PacketKind, pieces: &[Vec<u8>]) {
    for packet in packets(kind, pieces) {
        sender.raw(Message::binary(packet)).await.expect("sent");
    }
}

/// A whole clip for context 1.
pub(crate) fn packets(kind: PacketKind, pieces: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let packet = |(at, piece): (usize, &Vec<u8>)| {
        let last = at + 1 == pieces.len();
        let header = Header {
            kind,
            flags: if last { Flags::END } else { Flags::NONE },
            context: 1,
            sequence: u32::try_from(at + 1).expect("few"),
            timestamp: 0,
            duration: 2_880,
            epoch: contract::Epoch(0),
        };
        [&header.encode()[..], piece].concat()
    };
    pieces.iter().enumerate().map(packet).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clip_streamed_over_the_socket_speaks_and_a_silent_one_is_refused_by_name() {
    let server = start("").await;
    let pcm: Vec<Vec<u8>> = CLARA[44..].chunks(2_880).map(<[u8]>::to_vec).collect();
    let samples: Vec<f32> =
        CLARA[44..].as_chunks::<2>().0.iter().map(|s| f32::from(i16::from_le_bytes(*s)) / 32_768.0).collect();
    let settings = codecs::opus::OpusSettings::default();
    let mut encoder = codecs::opus::OpusEncoder::new(settings).expect("an encoder");
    let mut opus: Vec<Vec<u8>> = Vec::new();
    for piece in samples.chunks(480) {
        let packets = encoder.push(piece).expect("encoded");
        opus.extend(packets.iter().map(|packet| packet.data.to_vec()));
    }
    let silent = vec![vec![0; 2_880]; 40];
    let g711: Vec<Vec<u8>> = samples
        .as_chunks::<3>()
        .0
        .chunks(480)
        .map(|piece| {
            piece.iter().map(|three| codecs::g711::mu_law_from_i16(codecs::pcm::to_i16(three[1]))).collect()
        })
        .collect();
    // 31 s: fewer bytes than 30 s may have at a higher rate.
    let long: Vec<Vec<u8>> = g711.iter().cycle().take(31_000 / 60).cloned().collect();
    for (what, codec, kind, pieces, good) in [
        ("PCM", json!({ "codec": "pcm", "sample_rate": 24_000 }), PacketKind::Pcm, &pcm, true),
        ("Opus", json!({ "codec": "opus", "transcript": "Words." }), PacketKind::Opus, &opus, true),
        ("G.711", json!({ "codec": "mulaw" }), PacketKind::MuLaw, &g711, true),
        ("31 s of G.711", json!({ "codec": "mulaw" }), PacketKind::MuLaw, &long, false),
        (
            "31 s of PCM",
            json!({ "codec": "pcm", "sample_rate": 8_000 }),
            PacketKind::Pcm,
            &vec![CLARA[44..1_004].to_vec(); 31 * 8_000 * 2 / 960 + 1],
            false,
        ),
        ("silence", json!({ "codec": "pcm", "sample_rate": 24_000 }), PacketKind::Pcm, &silent, false),
        ("noise for Opus", json!({ "codec": "opus" }), PacketKind::Opus, &silent, false),
    ] {
        let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
        let open = json!({ "type": "open", "context": 1, "reference": codec }).to_string();
        sender.raw(Message::text(open)).await.expect("sent");
        let append = json!({ "type": "text.append", "context": 1, "sequence": 1, "text": "Hello there." });
        sender.raw(Message::text(append.to_string())).await.expect("sent");
        stream_clip(&mut sender, kind, pieces).await;
        sender.raw(Message::text(r#"{"type":"text.end","context":1}"#)).await.expect("sent");
        if !good {
            assert_eq!(crate::support::error_code(&mut receiver).await, "bad_reference", "{what}");
        }
        let reason = crate::support::until(&mut receiver, |event| match event {
            client::Event::Message(ServerMessage::End(end)) => Some(end.reason.clone()),
            _ => None,
        })
        .await;
        assert_eq!(reason, if good { "done" } else { "failed" }, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_voice_speaks_over_the_socket() {
    let kept = Kept::new("socket");
    let server = start(&kept.config()).await;
    let parts: [(&str, &[u8]); 3] = [("name", b"warm"), ("consent", b"yes"), ("audio", CLARA)];
    let id = upload(&server, None, &parts).await.json()["id"].as_str().expect("an id").to_owned();
    let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
    sender.open(crate::support::open(1, "warm")).await.expect("sent");
    let voice = crate::support::until(&mut receiver, |event| match event {
        client::Event::Message(ServerMessage::Opened(opened)) => Some(opened.voice.clone()),
        _ => None,
    })
    .await;
    assert_eq!(voice, Some(id));
    sender.open(crate::support::open(2, "cold")).await.expect("sent");
    assert_eq!(crate::support::error_code(&mut receiver).await, "unknown_voice");
}
