//! The REST endpoints of ElevenLabs and Cartesia: the same sound as `POST /v1/audio/speech`, with times, and
//! refusals in the words of each, also of those who knock at the sockets.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::keyring::{API_KEY, Keyring};
use crate::support::{Answer, Running, get, post, request, start};

const TEXT: &str = "One tone, three doors.";

fn cartesia(encoding: &str, rate: u32) -> Value {
    json!({
        "transcript": TEXT, "model_id": "sonic-3", "voice": {"mode": "id", "id": "instant"}, "language": "en",
        "seed": 11, "output_format": {"container": "raw", "encoding": encoding, "sample_rate": rate},
    })
}

async fn eleven(server: &Running, tail: &str, format: &str) -> Answer {
    let body = json!({"text": TEXT, "model_id": "eleven_turbo_v2_5", "language_code": "en", "seed": 11});
    let path = format!("/v1/text-to-speech/instant{tail}?output_format={format}&enable_logging=true");
    post(server.public, &path, &body.to_string()).await
}

/// The same text through this server's own endpoint.
async fn own(server: &Running, format: &str, rate: u32) -> Vec<u8> {
    let body = json!({
        "input": TEXT, "voice": "instant", "seed": 11, "response_format": format, "sample_rate": rate,
    });
    let answer = post(server.public, "/v1/audio/speech", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn every_door_gives_the_same_bytes() {
    let server = start("").await;
    let pcm = own(&server, "pcm", 24_000).await;
    for tail in ["", "/stream"] {
        let answer = eleven(&server, tail, "pcm_24000").await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("audio/pcm")));
        assert_eq!(answer.body, pcm, "{tail}");
    }
    let answer = post(server.public, "/tts/bytes", &cartesia("pcm_s16le", 24_000).to_string()).await;
    assert_eq!(answer.body, pcm);
    let mu_law = own(&server, "mulaw", 8_000).await;
    assert_eq!(eleven(&server, "/stream", "ulaw_8000").await.body, mu_law);
    let answer = post(server.public, "/tts/bytes", &cartesia("pcm_mulaw", 8_000).to_string()).await;
    assert_eq!(answer.body, mu_law);
    let answer = post(server.public, "/tts/bytes", &cartesia("pcm_f32le", 24_000).to_string()).await;
    let floats = answer.body.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("four")));
    let expected = pcm.chunks(2).map(|two| f32::from(i16::from_le_bytes([two[0], two[1]])) / 32_768.0);
    assert!(floats.eq(expected));
    let opus = eleven(&server, "", "opus_48000_32").await;
    assert_eq!(&opus.body[..4], b"OggS");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clip_with_the_request_speaks_at_every_door() {
    let server = start("").await;
    let clip = include_bytes!("../../../config/models/tiny/voices/clara.wav");
    let reference = json!({ "audio": BASE64_STANDARD.encode(clip) });
    let body = json!({
        "input": TEXT, "seed": 11, "response_format": "pcm", "sample_rate": 24_000, "reference": reference,
    });
    let own = post(server.public, "/v1/audio/speech", &body.to_string()).await;
    assert_eq!(own.status, 200, "{}", own.text());
    let eleven = json!({ "text": TEXT, "seed": 11, "reference": reference }).to_string();
    let path = "/v1/text-to-speech/nobody?output_format=pcm_24000";
    let mut body = cartesia("pcm_s16le", 24_000);
    body["reference"] = reference;
    body.as_object_mut().expect("an object").remove("voice");
    for answer in
        [post(server.public, path, &eleven).await, post(server.public, "/tts/bytes", &body.to_string()).await]
    {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.body, own.body);
    }
    let silent = eleven.replace(&BASE64_STANDARD.encode(clip), "UklGRg==");
    assert_eq!(post(server.public, path, &silent).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_that_the_own_wire_has_not_are_made_too() {
    let server = start("").await;
    let seconds = own(&server, "pcm", 24_000).await.len() as f64 / 48_000.0;
    for rate in [22_050, 44_100] {
        let answer = eleven(&server, "/stream", &format!("pcm_{rate}")).await;
        assert_eq!(answer.body.len() / 2, (seconds * f64::from(rate)).round() as usize, "{rate}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn times_come_with_the_sound_and_cover_the_text() {
    let server = start("").await;
    let pcm = own(&server, "pcm", 24_000).await;
    let document = eleven(&server, "/with-timestamps", "pcm_24000").await.json();
    let lines = eleven(&server, "/stream/with-timestamps", "pcm_24000").await;
    let lines: Vec<Value> =
        lines.text().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let audio = |value: &Value| {
        BASE64_STANDARD.decode(value["audio_base64"].as_str().expect("audio")).expect("base64")
    };
    assert_eq!(audio(&document), pcm);
    assert_eq!(lines.iter().flat_map(audio).collect::<Vec<u8>>(), pcm);
    for parts in [vec![document], lines] {
        let list = |name: &str| -> Vec<Value> {
            let lists = parts.iter().filter_map(|part| part["alignment"][name].as_array());
            lists.flatten().cloned().collect()
        };
        let text: String = list("characters").iter().filter_map(Value::as_str).collect();
        assert_eq!(text, TEXT);
        let seconds = |name: &str| -> Vec<f64> { list(name).iter().filter_map(Value::as_f64).collect() };
        let starts = seconds("character_start_times_seconds");
        let ends = seconds("character_end_times_seconds");
        assert_eq!((starts.len(), ends.len()), (text.len(), text.len()));
        assert!(starts.is_sorted() && starts.iter().zip(&ends).all(|(start, end)| start <= end));
        let last = ends.last().copied().expect("a character");
        let length = pcm.len() as f64 / 48_000.0;
        assert!(last <= length && last > length * 0.9, "{last} of {length}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_speed_shortens_the_sound_and_its_times() {
    let server = start("").await;
    let seconds = own(&server, "pcm", 24_000).await.len() as f64 / 48_000.0;
    let body = json!({"text": TEXT, "seed": 11, "voice_settings": {"speed": 2.0}});
    let path = "/v1/text-to-speech/instant/with-timestamps?output_format=pcm_24000";
    let told = post(server.public, path, &body.to_string()).await.json();
    let audio = BASE64_STANDARD.decode(told["audio_base64"].as_str().expect("audio")).expect("base64");
    assert!((audio.len() as f64 / 48_000.0 - seconds / 2.0).abs() < 0.1);
    let ends = told["alignment"]["character_end_times_seconds"].as_array().expect("ends");
    let last = ends.last().and_then(Value::as_f64).expect("a character");
    assert!((last - seconds / 2.0).abs() < 0.1, "{last} of {seconds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_cartesia_carry_sound_words_and_an_end() {
    let server = start("").await;
    let pcm = own(&server, "pcm", 24_000).await;
    let mut asked = cartesia("pcm_s16le", 24_000);
    asked["add_timestamps"] = json!(true);
    asked["context_id"] = json!("mine");
    let answer = post(server.public, "/tts/sse", &asked.to_string()).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = answer.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(events.iter().all(|event| event["context_id"] == "mine"));
    let audio = events.iter().filter_map(|event| event["data"].as_str());
    let audio: Vec<u8> = audio.flat_map(|data| BASE64_STANDARD.decode(data).expect("base64")).collect();
    assert_eq!(audio, pcm);
    let words = events.iter().filter_map(|event| event["word_timestamps"]["words"].as_array()).flatten();
    let words: Vec<&str> = words.filter_map(Value::as_str).collect();
    assert_eq!(words.join(" "), TEXT);
    assert_eq!(events.last().map(|event| &event["type"]), Some(&json!("done")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_voices_are_listed_in_elevenlabs_words() {
    let server = start("").await;
    let listed = get(server.public, "/v1/voices").await.json();
    let own = get(server.public, "/v1/audio/voices").await.json();
    let ids = |list: &Value, name: &str| -> Vec<String> {
        let list = list.as_array().expect("a list").iter();
        list.map(|voice| voice[name].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(&listed["voices"], "voice_id"), ids(&own["data"], "id"));
    assert_eq!(listed["voices"][0]["category"], "premade");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_protocol_is_refused_in_its_own_words() {
    let server = start("").await;
    for (voice, body, format, status, name) in [
        ("nobody", json!({"text": TEXT}), "pcm_24000", 404, "voice_not_found"),
        ("overloaded", json!({"text": TEXT}), "pcm_24000", 429, "system_busy"),
        ("instant", json!({"text": TEXT}), "mp3_22050_32", 400, "unsupported"),
        ("instant", json!({"text": TEXT, "model_id": "tts-none"}), "pcm_24000", 404, "model_not_found"),
        ("instant", json!({"txt": TEXT}), "pcm_24000", 400, "missing_field"),
    ] {
        let path = format!("/v1/text-to-speech/{voice}/stream?output_format={format}");
        let answer = post(server.public, &path, &body.to_string()).await;
        let detail = answer.json()["detail"].clone();
        assert_eq!((answer.status, &detail["status"]), (status, &json!(name)), "{detail}");
        assert_eq!(answer.header("x-request-id"), detail["request_id"].as_str());
    }
    for (voice, status, name) in
        [("nobody", 404, "voice_not_found"), ("overloaded", 503, "concurrency_limited")]
    {
        let mut body = cartesia("pcm_s16le", 24_000);
        body["voice"]["id"] = json!(voice);
        let answer = post(server.public, "/tts/bytes", &body.to_string()).await;
        let json = answer.json();
        assert_eq!((answer.status, &json["error_code"]), (status, &json!(name)), "{json}");
        assert!(json["title"].is_string() && json["message"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_that_breaks_off_is_told_as_far_as_the_shape_can() {
    let server = start("").await;
    let mut body = cartesia("pcm_s16le", 24_000);
    body["voice"]["id"] = json!("failing");
    let answer = post(server.public, "/tts/sse", &body.to_string()).await;
    assert!(answer.whole && answer.text().contains("event: error\n"), "{}", answer.text());
    let path = "/v1/text-to-speech/failing/with-timestamps?output_format=pcm_24000";
    let answer = post(server.public, path, &json!({"text": TEXT}).to_string()).await;
    assert!(answer.status == 200 && !answer.whole, "a body that is cut off");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_come_in_the_headers_of_each_protocol() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let key = API_KEY;
    let call = async |path: &str, header: &str, body: String| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{header}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            server.public,
            body.len()
        );
        request(server.public, &(head + &body)).await
    };
    let eleven = "/v1/text-to-speech/instant?output_format=pcm_8000";
    let text = json!({"text": TEXT}).to_string();
    assert_eq!(call(eleven, &format!("xi-api-key: {key}"), text.clone()).await.status, 200);
    let wrong = call(eleven, "xi-api-key: nobodys", text).await;
    assert_eq!((wrong.status, &wrong.json()["detail"]["status"]), (401, &json!("invalid_api_key")));
    let asked = cartesia("pcm_s16le", 8_000).to_string();
    let headers = format!("X-API-Key: {key}\r\nCartesia-Version: 2026-03-01");
    assert_eq!(call("/tts/bytes", &headers, asked.clone()).await.status, 200);
    let wrong = call("/tts/bytes", "x-api-key: nobodys", asked).await;
    assert_eq!((wrong.status, &wrong.json()["error_code"]), (401, &json!("invalid_api_key")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_cannot_speak_is_refused_before_the_upgrade() {
    let ring = Keyring::new();
    let server = ring.serve("").await;
    let knock = async |path: &str, key: &str| {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             xi-api-key: {key}\r\n\r\n",
            server.public
        );
        request(server.public, &head).await
    };
    for (voice, query, key, status, name) in [
        ("nobody", "output_format=pcm_24000", API_KEY, 404, "voice_not_found"),
        ("instant", "output_format=pcm_24000", "nobodys", 401, "invalid_api_key"),
        ("instant", "output_format=mp3_22050_32", API_KEY, 400, "unsupported"),
        ("instant", "output_format=pcm_24000&auto_mode=perhaps", API_KEY, 400, "field_out_of_range"),
        ("instant", "output_format=pcm_24000&model_id=tts-none", API_KEY, 404, "model_not_found"),
    ] {
        for tail in ["stream-input", "multi-stream-input"] {
            let answer = knock(&format!("/v1/text-to-speech/{voice}/{tail}?{query}"), key).await;
            let told = answer.text();
            assert_eq!(answer.status, status, "{tail} {query}: {told}");
            assert!(told.contains(&format!("\"status\":\"{name}\"")), "{tail} {query}: {told}");
        }
    }
    let answer = knock("/tts/websocket?cartesia_version=2025-04-16", "nobodys").await;
    assert!(answer.status == 401 && answer.text().contains("\"error_code\":\"invalid_api_key\""));
}
