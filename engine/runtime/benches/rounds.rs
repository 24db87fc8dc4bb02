//! Host time of the engine thread's rounds: `cargo bench -p runtime`, or `-- 256` for so many contexts alone.
//!
//! The engine that serves, with Qwen3-TTS 1.7B's shapes, speaks to so many listeners at once on a card that
//! computes nothing and takes an H200's time. Contexts speak some 5 s and make place for others, so that prompts
//! come all the time and steps ride along with them; listeners report five times a second, as browsers do. The
//! goal is a median of 20 us.

#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
#![allow(clippy::unwrap_used, reason = "a tool fails by panicking")]

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use contract::{
    ContextId, EngineHandle, EngineStats, Layout, OpenContext, Output, OutputSink, Playback, Sampling,
    SinkFull, Span, Spread, Stage, Tick, VoiceChoice,
};
use runtime::{DeviceChoice, ModelSource, OpenOptions, Precision, Without};

macro_rules! shape {
    ($file:literal) => {
        ($file, include_bytes!(concat!("../../../config/models/shapes/qwen3-tts-1.7b/", $file)))
    };
}
macro_rules! tiny {
    ($file:literal) => {
        ($file, include_bytes!(concat!("../../../config/models/tiny/", $file)))
    };
}
static FILES: &[(&str, &[u8])] = &[
    shape!("config.json"),
    shape!("generation_config.json"),
    shape!("speech_tokenizer/config.json"),
    tiny!("tokenizer.json"),
    tiny!("tokenizer_config.json"),
];

const TEXT: &str = "The morning train was late again, so we walked along the river.";
const WARM: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(12);
const REPORT: Duration = Duration::from_millis(200);
/// What listeners and openers may owe the main thread.
const NOTICES: usize = 4_096;

/// Says when its context begins to sound, and that it is over.
struct Ear {
    seat: usize,
    began: Mutex<Option<Tick>>,
    over: SyncSender<usize>,
}

impl OutputSink for Ear {
    fn push(&self, output: Output) -> Result<(), SinkFull> {
        match output {
            Output::Chunk(chunk) => {
                self.began.lock().unwrap().get_or_insert(chunk.made);
            }
            Output::Finished { .. } => self.over.send(self.seat).map_err(|_| SinkFull)?,
            _ => {}
        }
        Ok(())
    }
}

struct Bench {
    engine: Arc<dyn EngineHandle>,
    start: Instant,
    over: SyncSender<usize>,
    seats: Vec<Option<(ContextId, Arc<Ear>)>>,
    opened: u32,
}

impl Bench {
    fn seat(&mut self, seat: usize) {
        self.opened += 1;
        let request = OpenContext {
            model: "tts".to_owned(),
            voice: VoiceChoice::Default,
            language: None,
            instructions: None,
            layout: Layout::Whole,
            sampling: Sampling { seed: Some(u64::from(self.opened)), ..Sampling::default() },
            arrival: Tick::after_start(self.start.elapsed()),
            tenant: 0,
            exact_frames: Some(40 + self.opened * 7_919 % 41),
        };
        let ear = Arc::new(Ear { seat, began: Mutex::default(), over: self.over.clone() });
        let context = self.engine.open(request, ear.clone()).unwrap();
        self.engine.push_text(context, TEXT).unwrap();
        self.engine.finish(context).unwrap();
        self.seats[seat] = Some((context, ear));
    }

    /// Opens for everyone who is over, and lets listeners report, until then.
    fn go_on(&mut self, until: Instant, over: &Receiver<usize>) {
        let seats = self.seats.len();
        let mut reported = 0;
        let begun = Instant::now();
        while Instant::now() < until {
            match over.recv_timeout(Duration::from_micros(500)) {
                Ok(seat) => self.seat(seat),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Reports are spread over their interval, as listeners are.
            let due = (begun.elapsed().as_secs_f64() / REPORT.as_secs_f64() * seats as f64) as usize;
            for report in reported..due {
                let Some((context, ear)) = &self.seats[report % seats] else { continue };
                let Some(began) = *ear.began.lock().unwrap() else { continue };
                let wobble = i64::try_from(report * 7_919 % 5_000).unwrap() - 2_500;
                let zero = began + Span::from_micros(50_000 + wobble);
                self.engine.playback(*context, Playback::Playing { zero });
            }
            reported = due;
        }
    }
}

fn run(contexts: u32) -> (EngineStats, EngineStats) {
    let start = Instant::now();
    let source = ModelSource::Random { files: FILES, seed: 1 };
    let options = OpenOptions {
        contexts_max: contexts,
        device: DeviceChoice::Cuda {
            ordinal: 0,
            precision: Precision::Bf16,
            background_sms: 48,
            kernels: None,
        },
        bench: true,
        first_audio_limit: Some(Span::from_millis(60_000)),
        without: Without { device: true, ..Without::default() },
        ..OpenOptions::new(source, "tts".to_owned(), start)
    };
    let engine = runtime::open(options).unwrap();
    let (over, is_over) = sync_channel(NOTICES);
    let seats = (0..contexts).map(|_| None).collect();
    let mut bench = Bench { engine, start, over, seats, opened: 0 };
    (0..contexts as usize).for_each(|seat| bench.seat(seat));
    bench.go_on(Instant::now() + WARM, &is_over);
    let before = bench.engine.stats();
    bench.go_on(Instant::now() + MEASURED, &is_over);
    (before, bench.engine.stats())
}

fn column(spread: &Spread) -> String {
    let [median, late] = [0.5, 0.99].map(|part| spread.quantile(part).as_micros());
    format!("{:>8} {median:>6} {late:>6}", spread.count())
}

fn main() {
    println!(
        "rounds: how many, median and p99 in us; of those that launched, of their calls to the device, then by the stage that landed"
    );
    println!(
        "{:>8} {:>22} {:>22} {:>22} {:>22} {:>22} {:>9} {:>9}",
        "contexts", "launched", "in device", "decode", "prefill", "codec", "lm rows", "refused"
    );
    let asked: Vec<u32> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    for contexts in if asked.is_empty() { vec![1, 16, 64, 128, 256] } else { asked } {
        let (before, after) = run(contexts);
        let of = |stats: &EngineStats, stage| stats.landings.get(&stage).cloned().unwrap_or_default();
        let stages = [Stage::Decode, Stage::Prefill, Stage::Codec]
            .map(|stage| column(&of(&after, stage).since(&of(&before, stage))));
        let launches = (after.lm.launches - before.lm.launches).max(1);
        println!(
            "{contexts:>8} {} {} {} {:>9} {:>9}",
            column(&after.rounds.since(&before.rounds)),
            column(&after.rounds_device.since(&before.rounds_device)),
            stages.join(" "),
            (after.lm.rows - before.lm.rows) / launches,
            after.refused + after.finished_failed,
        );
    }
}
