//! Targets that misbehave: each is told as what it is, nothing breaks, and what was measured is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use contract::{Epoch, Span};
use futures_util::SinkExt;
use load::bench::{Run, Witness, run};
use load::open_loop::Settings;
use load::rates::Rates;
use load::target::Target;
use proto::wire::{
    ChunkTrace, End, Flags, Header, Opened, OpenedAudio, PacketKind, Ready, ReadyAudio, ReadyLimits,
    ServerMessage, UsageFields,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use crate::adapters::{Socket, accept, measure, measure_with, next_json, pcm, server, settings};

/// The four protocols.
const ADAPTERS: [&str; 4] = ["native", "speech", "nari", "realtime"];

/// Whatever is asked, these bytes are the answer, again and again, and then the connection stays or ends.
async fn raw(answer: &'static [u8], times: usize, then_close: bool) -> String {
    server(move |mut socket: TcpStream| async move {
        let mut asked = [0; 2_048];
        let _read = socket.read(&mut asked).await;
        for _ in 0..times {
            if socket.write_all(answer).await.is_err() {
                return;
            }
        }
        while !then_close && socket.read(&mut asked).await.is_ok_and(|read| read > 0) {}
    })
    .await
}

fn impatient() -> Settings {
    Settings { patience: Span::from_millis(700), ..settings(&[]) }
}

/// The run found no server worth measuring, and says so in a line about the target.
fn one_clear_error(run: &Run, what: &str) {
    let error = run.error.as_deref().unwrap_or_default();
    assert!(error.starts_with("target a "), "{what}: {error:?}");
    assert!(error.lines().count() == 1 && error.len() < 400, "{what}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_talks_rubbish_or_nothing_is_one_error_in_bounded_time() {
    let answers: [(&str, &'static [u8], usize, bool); 6] = [
        ("closes at once", b"", 0, true),
        ("says nothing", b"", 0, false),
        ("is no HTTP", b"\x00\xff\xfe SSH-2.0-nothing\r\n\r\n", 1, true),
        ("sends a header without end", b"HTTP/1.1 200 OK\r\nx: ", 1, false),
        (
            "sends headers for ever",
            b"HTTP/1.1 200 OK\r\nx-more: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
            100_000,
            true,
        ),
        (
            "is another page",
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello",
            1,
            true,
        ),
    ];
    for (what, answer, times, then_close) in answers {
        for adapter in ADAPTERS {
            let address = raw(answer, times, then_close).await;
            let target = format!("a={adapter},http://{address}");
            let run = tokio::time::timeout(Duration::from_secs(10), measure_with(&target, impatient())).await;
            let run = run.unwrap_or_else(|_| panic!("{adapter} {what}: no end within 10 s"));
            one_clear_error(&run, &format!("{adapter} {what}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_breaks_off_or_holds_no_sound_is_a_failure() {
    let begin = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let bodies: [(&str, &'static [u8]); 3] =
        [("breaks off", b"400\r\nabc"), ("is no chunk", b"zz\r\nabc\r\n"), ("is empty", b"0\r\n\r\n")];
    for (what, body) in bodies {
        let answer: &'static [u8] = Box::leak([&begin[..], body].concat().into_boxed_slice());
        let address = raw(answer, 1, true).await;
        one_clear_error(&measure(&format!("a=speech,http://{address}"), &[]).await, what);
    }
}

fn json(message: &ServerMessage) -> Message {
    Message::text(serde_json::to_string(message).expect("serializes"))
}

fn ready() -> Message {
    json(&ServerMessage::Ready(Box::new(Ready {
        protocol: "voxlane.v1".to_owned(),
        session: "s".to_owned(),
        resume: "r".to_owned(),
        resume_window_ms: 0,
        report_interval_ms: 200,
        default_model: None,
        limits: ReadyLimits {
            message_bytes: 1,
            frame_bytes: 1,
            text_bytes: 1,
            text_characters: 1,
            contexts: 1,
            lead_ms: 1,
            idle_ms: 1,
            context_idle_ms: 1,
            pings_per_second: 1,
        },
        audio: ReadyAudio { codecs: vec![], clock: 48_000, packet_ms: 20, sample_rates: vec![] },
        models: vec![],
    })))
}

fn opened(sample_rate: u32) -> Message {
    let audio = OpenedAudio { codec: "pcm".to_owned(), sample_rate, channels: 1, packet_ms: 20, pre_skip: 0 };
    json(&ServerMessage::Opened(Opened {
        context: 1,
        epoch: 0,
        model: "m".to_owned(),
        voice: None,
        language: None,
        reading: None,
        layout: "streamed".to_owned(),
        audio,
    }))
}

/// A packet that says it lasts 20 ms, with so many milliseconds of loud PCM in it.
fn packet(sequence: u32, millis: usize) -> Message {
    let kind = PacketKind::Pcm;
    let header = Header {
        kind,
        flags: Flags::default(),
        context: 1,
        sequence,
        timestamp: 0,
        duration: 960,
        epoch: Epoch(0),
    };
    Message::binary([&header.encode()[..], &pcm(millis, true)].concat())
}

fn end(usage: UsageFields) -> Message {
    let reason = "done".to_owned();
    json(&ServerMessage::End(End { context: 1, epoch: 0, reason, samples: 0, sequence: 0, usage }))
}

/// Speaks natively up to the end of the text.
async fn until_text(socket: TcpStream, sample_rate: u32) -> Socket {
    let mut socket = accept(socket, Some("voxlane.v1")).await;
    let _sent = socket.send(ready()).await;
    while let Some(message) = next_json(&mut socket).await {
        match message["type"].as_str() {
            Some("open") => drop(socket.send(opened(sample_rate)).await),
            Some("text.end") => break,
            _ => {}
        }
    }
    socket
}

/// A native server that says these things to every request.
async fn native(sample_rate: u32, says: impl Fn() -> Vec<Message> + Clone + Send + 'static) -> String {
    server(move |socket| {
        let says = says.clone();
        async move {
            let mut socket = until_text(socket, sample_rate).await;
            for message in says() {
                let _sent = socket.feed(message).await;
            }
            let _sent = socket.flush().await;
            while next_json(&mut socket).await.is_some() {}
        }
    })
    .await
}

fn usage(frames: u64) -> UsageFields {
    UsageFields { frames, samples: frames * 960, ..UsageFields::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_that_a_packet_only_claims_to_hold_is_not_heard() {
    for rate in [24_000, 0] {
        let address = native(rate, || vec![packet(1, 1), end(usage(1))]).await;
        let run = measure(&format!("a=native+pcm,ws://{address}"), &[]).await;
        one_clear_error(&run, "a packet of 1 ms");
        assert!(run.error.as_deref().is_some_and(|error| error.contains("holds")), "{:?}", run.error);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_without_sense_break_nothing_and_count_as_frames_lost() {
    let huge = || {
        let trace = ChunkTrace {
            context: 1,
            epoch: 0,
            sequence: 1,
            samples: u64::MAX,
            frames: 1,
            segment: 0,
            lane: String::new(),
            slack_ms: Some(1e300),
            made_ms: -1e300,
        };
        let usage = UsageFields { frames: u64::MAX, samples: u64::MAX, text_starved_ms: 1e300, ..usage(0) };
        vec![json(&ServerMessage::Chunk(trace)), packet(1, 20), end(usage)]
    };
    let run = measure(&format!("a=native+pcm,ws://{}", native(24_000, huge).await), &[]).await;
    one_clear_error(&run, "numbers without sense");
    assert!(run.error.as_deref().is_some_and(|error| error.contains("frames")), "{:?}", run.error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_beyond_all_bounds_are_a_failure_and_not_memory() {
    for message in
        [Message::binary(vec![0; 20 << 20]), Message::text("[".repeat(1 << 20)), Message::text("{}")]
    {
        let says = move || vec![message.clone(), end(usage(0))];
        let run = measure(&format!("a=native+pcm,ws://{}", native(24_000, says).await), &[]).await;
        one_clear_error(&run, "a message");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_faster_than_it_is_played_is_no_stall_and_slower_is() {
    let all_at_once = || (1..=100).map(|n| packet(n, 20)).chain([end(usage(100))]).collect();
    let run = measure(&format!("a=native+pcm,ws://{}", native(24_000, all_at_once).await), &[]).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    assert_eq!((rate.completed, rate.no_stall), (rate.offered, 1.0), "{rate:?}");
    assert_eq!((rate.frames_made, rate.stall_s), (Some(100 * rate.offered), 0.0), "{rate:?}");

    let slow = server(|socket| async move {
        let mut socket = until_text(socket, 24_000).await;
        for n in 1..=5 {
            let _sent = socket.send(packet(n, 20)).await;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        // It says that it waited for text all the time, and all of the text was there.
        let usage = UsageFields { text_starved_ms: 1e9, ..usage(5) };
        let _sent = socket.send(end(usage)).await;
        while next_json(&mut socket).await.is_some() {}
    })
    .await;
    let run = measure(&format!("a=native+pcm,ws://{slow}"), &[]).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    // Four waits of 40 ms each.
    let each = rate.stall_s / rate.offered as f64;
    assert!(rate.no_stall == 0.0 && (0.15..0.4).contains(&each), "{each}: {rate:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_hangs_in_the_middle_fails_and_its_report_is_kept() {
    let asked = Arc::new(AtomicU32::new(0));
    let hanging = server(move |socket| {
        let asked = Arc::clone(&asked);
        async move {
            let mut socket = until_text(socket, 24_000).await;
            let _sent = socket.send(packet(1, 20)).await;
            // The probe is answered.
            if asked.fetch_add(1, Relaxed) == 0 {
                let _sent = socket.send(end(usage(1))).await;
            }
            while next_json(&mut socket).await.is_some() {}
        }
    })
    .await;
    let run = measure_with(&format!("a=native+pcm,ws://{hanging}"), impatient()).await;
    one_clear_error(&run, "hangs");
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.offered > 0 && rate.failed == rate.offered, "{rate:?}");
    assert!(rate.ttfa_ms.p50.is_some(), "what was heard counts: {rate:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_closes_while_text_is_sent_is_told_by_its_own_reason() {
    let closing = server(|socket| async move {
        let mut socket = accept(socket, Some("voxlane.v1")).await;
        let _sent = socket.send(ready()).await;
        let _open = (next_json(&mut socket).await, next_json(&mut socket).await);
        let frame = CloseFrame { code: CloseCode::Size, reason: "a message is too long".into() };
        let _sent = socket.close(Some(frame)).await;
        // The connection stays for a while: whoever has text to send finds it closing, not gone.
        tokio::time::sleep(Duration::from_millis(100)).await;
        while next_json(&mut socket).await.is_some() {}
    })
    .await;
    for _ in 0..5 {
        let run = measure(&format!("a=native+ids=50,ws://{closing}"), &[]).await;
        one_clear_error(&run, "closes");
        let error = run.error.unwrap_or_default();
        assert!(error.contains("1009 a message is too long"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_without_any_sound_is_a_failure_in_every_protocol() {
    let mute = server(|socket| async move {
        let mut socket = accept(socket, None).await;
        let done = r#"{"type": "response.done", "response": {"status": "completed"}}"#;
        let _sent = socket.send(Message::text(done)).await;
        while next_json(&mut socket).await.is_some() {}
    })
    .await;
    let native = native(24_000, || vec![end(usage(0))]).await;
    for target in [format!("a=realtime,ws://{mute}"), format!("a=native+pcm,ws://{native}")] {
        let run = measure(&target, &[]).await;
        one_clear_error(&run, &target);
        assert!(run.error.as_deref().is_some_and(|error| error.contains("no sound")), "{:?}", run.error);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_says_of_its_failure_stays_one_line_and_steers_no_terminal() {
    let said = b"HTTP/1.1 500 X\r\ncontent-length: 52\r\n\r\n{\"error\":{\"code\":\"a\\nb\",\"message\":\"c\\u001b[2J\\nd\"}}   ";
    let run = measure(&format!("a=speech,http://{}", raw(said, 1, true).await), &[]).await;
    one_clear_error(&run, "speaks in lines");
    assert!(!run.error.as_deref().unwrap_or_default().contains(char::is_control), "{:?}", run.error);
}

/// Every second request hears nothing and does not end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_run_that_is_cut_short_whoever_had_missed_the_target_counts_and_no_capacity_is_said() {
    let target = answering(|asked| asked.is_multiple_of(2)).await;
    let run = cut_short(target, 4_000, 3_500).await;
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.cut_short && rate.completed > 5, "{rate:?}");
    // All but the last few, who might still have been in time.
    assert!(rate.offered > rate.completed + rate.completed / 2, "{rate:?}");
    assert_eq!(rate.failed, rate.offered - rate.completed, "{rate:?}");
    assert_eq!(run.report.targets[0].capacity["90"], None);
}

/// A target that answers those requests, by their number, that `answers` says; of the others it hears all and says nothing.
async fn answering(answers: impl Fn(u32) -> bool + Clone + Send + 'static) -> Target {
    let asked = Arc::new(AtomicU32::new(0));
    let target = server(move |socket| {
        let (asked, answers) = (Arc::clone(&asked), answers.clone());
        async move {
            let mut socket = until_text(socket, 24_000).await;
            if answers(asked.fetch_add(1, Relaxed)) {
                let _sent = socket.send(packet(1, 20)).await;
                let _sent = socket.send(end(usage(1))).await;
            }
            while next_json(&mut socket).await.is_some() {}
        }
    })
    .await;
    Target::parse(&format!("a=native+pcm,ws://{target}")).expect("valid")
}

/// 20 requests a second in a window of `window_ms`, cut short after `after_ms`.
async fn cut_short(target: Target, window_ms: i64, after_ms: u64) -> Run {
    let (cut, is_cut) = watch::channel(false);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        cut.send(true).expect("the run listens");
        std::future::pending::<()>().await;
    });
    let witness = Witness { progress: &|_| {}, so_far: &|_| {}, cut: is_cut };
    let rates = Rates::sweep("20").expect("valid");
    run(vec![target], settings(&[]), rates, Span::from_millis(window_ms), witness).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_cut_short_before_its_window_has_anybody_in_it_says_so_and_tells_no_rate() {
    let run = cut_short(answering(|_| true).await, 6_000, 300).await;
    assert!(run.report.targets[0].rates.is_empty(), "{:?}", run.report.targets);
    let notes = &run.report.notes;
    assert!(notes.iter().any(|it| it.contains("cut short before its window had anybody")), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_is_cut_short_keeps_its_short_windows_and_says_that_they_tell_no_capacity() {
    let target = answering(|_| true).await;
    let (cut, is_cut) = watch::channel(false);
    let (told, kept) = (AtomicU32::new(0), std::sync::Mutex::new(Vec::new()));
    let progress = |line: String| {
        if line.contains("attained") && told.fetch_add(1, Relaxed) == 1 {
            cut.send_replace(true);
        }
    };
    let so_far = |report: &load::report::Report| {
        kept.lock().expect("nobody panics").push(report.targets[0].rates.len());
    };
    let witness = Witness { progress: &progress, so_far: &so_far, cut: is_cut };
    let rates = Rates::search("20:80").expect("valid");
    let run = run(vec![target], settings(&[]), rates, Span::from_millis(2_000), witness).await;
    let target = &run.report.targets[0];
    assert_eq!(target.rates.len(), 2, "{target:?}");
    assert!(target.rates.iter().all(|rate| rate.cut_short && rate.window_s == 0.5), "{target:?}");
    assert_eq!(target.capacity["90"], None);
    assert!(run.report.notes.iter().any(|note| note.contains("windows of 0.5 s tell no capacity")));
    // What ends the process in the middle of a search loses one window.
    assert_eq!(kept.into_inner().expect("nobody panics")[..2], [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_goes_on_below_a_rate_that_overcomes_its_target() {
    let overcome = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&overcome);
    let target = server(move |socket| {
        let now = Arc::clone(&now);
        async move {
            let mut socket = accept(socket, Some("voxlane.v1")).await;
            let _sent = socket.send(ready()).await;
            while let Some(message) = next_json(&mut socket).await {
                // Alone it answers; the workload's requests find it closed.
                if now.load(Relaxed) && message.to_string().contains("Four words") {
                    return;
                }
                match message["type"].as_str() {
                    Some("open") => drop(socket.send(opened(24_000)).await),
                    Some("text.end") => break,
                    _ => {}
                }
            }
            let _sent = socket.send(packet(1, 20)).await;
            let _sent = socket.send(end(usage(1))).await;
            while next_json(&mut socket).await.is_some() {}
        }
    })
    .await;
    let target = Target::parse(&format!("a=native+pcm,ws://{target}")).expect("valid");
    let (cut, is_cut) = watch::channel(false);
    let told = AtomicU32::new(0);
    let progress = |line: String| {
        if line.contains("attained") {
            let windows = told.fetch_add(1, Relaxed) + 1;
            overcome.store(windows == 1, Relaxed);
            if windows == 3 {
                cut.send_replace(true);
            }
        }
    };
    let witness = Witness { progress: &progress, so_far: &|_| {}, cut: is_cut };
    let rates = Rates::search("20:80").expect("valid");
    let run = run(vec![target], settings(&[]), rates, Span::from_millis(2_000), witness).await;
    assert_eq!(run.error, None);
    assert!(told.load(Relaxed) >= 3, "the search goes on");
    let rates = &run.report.targets[0].rates;
    assert!(rates.iter().any(|rate| rate.rate == 50.0 && rate.failed == rate.offered), "{rates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_cut_short_before_anybody_was_answered_is_no_failure_of_its_target() {
    // The probe is answered.
    let run = cut_short(answering(|asked| asked == 0).await, 3_000, 2_000).await;
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.cut_short && rate.offered > 0 && rate.completed == 0, "{rate:?}");
    assert_eq!(run.error, None, "it was not waited for");
}
