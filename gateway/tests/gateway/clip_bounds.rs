//! Clips over the socket at the very bounds of their length, at the rates where a bound in bytes and one in
//! seconds lie apart.

use proto::wire::{PacketKind, ServerMessage};
use serde_json::json;
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::support::start;
use crate::voices::stream_clip;

/// `millis` of a voice-like sound at `rate_hz`: a tone that comes and goes, in pieces of 60 ms or less.
pub(crate) fn clip(millis: usize, rate_hz: usize, kind: PacketKind) -> Vec<Vec<u8>> {
    let samples = (0..millis * rate_hz / 1_000).map(|n| {
        let at = n as f64 / rate_hz as f64;
        let loud = if at.fract() < 0.9 { 9_000.0 } else { 0.0 };
        (loud * (at * 220.0 * std::f64::consts::TAU).sin()) as i16
    });
    let bytes: Vec<u8> = match kind {
        PacketKind::MuLaw => samples.map(codecs::g711::mu_law_from_i16).collect(),
        PacketKind::ALaw => samples.map(codecs::g711::a_law_from_i16).collect(),
        _ => samples.flat_map(i16::to_le_bytes).collect(),
    };
    bytes.chunks(5_760).map(<[u8]>::to_vec).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_seconds_are_taken_and_a_little_more_is_refused_at_every_rate_and_in_every_form() {
    let server = start("").await;
    let refusals = async || server.metric("voxlane_errors_total", "bad_reference").await;
    let mut refused = 0.0;
    for (codec, kind, rate_hz) in [
        ("pcm", PacketKind::Pcm, 48_000),
        ("pcm", PacketKind::Pcm, 44_100),
        ("pcm", PacketKind::Pcm, 8_000),
        ("mulaw", PacketKind::MuLaw, 48_000),
        ("mulaw", PacketKind::MuLaw, 8_000),
        ("alaw", PacketKind::ALaw, 8_000),
    ] {
        for (millis, good) in [(999, false), (1_000, true), (30_000, true), (30_010, false), (60_000, false)]
        {
            let what = format!("{millis} ms of {codec} at {rate_hz} Hz");
            let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
            let about = json!({ "codec": codec, "sample_rate": rate_hz });
            let open = json!({ "type": "open", "context": 1, "reference": about }).to_string();
            sender.raw(Message::text(open)).await.expect("sent");
            let append = json!({ "type": "text.append", "context": 1, "sequence": 1, "text": "Hello." });
            sender.raw(Message::text(append.to_string())).await.expect("sent");
            stream_clip(&mut sender, kind, &clip(millis, rate_hz, kind)).await;
            sender.raw(Message::text(r#"{"type":"text.end","context":1}"#)).await.expect("sent");
            let reason = crate::support::until(&mut receiver, |event| match event {
                client::Event::Message(ServerMessage::End(end)) => Some(end.reason.clone()),
                _ => None,
            })
            .await;
            assert_eq!(reason, if good { "done" } else { "failed" }, "{what}");
            if !good {
                refused += 1.0;
                assert!(refusals().await >= refused, "{what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_out_of_bounds_is_refused_before_any_sound_comes() {
    let server = start("").await;
    for codec in ["pcm", "mulaw", "alaw", "opus"] {
        for rate_hz in [7_999, 48_001, 0] {
            let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
            let about = json!({ "codec": codec, "sample_rate": rate_hz });
            let open = json!({ "type": "open", "context": 1, "reference": about }).to_string();
            sender.raw(Message::text(open)).await.expect("sent");
            let code = crate::support::error_code(&mut receiver).await;
            assert_eq!(code, "field_out_of_range", "{codec} at {rate_hz} Hz");
        }
    }
}
