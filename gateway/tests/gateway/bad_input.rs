//! The checklist of bad input that stands at the door and in uploads, line by line: what each is answered, and
//! that it is counted. Tokens have `tokens.rs` and `guarded.rs`, key rotation `rotation.rs`.
//!
//! | line | where |
//! |---|---|
//! | 1 to 4, 7, 8: tokens unsigned, confused, ill-timed, in URLs, compared | `tokens.rs`; here: 7 in logs and metrics |
//! | 5: rotation | `rotation.rs` |
//! | 6: end of a token mid-session | `guarded.rs`, `proto/tests/token.rs` |
//! | 9: origins | `guarded.rs`, `doors.rs`; here: names outside ASCII, none at all |
//! | 10: hosts, targets, smuggling, large heads | `guarded.rs`, `doors.rs`; here: a target that names another host |
//! | 11, 12: subprotocols, upgrades | `doors.rs`; here: keys, versions, counted |
//! | 13: the admin side from outside | here |
//! | 24 to 28: clips | `voices.rs`, `codecs/tests/{wav,opus,ogg,upload}.rs`; here: the kinds they lack, at both doors |

use gateway::config::Layers;
use serde_json::json;

use crate::keyring::{API_KEY, Keyring, claims, claims_with, hs256};
use crate::support::{Running, get, post, request, start, start_with};

const CLARA: &[u8] = include_bytes!("../../../config/models/tiny/voices/clara.wav");

async fn counted(server: &Running, code: &str) -> f64 {
    server.metric("voxlane_errors_total", &format!("code=\"{code}\"")).await
}

