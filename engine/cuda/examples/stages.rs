//! Times every stage of a published size with random weights on a card: each recorded bucket as a whole, and
//! where the largest spends its time, kernel by kernel. `cargo run --release -p cuda --example stages -- 1.7b [SMs of the
//! background lane] [rows from which the library multiplies, 0 for none] [of decode,codec,beside,prefill those to time]`
#![allow(clippy::unwrap_used, reason = "a tool fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a tool is the shell that gives the backend its clock")]

use std::sync::Arc;
use std::time::Instant;

use contract::{
    Lane, LaunchId, Layout, ModelId, OpenContext, Partition, Sampling, ShapeKey, Stage, Tick, VoiceChoice,
};
use cuda::{CudaBackend, CudaOptions, Precision};
use device::{Backend, ExecutableId, Launch};
use models::{
    Capacity, CodecRow, DecodeRow, ModelSource, NextText, PlacedModel, PrefillRow, Prompt, SpeechPlan,
    StageInputs,
};

macro_rules! files {
    ($shape:literal) => {
        &[
            (
                "config.json",
                include_bytes!(concat!("../../../config/models/shapes/", $shape, "/config.json")),
            ),
            (
                "generation_config.json",
                include_bytes!(concat!("../../../config/models/shapes/", $shape, "/generation_config.json")),
            ),
            (
                "speech_tokenizer/config.json",
                include_bytes!(concat!(
                    "../../../config/models/shapes/",
                    $shape,
                    "/speech_tokenizer/config.json"
                )),
            ),
            ("tokenizer.json", include_bytes!("../../../config/models/tiny/tokenizer.json")),
            ("tokenizer_config.json", include_bytes!("../../../config/models/tiny/tokenizer_config.json")),
        ]
    };
}

const PAGE_LEN: u32 = 64;
const POSITION: u32 = 100;
const SLOTS: u32 = 256;
const RUNS: usize = 15;
/// Turns in which lanes run beside each other.
const TURNS: usize = 100;

struct Bench {
    backend: CudaBackend,
    launches: u64,
}

impl Bench {
    fn build(
        &mut self,
        model: &dyn PlacedModel,
        stage: Stage,
        bucket: u32,
        length: u32,
        partition: Partition,
    ) -> ExecutableId {
        let program = model.program(stage, length).unwrap();
        let key = ShapeKey { model: ModelId(0), stage, bucket, length, partition };
        self.backend.build(key, &program).unwrap()
    }

    /// Median microseconds on the device.
    fn time(&mut self, lane: Lane, executable: ExecutableId, inputs: &StageInputs) -> f64 {
        self.together(RUNS, &[(lane, executable, inputs)])[0].0
    }

    /// Median and 99th percentile, in microseconds, of what each of these takes while all run at once, the first of them
    /// launched first; each comes back before the next turn.
    fn together(&mut self, turns: usize, all: &[(Lane, ExecutableId, &StageInputs)]) -> Vec<(f64, f64)> {
        let mut times = vec![Vec::new(); all.len()];
        for _ in 0..turns {
            let first = self.launches + 1;
            for &(lane, executable, inputs) in all {
                self.launches += 1;
                let launch = LaunchId(self.launches);
                let StageInputs { rows, tokens, inputs } = inputs.clone();
                self.backend
                    .launch(Launch { launch, lane, executable, rows, tokens, inputs, wanted: Vec::new() })
                    .unwrap();
            }
            let mut left = all.len();
            while left > 0 {
                let Some(done) = self.backend.poll() else { continue };
                left -= 1;
                times[(done.launch.0 - first) as usize]
                    .push(done.finished.since(done.started).as_micros() as f64);
                done.result.unwrap();
            }
        }
        let quantiles = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            (times[times.len() / 2], times[times.len() * 99 / 100])
        };
        times.into_iter().map(quantiles).collect()
    }
}

