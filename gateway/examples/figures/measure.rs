//! The measurements.

use std::time::Duration;

use client::{Outcome, Utterance, speak};
use proto::wire::Open;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::server::{Server, rounded};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

const SENTENCE: &str = "The harbour was quiet, and the first boats came home before the rain.";

const SHORT: &str = "The harbour was quiet.";

/// Prose of about a minute.
const PROSE: &str = "The harbour was quiet, and the first boats came home before the rain. \
    A woman in a yellow coat counted them from the wall, as she did every evening. \
    When the last one had tied up, she walked to the bakery and bought two loaves of bread. \
    The baker asked her how many boats there were, and she told him that all of them were back. \
    He nodded, put out the light above the door, and began to sweep the floor. \
    Outside, the wind turned to the west and the lamps along the water started to swing. \
    Nobody was in a hurry, because the morning tide would not come before six. ";

/// Pauses of one listener that together count as a stall.
const STALL: Duration = Duration::from_millis(10);

/// First audio of one stream at a time.
pub(crate) async fn alone(server: &Server, runs: usize) -> Result<Value, Failure> {
    let (mut sender, mut receiver, _) = server.connect().await?;
    let mut sounds = Vec::new();
    let mut packets = Vec::new();
    for run in 0..runs {
        let context = u16::try_from(run + 1)?;
        let utterance = whole(Open { context, ..Open::default() }, SENTENCE);
        let outcome = speak(&mut sender, &mut receiver, &utterance).await?;
        expect_done(&outcome)?;
        sounds.extend(outcome.first_sound);
        packets.extend(outcome.first_packet);
        // The next one finds an idle server.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(json!({ "runs": runs, "first_sound_ms": spread(sounds), "first_packet_ms": spread(packets) }))
}

/// `streams` listeners at once, text coming word by word.
pub(crate) async fn concurrent(server: &Server, streams: usize, length: Duration) -> Result<Value, Failure> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for stream in 0..streams {
        let server = server.clone();
        // A new listener every quarter of a second, as people come.
        let offset = Duration::from_millis(250) * u32::try_from(stream)?;
        tasks.spawn(async move {
            tokio::time::sleep(offset).await;
            let (mut sender, mut receiver, _) = server.connect().await?;
            let mut outcomes = Vec::new();
            let mut context = 0;
            while begun.elapsed() < length + offset {
                context += 1;
                let text: Vec<String> = PROSE.split_inclusive(' ').map(str::to_owned).collect();
                let utterance = Utterance {
                    text,
                    gap: Duration::from_millis(50),
                    reports: Some(Duration::from_millis(200)),
                    hear_out: true,
                    ..whole(Open { context, ..Open::default() }, "")
                };
                outcomes.push(speak(&mut sender, &mut receiver, &utterance).await?);
            }
            Ok::<_, Failure>(outcomes)
        });
    }
    let mut outcomes = Vec::new();
    let mut stalled = 0;
    while let Some(joined) = tasks.join_next().await {
        let stream = joined??;
        let paused: Duration = stream.iter().map(|outcome| outcome.paused).sum();
        stalled += usize::from(paused >= STALL);
        outcomes.extend(stream);
    }
    for outcome in &outcomes {
        expect_done(outcome)?;
    }
    let media: u64 = outcomes.iter().map(|outcome| outcome.media).sum();
    let sounds = outcomes.iter().filter_map(|outcome| outcome.first_sound).collect();
    let pauses = outcomes.iter().map(|outcome| outcome.paused).collect();
    Ok(json!({
        "streams": streams,
        "stalled_streams": stalled,
        "utterances": outcomes.len(),
        "underruns": outcomes.iter().map(|outcome| outcome.underruns).sum::<u32>(),
        "pause_ms_per_utterance": spread(pauses),
        "first_sound_ms": spread(sounds),
        "audio_seconds": rounded(media as f64 / 48_000.0),
        "seconds": rounded(begun.elapsed().as_secs_f64()),
    }))
}

