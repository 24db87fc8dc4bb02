//! One sentence in every form and at every rate that a wire has: all endpoints give the same bytes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use client::Event;
use proto::wire::{AudioChoice, Flags, Open, PacketKind, SamplingFields, ServerMessage, WireCodec};
use serde_json::{Value, json};

use crate::json_socket::{close_code, connect, event, say, sound};
use crate::support::{Running, next, open, post, share_of_tone, start};

const TEXT: &str = "One tone, every door.";
const SEED: u64 = 11;
const CLARA: &[u8] = include_bytes!("../../../config/models/tiny/voices/clara.wav");
/// The scripted engine's tone for this seed.
const TONE_HZ: f64 = 300.0 + 40.0 * SEED as f64;
const RATES: [u32; 4] = [8_000, 16_000, 24_000, 48_000];

/// Names of one form of samples on the wires.
struct Form {
    codec: WireCodec,
    cartesia: &'static str,
    elevenlabs: &'static str,
    realtime: &'static str,
}

const FORMS: [Form; 3] = [
    Form { codec: WireCodec::Pcm, cartesia: "pcm_s16le", elevenlabs: "pcm", realtime: "audio/pcm" },
    Form { codec: WireCodec::MuLaw, cartesia: "pcm_mulaw", elevenlabs: "ulaw", realtime: "audio/pcmu" },
    Form { codec: WireCodec::ALaw, cartesia: "pcm_alaw", elevenlabs: "alaw", realtime: "audio/pcma" },
];