fn main() {
    let size = std::env::args().nth(1).unwrap_or_else(|| "1.7b".to_owned());
    let split: u32 = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(32);
    let files: &'static [(&'static str, &'static [u8])] = match size.as_str() {
        "0.6b" => files!("qwen3-tts-0.6b"),
        _ => files!("qwen3-tts-1.7b"),
    };
    let zero = Instant::now();
    let mut options = CudaOptions::new(
        0,
        SLOTS as usize,
        Arc::new(move || Tick::after_start(zero.elapsed())),
        Arc::new(|| {}),
    );
    options.precision = Precision::Bf16;
    (options.background_sms, options.background_exactly) = (split, true);
    if let Some(from) = std::env::args().nth(3).and_then(|n| n.parse().ok()) {
        options.library_from = (from > 0).then_some(from);
    }
    options.kernel_cache = Some(std::env::temp_dir().join("voxlane-kernels"));
    let backend = CudaBackend::open(options).unwrap();
    println!("{} after {:?}", backend.describe(), zero.elapsed());
    let mut bench = Bench { backend, launches: 0 };
    let model = models::open(ModelSource::Random { files, seed: 1 }, "bench").unwrap();
    let text = model.text();
    let capacity = Capacity { slots: SLOTS, pages: SLOTS * 4 + 1, page_len: PAGE_LEN, positions_max: 2048 };
    let placed = model.place(&mut bench.backend, capacity).unwrap();
    println!("placed after {:?}, {:?} bytes", zero.elapsed(), bench.backend.bytes());

    let decode: Vec<_> = [Partition::Lm, Partition::Whole]
        .map(|partition| (partition, bench.build(placed.as_ref(), Stage::Decode, 256, 1, partition)))
        .to_vec();
    let codec: Vec<_> = [Partition::Background, Partition::Whole]
        .into_iter()
        .flat_map(|partition| [2u32, 10].map(|length| (partition, length)))
        .map(|(partition, length)| {
            (partition, length, bench.build(placed.as_ref(), Stage::Codec, 64, length, partition))
        })
        .collect();
    let prefill = bench.build(placed.as_ref(), Stage::Prefill, 32, 1024, Partition::Whole);
    let riding = bench.build(placed.as_ref(), Stage::Prefill, SLOTS, 1024, Partition::Lm);
    let graphs = bench.backend.record().unwrap();
    println!("{graphs} graphs after {:?}, {:?} bytes", zero.elapsed(), bench.backend.bytes());

    let request = OpenContext {
        model: "bench".to_owned(),
        voice: VoiceChoice::Default,
        language: None,
        instructions: None,
        layout: Layout::Whole,
        sampling: Sampling { seed: Some(0), ..Sampling::default() },
        arrival: Tick::START,
        tenant: 0,
        exact_frames: None,
    };
    let plan = text.plan(&request).unwrap();
    let pages: Vec<Vec<u32>> =
        (0..SLOTS).map(|slot| (0..4).map(|page| 1 + slot * 4 + page).collect()).collect();
    let stepping = decode[0].1;
    let parts = std::env::args().nth(4).unwrap_or_else(|| "decode,codec,beside,prefill".to_owned());
    let timed = |part: &str| parts.split(',').any(|named| named == part);
    for (partition, executable) in decode.into_iter().filter(|_| timed("decode")) {
        for batch in [1u32, 8, 16, 32, 64, 96, 128, 192, 256] {
            let rows: Vec<_> = (0..batch).map(|slot| step(slot, &plan, &pages[slot as usize])).collect();
            let micros = bench.time(Lane::Lm, executable, &placed.decode_inputs(&rows));
            println!("decode {partition:?} batch {batch}: {micros:.0} us");
            if partition == Partition::Whole && [1, 64, 128].contains(&batch) || batch == 256 {
                report(&mut bench, executable, batch as usize, 0);
            }
        }
    }
    let served = codec.clone();
    for (partition, length, executable) in codec.into_iter().filter(|_| timed("codec")) {
        for batch in [1u32, 8, 16, 64] {
            let codes = vec![7; (length * 16) as usize];
            let rows: Vec<_> = (0..batch).map(|slot| CodecRow { slot, start: 0, codes: &codes }).collect();
            let lane = if partition == Partition::Whole { Lane::Urgent } else { Lane::Background };
            let micros = bench.time(lane, executable, &placed.codec_inputs(&rows, length));
            println!("codec {partition:?} length {length} batch {batch}: {micros:.0} us");
            if length == 10 && (batch == 64 || partition == Partition::Whole && batch != 8) {
                report(&mut bench, executable, batch as usize, 0);
            }
        }
    }
    if timed("beside") {
        let rows: Vec<_> = (0..SLOTS).map(|slot| step(slot, &plan, &pages[slot as usize])).collect();
        let decoding = placed.decode_inputs(&rows);
        let chunks = |slots: std::ops::Range<u32>, length: u32| {
            let codes = vec![7; (length * 16) as usize];
            let rows: Vec<_> = slots.map(|slot| CodecRow { slot, start: 0, codes: &codes }).collect();
            placed.codec_inputs(&rows, length)
        };
        let of = |partition, length| {
            let found = served.iter().find(|(on, frames, _)| (*on, *frames) == (partition, length));
            found.map(|(.., executable)| *executable).unwrap()
        };
        let background = chunks(0..64, 10);
        let stepping = (Lane::Lm, stepping, &decoding);
        let behind = (Lane::Background, of(Partition::Background, 10), &background);
        println!("decode of {SLOTS} alone: {:?} us (median, p99)", bench.together(TURNS, &[stepping])[0]);
        println!(
            "decode of {SLOTS} beside 64 chunks of 10: {:?} us",
            bench.together(TURNS, &[stepping, behind])[0]
        );
        for (count, length) in [(1, 2), (8, 2), (1, 10), (8, 10)] {
            let inputs = chunks(128..128 + count, length);
            let urgent = (Lane::Urgent, of(Partition::Whole, length), &inputs);
            let took = bench.together(TURNS, &[stepping, behind, urgent]);
            println!(
                "with {count} urgent chunks of {length} beside both: decode {:?}, urgent {:?} us",
                took[0], took[2]
            );
        }
    }
    if !timed("prefill") {
        return;
    }
    let mut segment = text.segment();
    let mut ids = segment.push("The morning train was late again, so we walked along the river.").unwrap();
    ids.extend(segment.end());
    let prompt = placed.prompt(&plan, None, &ids, true).unwrap();
    for batch in [1u32, 8, 16] {
        let rows: Vec<_> =
            (0..batch).map(|slot| begin(slot, &plan, &prompt, &pages[slot as usize])).collect();
        let micros = bench.time(Lane::Lm, prefill, &placed.prefill_inputs(&rows, &[]));
        println!("prefill of {batch} prompts of {} positions: {micros:.0} us", prompt.positions());
    }
    for (batch, prompts) in [(32, 1), (64, 1), (64, 4), (128, 1), (128, 4), (256, 1), (256, 4), (256, 9)] {
        let begun: Vec<_> =
            (0..prompts).map(|slot| begin(slot, &plan, &prompt, &pages[slot as usize])).collect();
        let riders: Vec<_> = (prompts..batch).map(|slot| step(slot, &plan, &pages[slot as usize])).collect();
        let inputs = placed.prefill_inputs(&begun, &riders);
        let micros = bench.time(Lane::Lm, riding, &inputs);
        println!(
            "decode Lm batch {batch}, of them {prompts} prompts of {}: {micros:.0} us",
            prompt.positions()
        );
        if batch == 256 && prompts == 4 {
            report(&mut bench, riding, batch as usize, inputs.tokens);
        }
    }
}