/// Audio made in a second when `contexts` requests take it as fast as it comes.
pub(crate) async fn throughput(server: &Server, contexts: usize, length: Duration) -> Result<Value, Failure> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..contexts {
        let server = server.clone();
        tasks.spawn(async move {
            let mut bytes = 0;
            while begun.elapsed() < length {
                bytes += pcm_bytes(&server, PROSE).await?;
            }
            Ok::<_, Failure>((bytes, begun.elapsed()))
        });
    }
    let mut bytes = 0;
    let mut rate = 0.0;
    while let Some(joined) = tasks.join_next().await {
        let (of_one, seconds) = joined??;
        bytes += of_one;
        // Each counts over its own time, so that the last to end does not thin out the others.
        rate += of_one as f64 / 48_000.0 / seconds.as_secs_f64();
    }
    Ok(json!({
        "contexts": contexts,
        "audio_seconds": rounded(bytes as f64 / 48_000.0),
        "audio_seconds_per_second": rounded(rate),
    }))
}

/// Text in to packet out with an engine that takes no time, over many sessions that talk as people do:
/// a sentence, heard to its end, and a pause about as long.
pub(crate) async fn share(server: &Server, sessions: usize, length: Duration) -> Result<Value, Failure> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for session in 0..sessions {
        let server = server.clone();
        tasks.spawn(async move {
            let (mut sender, mut receiver, _) = server.connect().await?;
            let mut firsts = Vec::new();
            let mut context = 0;
            // Spread over a second, and each at its own pace, so that arrivals do not fall in step.
            tokio::time::sleep(Duration::from_micros(1_000_000 / sessions as u64 * session as u64)).await;
            while begun.elapsed() < length {
                context += 1;
                let open = Open { context, voice: Some("instant".to_owned()), ..Open::default() };
                let utterance = Utterance {
                    decode: false,
                    reports: Some(Duration::from_millis(200)),
                    hear_out: true,
                    ..whole(open, SHORT)
                };
                let outcome = speak(&mut sender, &mut receiver, &utterance).await?;
                expect_done(&outcome)?;
                firsts.extend(outcome.first_packet);
                tokio::time::sleep(Duration::from_millis(1_000 + session as u64 % 17 * 60)).await;
            }
            Ok::<_, Failure>(firsts)
        });
    }
    let mut firsts = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        firsts.extend(joined??);
    }
    Ok(json!({ "sessions": sessions, "first_packet_ms": spread(firsts) }))
}

fn whole(open: Open, text: &str) -> Utterance {
    Utterance {
        open,
        text: vec![text.to_owned()],
        gap: Duration::ZERO,
        reports: None,
        decode: true,
        hear_out: false,
    }
}

fn expect_done(outcome: &Outcome) -> Result<(), Failure> {
    match &outcome.end {
        Some(end) if end.reason == "done" => Ok(()),
        Some(end) => Err(format!("an utterance ended as {}: {:?}", end.reason, outcome.error).into()),
        None => {
            Err(format!("an utterance had no end: {:?}, closed {:?}", outcome.error, outcome.closed).into())
        }
    }
}

/// Sorted durations in milliseconds: how many, and where the middle and the ends lie.
pub(crate) fn spread(mut durations: Vec<Duration>) -> Value {
    durations.sort_unstable();
    let at = |percent: usize| {
        let rank = (durations.len() * percent).div_ceil(100).max(1) - 1;
        durations.get(rank).map(|duration| rounded(duration.as_secs_f64() * 1_000.0))
    };
    json!({ "count": durations.len(), "p50": at(50), "p95": at(95), "p99": at(99), "max": at(100) })
}

/// Bytes of 24 kHz s16le that one request is answered with.
async fn pcm_bytes(server: &Server, input: &str) -> Result<u64, Failure> {
    let body = json!({ "input": input, "response_format": "pcm", "sample_rate": 24_000 });
    let (_, answer) = server.post("/v1/audio/speech", &body).await?;
    if !answer.ends_with(b"0\r\n\r\n") {
        return Err("an answer broke off".into());
    }
    // Chunk heads are some eight bytes to thousands: they are counted off.
    let mut rest = &answer[..];
    let mut bytes = 0;
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        if size == 0 {
            break;
        }
        bytes += size as u64;
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    Ok(bytes)
}
