//! What a tenant may ask for in a minute, over every door at once.

use serde_json::json;

use crate::support::{error_code, open, post, start};
use crate::voices::{CLARA, Kept, upload};

fn body(voice: &str) -> String {
    json!({ "input": "Hello there.", "voice": voice, "response_format": "pcm" }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_every_door_count_together_and_each_door_refuses_in_its_own_words() {
    let server = start("[quotas]\nrequests_per_minute = 2\n").await;
    for _ in 0..2 {
        assert_eq!(post(server.public, "/v1/audio/speech", &body("instant")).await.status, 200);
    }
    let refused = post(server.public, "/v1/audio/speech", &body("instant")).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limit_exceeded"));
    let wait: u32 = refused.header("retry-after").and_then(|text| text.parse().ok()).expect("seconds");
    assert!((1..=30).contains(&wait), "{wait}");
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");

    let elevenlabs = json!({ "text": "Hello there." }).to_string();
    let path = "/v1/text-to-speech/instant?output_format=pcm_24000";
    let refused = post(server.public, path, &elevenlabs).await;
    assert_eq!((refused.status, &refused.json()["detail"]["status"]), (429, &json!("rate_limit_exceeded")));

    let format = json!({ "container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000 });
    let voice = json!({ "mode": "id", "id": "instant" });
    let cartesia = json!({ "transcript": "Hello there.", "model_id": "sonic-3", "voice": voice, "output_format": format });
    let refused = post(server.public, "/tts/bytes", &cartesia.to_string()).await;
    assert_eq!((refused.status, &refused.json()["error_code"]), (429, &json!("rate_limit_exceeded")));

    let (mut sender, mut receiver, _) = client::connect(&server.address()).await.expect("connects");
    sender.open(open(1, "instant")).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "rate_limit_exceeded");
    assert!(server.metric("voxlane_errors_total", "rate_limit_exceeded").await >= 4.0);
}

/// Decoding is what a clip costs, so that one which is refused counts as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_clip_counts_before_it_is_decoded_wherever_it_comes() {
    let kept = Kept::new("quotas");
    let server = start(&format!("[quotas]\nrequests_per_minute = 2\n{}", kept.config())).await;
    let clip: [(&str, &[u8]); 3] = [("name", b"x"), ("consent", b"yes"), ("audio", b"no sound")];
    assert_eq!(upload(&server, None, &clip).await.code(), "bad_reference");
    let given = json!({ "input": "Hi.", "reference": { "audio": "bm8gc291bmQ=" } }).to_string();
    assert_eq!(post(server.public, "/v1/audio/speech", &given).await.code(), "bad_reference");
    let good: [(&str, &[u8]); 3] = [clip[0], clip[1], ("audio", CLARA)];
    for refused in [
        upload(&server, None, &clip).await,
        upload(&server, None, &good).await,
        post(server.public, "/v1/audio/speech", &given).await,
    ] {
        assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limit_exceeded"));
    }
}