fn step<'a>(slot: u32, plan: &SpeechPlan, pages: &'a [u32]) -> DecodeRow<'a> {
    DecodeRow {
        slot,
        position: POSITION,
        step: 1,
        text: NextText::Padding,
        pages,
        sampling: plan.sampling,
        seed: u64::from(slot),
        allow_end: false,
    }
}

fn begin<'a>(slot: u32, plan: &SpeechPlan, prompt: &'a Prompt, pages: &'a [u32]) -> PrefillRow<'a> {
    PrefillRow { slot, prompt, pages, from: 0, sampling: plan.sampling, seed: 0, allow_end: false }
}

/// Kernel by kernel, each timed alone, on the inputs of the launch just timed: they lie where that batch has them.
fn report(bench: &mut Bench, executable: ExecutableId, batch: usize, tokens: usize) {
    let mut sums: Vec<(String, usize, f64)> = Vec::new();
    for (kernel, micros) in bench.backend.time_steps(executable, batch, tokens).unwrap() {
        match sums.iter_mut().find(|(name, ..)| *name == kernel) {
            Some(sum) => {
                sum.1 += 1;
                sum.2 += micros;
            }
            None => sums.push((kernel, 1, micros)),
        }
    }
    sums.sort_by(|a, b| b.2.total_cmp(&a.2));
    let total: f64 = sums.iter().map(|sum| sum.2).sum();
    println!("  kernels at batch {batch}, one by one, {total:.0} us:");
    for (name, count, micros) in sums.iter().take(32) {
        println!("    {micros:8.0} us {count:4} x {name}");
    }
}
