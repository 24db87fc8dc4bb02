//! What a voice of a client's costs: encoded the first time, kept from then on.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::measure::{Failure, spread};
use crate::server::{Server, rounded};

/// 4.3 s of the embedded voice `june`.
const CLIP: &[u8] = include_bytes!("../../../config/models/tiny/voices/june.wav");
const INPUT: &str = "Yes.";

/// `clips` clips that differ in one sample, each spoken with once, and once more.
pub(crate) async fn voices(server: &Server, clips: usize) -> Result<Value, Failure> {
    let mut figure = json!({ "clips": clips });
    for (mode, transcript) in
        [("speaker", None), ("in_context", Some("Some words of about this length, said once."))]
    {
        let (mut encode_ms, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for clip in 0..clips {
            let mut bytes = CLIP.to_vec();
            // A sample in the middle, by which the clip is another than all before, also in earlier runs.
            let at = bytes.len() / 2;
            bytes[at..at + 4].copy_from_slice(&fresh(clip).to_le_bytes());
            let mut body = json!({
                "input": INPUT, "stream": false, "seed": 1,
                "reference": { "audio": STANDARD.encode(&bytes), "mode": mode },
            });
            if let Some(words) = transcript {
                body["reference"]["transcript"] = json!(words);
            }
            let (took, cost) = asked(server, &body).await?;
            encode_ms.push(Duration::from_secs_f64(cost / 1_000.0));
            first.push(took);
            let (took, cost) = asked(server, &body).await?;
            if cost != 0.0 {
                return Err(format!("a kept clip was encoded again: {cost} ms").into());
            }
            again.push(took);
        }
        let mean = encode_ms.iter().map(Duration::as_secs_f64).sum::<f64>() / clips.max(1) as f64;
        figure[mode] = json!({
            "encode_ms": spread(encode_ms),
            "encodes_per_second": rounded(1.0 / mean.max(1e-9)),
            "answer_ms": spread(first),
            "answer_again_ms": spread(again),
        });
    }
    Ok(figure)
}

/// Two samples that no other clip has: small numbers of this run and of the clip.
fn fresh(clip: usize) -> u32 {
    let bits = std::process::id().wrapping_mul(0x9E37_79B9).wrapping_add(clip as u32);
    bits & 0x00FF_00FF
}

/// How long an answer took, and the milliseconds of it that went into encoding.
async fn asked(server: &Server, body: &Value) -> Result<(Duration, f64), Failure> {
    let begun = Instant::now();
    let (head, _) = server.post("/v1/audio/speech", body).await?;
    let took = begun.elapsed();
    let usage = head.lines().find_map(|line| line.strip_prefix("x-voxlane-usage: "));
    let usage: Value = serde_json::from_str(usage.ok_or("the answer tells no usage")?)?;
    Ok((took, usage["encode_ms"].as_f64().ok_or("no encode_ms")?))
}