/// An upgrade with these headers changed; `None` leaves one out.
fn upgrade(host: &str, changes: &[(&str, Option<&str>)]) -> String {
    let mut headers = vec![
        ("connection", "upgrade, close"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("sec-websocket-protocol", "voxlane.v1"),
    ];
    headers.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    headers.extend(changes.iter().filter_map(|(name, value)| Some((*name, (*value)?))));
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET /v1/stream HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_upgrade_that_is_none_is_refused_by_its_code_and_counted() {
    let server = start("").await;
    let host = server.address();
    for (what, changes, status, code) in [
        ("no subprotocol", &[("sec-websocket-protocol", None)][..], 400, "subprotocol_required"),
        ("another", &[("sec-websocket-protocol", Some("voxlane.v9, chat"))], 400, "subprotocol_required"),
        ("no connection header", &[("connection", Some("close"))], 426, "upgrade_required"),
        ("another upgrade", &[("upgrade", Some("h2c"))], 426, "upgrade_required"),
        ("version 8", &[("sec-websocket-version", Some("8"))], 426, "websocket_version"),
        ("no version", &[("sec-websocket-version", None)], 426, "websocket_version"),
        ("no key", &[("sec-websocket-key", None)], 400, "websocket_key"),
        ("a short key", &[("sec-websocket-key", Some("AAAA"))], 400, "websocket_key"),
        (
            "a long key",
            &[("sec-websocket-key", Some("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"))],
            400,
            "websocket_key",
        ),
        (
            "a key that is no base64",
            &[("sec-websocket-key", Some("!!AAAAAAAAAAAAAAAAAAAA=="))],
            400,
            "websocket_key",
        ),
        ("origin null", &[("origin", Some("null"))], 403, "origin_not_allowed"),
        ("a name outside ASCII", &[("origin", Some("https://\u{e4}pp.example"))], 403, "origin_not_allowed"),
        (
            "the same in Punycode",
            &[("origin", Some("https://xn--pp-wia.example"))],
            403,
            "origin_not_allowed",
        ),
        ("two origins", &[("origin", Some("http://a.example http://b.example"))], 403, "origin_not_allowed"),
    ] {
        let before = counted(&server, code).await;
        let answer = request(server.public, &upgrade(&host, changes)).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{what}");
        assert_eq!(counted(&server, code).await, before + 1.0, "{what} is counted once");
    }
    // Programs name no origin; nothing here is ever told by a cookie, so a page gains nothing by that.
    let page = get(server.public, "/").await;
    assert_eq!((page.status, page.header("set-cookie")), (200, None));
    assert!(client::connect(&host).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_names_another_host_is_refused_and_the_admin_side_is_not_behind_the_public_one() {
    let server = start("").await;
    let host = server.address();
    // The target's own host goes before the header's (RFC 9112 section 3.2.2).
    for (target, named, status) in [
        ("http://evil.example/v1/models".to_owned(), host.clone(), 403),
        ("http://evil.example:80/v1/models".to_owned(), "localhost".to_owned(), 403),
        (format!("http://{host}/v1/models"), "evil.example".to_owned(), 200),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nhost: {named}\r\nconnection: close\r\n\r\n");
        let answer = request(server.public, &head).await;
        assert_eq!(answer.status, status, "{target} at {named}");
        assert!(status == 200 || answer.code() == "host_not_allowed", "{}", answer.text());
    }
    assert_eq!(counted(&server, "host_not_allowed").await, 2.0);
    let admin = server.admin;
    for path in ["/metrics", "/livez", "/readyz", "//metrics", "/./metrics", "/%6detrics", "/v1/../metrics"] {
        let answer = get(server.public, path).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{path}");
        let head = format!("GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        assert_eq!(request(server.public, &head).await.status, 404, "{path} by the admin side's name");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_stands_in_no_answer_and_no_log_wherever_it_was_put() {
    let ring = Keyring::new();
    ring.write("voxlane.toml", &format!("{}[log]\nfilter = \"debug\"\n", ring.config("")));
    let server = crate::cli::serve(&["--config", &ring.path("voxlane.toml")]);
    let (address, good, bad) =
        (server.public, hs256(&claims()), hs256(&claims_with("iss", json!("canary-issuer"))));
    let mut answers = String::new();
    for token in [good.as_str(), bad.as_str(), API_KEY] {
        for head in [
            format!("GET /v1/models?access_token={token} HTTP/1.1\r\nhost: {address}\r\n"),
            format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n"),
            format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\nauthorization: Basic {token}\r\n"),
            format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\nreferer: http://{address}/?t={token}\r\n"),
            format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\ncookie: token={token}\r\n"),
        ] {
            let answer = request(address, &format!("{head}connection: close\r\n\r\n")).await;
            answers.push_str(&format!("{:?}{}", answer.headers, answer.text()));
        }
        let offered = format!("voxlane.v1, bearer.{token}");
        let head = upgrade(
            &address.to_string(),
            &[("sec-websocket-protocol", Some(&offered)), ("connection", Some("upgrade"))],
        );
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("connects");
        {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            socket.write_all(head.as_bytes()).await.expect("sent");
            let mut some = [0; 2_048];
            let count = socket.read(&mut some).await.expect("an answer");
            answers.push_str(&String::from_utf8_lossy(&some[..count]));
        }
    }
    let (_, log) = tokio::task::spawn_blocking(|| server.terminate()).await.expect("no panic");
    for (where_, text) in [("an answer", &answers), ("the log", &log)] {
        for token in [&good, &bad] {
            let signature = token.rsplit('.').next().expect("a signature");
            assert!(!text.contains(signature), "a token stands in {where_}");
        }
        assert!(!text.contains("canary"), "a key or a claim stands in {where_}");
    }
}

/// A WAV of 16-bit samples at 24 kHz.
fn wav(samples: impl Iterator<Item = f32>) -> Vec<u8> {
    codecs::wav::encode(&samples.collect::<Vec<_>>(), 24_000).expect("a file")
}

fn tone(hz: f32, level: f32, seconds: f32) -> impl Iterator<Item = f32> {
    (0..(24_000.0 * seconds) as usize)
        .map(move |n| (std::f32::consts::TAU * hz * n as f32 / 24_000.0).sin() * level)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_clip_that_is_none_is_refused_and_counted_and_odd_ones_speak_a_bounded_turn() {
    let server = start("").await;
    let mut unknown = CLARA.to_vec();
    unknown[40..44].fill(0xFF);
    let mut lying = CLARA.to_vec();
    lying[4..8].copy_from_slice(&0x7FFF_FFFF_u32.to_le_bytes());
    let mut floats =
        codecs::wav::header(24_000, codecs::pcm::RawEncoding::F32Le, 48_000, &[]).expect("a header");
    floats.extend(std::iter::repeat_n(f32::NAN.to_le_bytes(), 48_000).flatten());
    let long: Vec<f32> = tone(200.0, 0.3, 31.0 / 3.0).collect();
    let long = codecs::wav::encode(&long, 8_000).expect("a file");
    // 20 kHz at full level: loud to a meter, silence to an ear and to a model of 24 kHz.
    let inaudible: Vec<f32> =
        (0..144_000).map(|n| (std::f32::consts::TAU * 20_000.0 * n as f32 / 48_000.0).sin() * 0.5).collect();
    let inaudible = codecs::wav::encode(&inaudible, 48_000).expect("a file");
    // A tenth of a second of a sound that is nothing, over and over.
    let noise = |n: usize| ((n as u32).wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 - 0.5;
    let endless = wav((0..72_000).map(|n| noise(n % 2_400) * 0.5));
    let blip = || (0..3).flat_map(|_| tone(200.0, 0.4, 0.1).chain((0..21_600).map(|_| 0.0)));
    let base64 = |bytes: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    for (what, audio, speaks) in [
        ("a URL in place of bytes", "https://example.com/voice.wav".to_owned(), false),
        ("a path in place of bytes", "/etc/passwd".to_owned(), false),
        ("a data URL", format!("data:audio/wav;base64,{}", base64(CLARA)), false),
        ("an offset", base64(&wav((0..72_000).map(|_| 0.4))), false),
        ("what nobody can hear", base64(&wav(tone(11_900.0, 0.0005, 3.0))), false),
        ("20 kHz", base64(&inaudible), false),
        ("a loop of 0.1 s", base64(&endless), true),
        ("a blip in silence", base64(&wav(blip())), false),
        ("31 s", base64(&long), false),
        ("a RIFF size that lies", base64(&lying), false),
        ("samples that are no numbers", base64(&floats), false),
        ("half a header", base64(&CLARA[..30]), false),
        ("a tone for three seconds", base64(&wav(tone(1_000.0, 0.4, 3.0))), true),
        ("a data size that is not known", base64(&unknown), true),
    ] {
        let before = counted(&server, "bad_reference").await;
        let body = json!({ "input": "Hi.", "response_format": "pcm", "reference": { "audio": audio } });
        let answer = post(server.public, "/v1/audio/speech", &body.to_string()).await;
        if speaks {
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            assert!(answer.whole && answer.body.len() < 48_000 * 10, "{what}: a bounded turn");
        } else {
            assert_eq!((answer.status, answer.code().as_str()), (400, "bad_reference"), "{what}");
            assert_eq!(counted(&server, "bad_reference").await, before + 1.0, "{what} is counted once");
        }
    }
    // A neighbour has noticed nothing.
    let body = json!({ "input": "Hi.", "voice": "instant", "response_format": "pcm" }).to_string();
    assert_eq!(post(server.public, "/v1/audio/speech", &body).await.status, 200);
    assert_eq!(server.metric("voxlane_panics_total", "").await, 0.0);
}

/// Every endpoint with a name in its path, and where its protocol's errors have their code.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_no_text_is_refused_in_the_words_of_its_protocol() {
    let server = start("").await;
    for (method, path, code) in [
        ("POST", "/v1/text-to-speech/%ff", "/detail/code"),
        ("POST", "/v1/text-to-speech/%c3%28/stream", "/detail/code"),
        ("POST", "/v1/text-to-speech/%ff/with-timestamps", "/detail/code"),
        ("POST", "/v1/text-to-speech/%ff/stream/with-timestamps", "/detail/code"),
        ("GET", "/v1/text-to-speech/%ff/stream-input", "/detail/code"),
        ("GET", "/v1/text-to-speech/%ff/multi-stream-input", "/detail/code"),
        ("DELETE", "/v1/audio/voices/%ff", "/error/code"),
    ] {
        let answer = crate::keyring::send(&server, method, path, &[], "").await;
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")), "{path}");
        assert_eq!(answer.json().pointer(code), Some(&json!("field_out_of_range")), "{path}");
    }
}

/// A body without an end, that is refused once its bound is passed, or before anything of it is read.
#[tokio::test(flavor = "multi_thread")]
async fn no_endpoint_takes_in_a_body_beyond_its_bound_or_of_a_stranger() {
    let guarded = Keyring::new().serve("").await;
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nbody_bytes_max = 2000\n\
                [engine]\nkind = \"scripted\"\n";
    let config = Layers::default().text("test.toml", text).resolve().and_then(|resolved| resolved.config());
    let open = start_with(config.expect("valid")).await;
    for path in [
        "/v1/audio/speech",
        "/v1/text-to-speech/clara?output_format=pcm_24000",
        "/tts/bytes",
        "/v1/realtime/client_secrets",
    ] {
        for (server, status) in [(&open, 413), (&guarded, 401)] {
            let host = server.public;
            // One chunk that is all there, and the announcement of another that never comes.
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
                 content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
                 bb8\r\n{}\r\nffff\r\n",
                " ".repeat(3_000)
            );
            let answer = tokio::time::timeout(crate::support::PATIENCE, request(host, &head)).await;
            assert_eq!(answer.expect("an answer").status, status, "{path}");
        }
    }
}