/// The sentence from `POST /v1/audio/speech`.
async fn whole(server: &Running, form: &Form, rate: u32, more: Value) -> Vec<u8> {
    let mut body = json!({ "input": TEXT, "voice": "instant", "seed": SEED,
        "response_format": form.codec.name(), "sample_rate": rate });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let answer = post(server.public, "/v1/audio/speech", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.body
}

/// The audio in the `field` of server-sent events.
fn of_events(body: &[u8], field: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(body);
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let pieces = events.filter_map(|event| event[field].as_str().map(str::to_owned));
    pieces.flat_map(|piece| BASE64_STANDARD.decode(piece).expect("base64")).collect()
}

/// Times the sentence is asked for at most: a machine that is busy with other things lets one run dry.
const ATTEMPTS: usize = 4;

/// The sentence from `/v1/stream`; its packets one by one.
async fn streamed(server: &Running, codec: WireCodec, rate: Option<u32>) -> (Vec<Vec<u8>>, ServerMessage) {
    for _ in 0..ATTEMPTS {
        if let Some(whole) = without_a_gap(server, codec, rate).await {
            return whole;
        }
    }
    panic!("silence in each of {ATTEMPTS} sentences");
}

/// The same, whose headers are held to docs/protocol.md on the way; `None` when it ran dry and silence filled in.
async fn without_a_gap(
    server: &Running,
    codec: WireCodec,
    rate: Option<u32>,
) -> Option<(Vec<Vec<u8>>, ServerMessage)> {
    let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
    let audio = Some(AudioChoice { codec, sample_rate: rate, ..AudioChoice::default() });
    let sampling = SamplingFields { seed: Some(SEED), ..SamplingFields::default() };
    sender.open(Open { audio, sampling, ..open(1, "instant") }).await.expect("sent");
    sender.append(1, TEXT).await.expect("sent");
    sender.end(1).await.expect("sent");
    let (mut packets, mut opened, mut position, mut last) = (Vec::new(), None, 0, Flags::NONE);
    loop {
        match next(&mut receiver).await {
            Event::Packet { header, .. } if header.kind == PacketKind::Gap => return None,
            Event::Packet { header, payload } => {
                packets.push(payload.to_vec());
                let first = packets.len() == 1;
                assert_eq!(header.kind, codec.packet_kind());
                assert_eq!((header.sequence as usize, header.timestamp), (packets.len(), position));
                assert_eq!(header.flags.contains(Flags::START), first);
                position += u32::from(header.duration);
                last = header.flags;
                if let Some(encoding) = codec.encoding() {
                    let hz = rate.unwrap_or(8_000);
                    let samples = payload.len() as u32 / encoding.bytes_per_sample();
                    assert_eq!(u32::from(header.duration), samples * (48_000 / hz), "what it decodes to");
                }
            }
            Event::Message(ServerMessage::Opened(told)) => opened = Some(told),
            Event::Message(ServerMessage::End(end)) => {
                let opened = opened.expect("opened before its end");
                assert_eq!(u64::from(position), u64::from(opened.audio.pre_skip) + end.samples);
                assert!(last.contains(Flags::END));
                assert_eq!(opened.audio.codec, codec.name());
                return Some((packets, ServerMessage::Opened(opened)));
            }
            Event::Message(ServerMessage::Error(error)) => panic!("{error:?}"),
            Event::Message(_) => {}
            Event::Closed { code, .. } => panic!("closed with {code}"),
        }
    }
}

async fn elevenlabs(server: &Running, tail: &str, format: &str, clip: Option<&Value>) -> Vec<u8> {
    let path = format!("/v1/text-to-speech/instant/{tail}?output_format={format}&seed={SEED}");
    let (mut socket, _) = connect(server, &path, &[]).await.expect("let in");
    let many = tail.starts_with("multi");
    let mut message = json!({ "text": TEXT, "flush": true, "reference": clip });
    if many {
        message["context_id"] = json!("a");
    }
    say(&mut socket, message).await;
    say(&mut socket, if many { json!({ "close_socket": true }) } else { json!({ "text": "" }) }).await;
    sound(&mut socket, "audio", |event| event["isFinal"] == true).await
}

fn cartesia(form: &Form, rate: u32) -> Value {
    json!({ "transcript": TEXT, "model_id": "sonic-3", "voice": {"mode": "id", "id": "instant"}, "seed": SEED,
        "output_format": {"container": "raw", "encoding": form.cartesia, "sample_rate": rate} })
}

async fn realtime(server: &Running, form: &Form) -> Vec<u8> {
    let (mut socket, _) = connect(server, "/v1/realtime", &[]).await.expect("let in");
    let format = match form.codec {
        WireCodec::Pcm => json!({ "type": form.realtime, "rate": 24_000 }),
        _ => json!({ "type": form.realtime }),
    };
    let session = json!({ "type": "realtime", "voxlane": { "seed": SEED },
        "audio": { "output": { "voice": "instant", "format": format } } });
    say(&mut socket, json!({ "type": "session.update", "session": session })).await;
    let said =
        json!([{ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": TEXT }] }]);
    say(&mut socket, json!({ "type": "response.create", "response": { "input": said } })).await;
    sound(&mut socket, "delta", |event| event["type"] == "response.output_audio.done").await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_gives_the_same_samples_at_every_rate_and_in_g711() {
    let server = start("").await;
    for form in &FORMS {
        for rate in RATES {
            let what = format!("{} at {rate}", form.codec.name());
            let expected = whole(&server, form, rate, json!({})).await;
            let events = whole(&server, form, rate, json!({ "stream_format": "sse" })).await;
            assert_eq!(of_events(&events, "audio"), expected, "events, {what}");
            let (packets, _) = streamed(&server, form.codec, Some(rate)).await;
            assert!(packets.concat() == expected, "the native socket, {what}");

            let asked = cartesia(form, rate);
            let answer = post(server.public, "/tts/bytes", &asked.to_string()).await;
            assert!(answer.body == expected, "/tts/bytes, {what}");
            let answer = post(server.public, "/tts/sse", &asked.to_string()).await;
            assert!(of_events(&answer.body, "data") == expected, "/tts/sse, {what}");
            let (mut socket, _) = connect(&server, "/tts/websocket", &[]).await.expect("let in");
            let mut message = asked;
            message["context_id"] = json!("a");
            say(&mut socket, message).await;
            let heard = sound(&mut socket, "data", |event| event["type"] == "done").await;
            assert!(heard == expected, "/tts/websocket, {what}");

            // What the other two protocols have: G.711 at telephony's rate, and Realtime's own.
            let telephony = form.codec != WireCodec::Pcm;
            if !telephony || rate == 8_000 {
                let format = format!("{}_{rate}", form.elevenlabs);
                for tail in ["stream-input", "multi-stream-input"] {
                    let heard = elevenlabs(&server, tail, &format, None).await;
                    assert!(heard == expected, "{tail}, {what}");
                }
                let path = format!("/v1/text-to-speech/instant/stream?output_format={format}");
                let body = json!({ "text": TEXT, "seed": SEED }).to_string();
                assert!(post(server.public, &path, &body).await.body == expected, "{path}");
            }
            if rate == if telephony { 8_000 } else { 24_000 } {
                assert!(realtime(&server, form).await == expected, "/v1/realtime, {what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opus_is_made_at_every_rate_and_g711_has_a_rate_of_its_own() {
    let server = start("").await;
    for rate in RATES {
        let (packets, opened) = streamed(&server, WireCodec::Opus, Some(rate)).await;
        let ServerMessage::Opened(opened) = opened else { unreachable!("it gives the message it found") };
        assert_eq!(opened.audio.sample_rate, rate);
        let pre_skip = u32::from(opened.audio.pre_skip);
        let mut decoder = codecs::opus::OpusDecoder::new(24_000, pre_skip).expect("a decoder");
        let mut samples = Vec::new();
        for packet in &packets {
            samples.extend_from_slice(decoder.decode(packet).expect("decodes"));
        }
        assert!(share_of_tone(&samples, TONE_HZ) > 0.95, "{rate}: {}", share_of_tone(&samples, TONE_HZ));
    }
    for form in &FORMS[1..] {
        let (packets, _) = streamed(&server, form.codec, None).await;
        assert_eq!(packets.concat(), whole(&server, form, 8_000, json!({})).await);
    }
}

/// One clip, in every protocol that has a message for it: encoded once, and the same voice everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_clip_speaks_on_every_socket_as_it_does_over_http_and_is_encoded_once() {
    let server = start("").await;
    let form = &FORMS[0];
    let reference = json!({ "audio": BASE64_STANDARD.encode(CLARA) });
    let body = json!({ "input": TEXT, "seed": SEED, "response_format": "pcm", "sample_rate": 24_000,
        "reference": reference });
    let own = post(server.public, "/v1/audio/speech", &body.to_string()).await;
    assert_eq!(own.status, 200, "{}", own.text());
    let encodes = async || server.metric("voxlane_engine_encodes_total", "").await;
    assert_eq!(encodes().await, 1.0);

    for tail in ["stream-input", "multi-stream-input"] {
        let heard = elevenlabs(&server, tail, "pcm_24000", Some(&reference)).await;
        assert!(heard == own.body, "{tail}");
    }
    let mut message = cartesia(form, 24_000);
    message["context_id"] = json!("a");
    message["reference"] = reference.clone();
    let (mut socket, _) = connect(&server, "/tts/websocket", &[]).await.expect("let in");
    say(&mut socket, message.clone()).await;
    assert!(sound(&mut socket, "data", |event| event["type"] == "done").await == own.body);
    assert_eq!(encodes().await, 1.0, "no second encode");
    assert_eq!(server.metric("voxlane_engine_encode_hits_total", "").await, 3.0);

    // What is no clip is told in the protocol's own words, and the socket goes on.
    message["context_id"] = json!("b");
    message["reference"] = json!({ "audio": BASE64_STANDARD.encode("no sound at all") });
    say(&mut socket, message).await;
    let told = event(&mut socket).await;
    assert_eq!((&told["error_code"], &told["status_code"]), (&json!("bad_reference"), &json!(400)), "{told}");
    let mut message = cartesia(form, 24_000);
    message["context_id"] = json!("c");
    say(&mut socket, message).await;
    assert!(!sound(&mut socket, "data", |event| event["type"] == "done").await.is_empty());

    let path = "/v1/text-to-speech/instant/multi-stream-input?output_format=pcm_24000";
    let (mut socket, _) = connect(&server, path, &[]).await.expect("let in");
    let silent = BASE64_STANDARD.encode(codecs::wav::encode(&[0.0; 48_000], 24_000).expect("a file"));
    let message = json!({ "text": TEXT, "flush": true, "context_id": "a", "reference": { "audio": silent } });
    say(&mut socket, message).await;
    let told = event(&mut socket).await;
    assert_eq!((&told["code"], &told["contextId"]), (&json!("bad_reference"), &json!("a")), "{told}");
    assert_eq!(event(&mut socket).await, json!({ "isFinal": true, "contextId": "a" }));
    assert_eq!(server.metric("voxlane_errors_total", "bad_reference").await, 2.0);
    assert_eq!(encodes().await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_hold_a_clip_as_long_as_a_body_may_and_no_longer() {
    let server = start("").await;
    for (path, message) in [
        ("/tts/websocket", {
            let mut message = cartesia(&FORMS[0], 24_000);
            message["context_id"] = json!("a");
            message
        }),
        ("/v1/text-to-speech/instant/stream-input?output_format=pcm_24000", json!({ "text": " " })),
    ] {
        for (bytes, taken) in [(1_040_000, true), (1_050_000, false)] {
            let (mut socket, _) = connect(&server, path, &[]).await.expect("let in");
            let mut message = message.clone();
            message["reference"] = json!({ "audio": "A".repeat(bytes) });
            say(&mut socket, message).await;
            if taken {
                // Three of four such characters are zeros, which is no file.
                assert!(event(&mut socket).await.to_string().contains("bad_reference"), "{path}");
            } else {
                assert_eq!(close_code(&mut socket).await, 1_009, "{path}");
            }
        }
    }
}
