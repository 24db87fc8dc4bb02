//! `voxlane profile`: measures a model's stages on a device and writes a profile file.

use std::path::PathBuf;

use clap::Args;
use codecs::opus::{OpusEncoder, OpusSettings};
use contract::{Partition, Span};
use load::sim::profile::{
    HostCost, Limits, Parts, ProfileFile, PromptShape, Sharing, StageCost, partition_name,
};
use load::sim::split::{Judgement, SplitCost, judge};
use load::workload::Workload;
use runtime::{Measured, OpenOptions, ProfileScope, Split};

use super::measuring::writable;
use super::{CommandError, EngineFlags, layers};
use crate::clock::Clock;
use crate::config::OpusConfig;
use crate::engine::Embedded;

/// Processor time of a packet beside its encoding: sending, and the generator's receiving.
const PACKET_BESIDE_US: f64 = 25.0;
/// Processor time of a request beside its packets.
const REQUEST_US: f64 = 2_500.0;
/// From a completion to the next launch's start, and from a chunk to its first packet at the listener.
const LAUNCH_US: f64 = 150.0;
const PATH_US: f64 = 1_500.0;
/// Cores that other work may keep busy before a profile says so.
const OTHERS_CORES: f64 = 0.2;
/// Packets encoded to find what one costs.
const PACKETS: u32 = 500;
const RATE_HZ: u32 = 24_000;

#[derive(Args, Debug)]
pub(super) struct ProfileFlags {
    /// File to write, as JSON
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Splits of the device to measure and choose from by simulated capacity: parts of the lm and the background lane
    #[arg(long, value_name = "LM/BACKGROUND,...", value_delimiter = ',')]
    splits: Vec<Split>,
    /// Draw the splits, step time against codec throughput
    #[arg(long, value_name = "FILE", requires = "splits")]
    svg: Option<PathBuf>,
    /// What is said when splits are compared: a workload's name or file
    #[arg(long, value_name = "NAME|FILE", default_value = "libritts")]
    workload: String,
    #[command(flatten)]
    engine: EngineFlags,
}

pub(super) fn run(flags: &ProfileFlags, embedded: Option<Embedded>) -> Result<(), CommandError> {
    let config = flags.engine.apply(layers(flags.config.as_deref())?).resolve()?.config()?;
    if config.engine.kind != crate::config::EngineKind::Native {
        let what = "a scripted engine has no stages to measure; leave --engine out";
        return Err(CommandError::Usage(what.to_owned()));
    }
    if crate::native::devices(&config.engine).map_err(CommandError::Failed)?.len() > 1 {
        let what = "a profile is of one device; name one with --device".to_owned();
        return Err(CommandError::Usage(what));
    }
    // Known before minutes of measuring, not after.
    [Some(&flags.out), flags.svg.as_ref()].into_iter().flatten().try_for_each(|file| writable(file))?;
    let clock = Clock::start();
    let options = crate::native::options(&config.engine, embedded, clock).map_err(CommandError::Failed)?;
    eprintln!("measuring every stage; other work on this machine spoils the figures");
    let workload = Workload::load(&flags.workload).map_err(|error| CommandError::Usage(error.to_string()))?;
    let packet_us = opus_packet_us(clock, config.opus)?;
    let (begun, before) = (clock.now(), others());
    let (mut file, judged) =
        measure(&options, &flags.splits, packet_us, &workload, &|| false).map_err(CommandError::Failed)?;
    if let Some(note) = disturbed(before, others(), clock.now().since(begun)) {
        eprintln!("{note}");
        file.guesses.push(note);
    }
    if let Some(judged) = &judged {
        say!("{}", judged.reason);
        if let Some(svg) = &flags.svg {
            let wrong = |error| CommandError::Failed(format!("cannot write {}: {error}", svg.display()));
            std::fs::write(svg, judged.chart().svg()).map_err(wrong)?;
        }
    }
    let text = serde_json::to_string_pretty(&file).map_err(|error| failed(flags, &error))?;
    // What is written must be what simulate reads.
    ProfileFile::parse(&file.name, &text).map_err(|error| failed(flags, &error))?;
    std::fs::write(&flags.out, text + "\n").map_err(|error| failed(flags, &error))?;
    say!("{}: {} stages written to {}", file.device, file.stages.len(), flags.out.display());
    Ok(())
}

/// Processor time that other processes have used.
fn others() -> Option<Span> {
    Some(load::clock::machine_time()? - load::clock::processor_time()?)
}

/// What to say of a profile that was measured beside other work.
fn disturbed(before: Option<Span>, after: Option<Span>, wall: Span) -> Option<String> {
    let cores = micros(after? - before?) / micros(wall).max(1.0);
    (cores > OTHERS_CORES).then(|| {
        format!("everything: other work kept {cores:.1} cores busy while it was measured, so that stages took too long")
    })
}

/// Measures the device, under each of these splits if any are named, and chooses one of them. `enough` ends the
/// measuring of further ones.
///
/// # Errors
/// What cannot be opened, measured or simulated.
pub(crate) fn measure(
    options: &OpenOptions,
    splits: &[Split],
    packet_us: f64,
    workload: &Workload,
    enough: &dyn Fn() -> bool,
) -> Result<(ProfileFile, Option<Judgement>), String> {
    let once = |split, scope| {
        let measured = runtime::profile(OpenOptions { split, ..options.clone() }, scope);
        measured.map(|measured| profile(&measured, packet_us)).map_err(|error| error.to_string())
    };
    let Some((first, others)) = splits.split_first() else {
        return Ok((once(None, ProfileScope::All)?, None));
    };
    let mut file = once(Some(*first), ProfileScope::All)?;
    // Each says how many cores its lanes have.
    let mut devices = vec![file.device.clone()];
    file.splits.push(cost(&file));
    for split in others {
        if enough() {
            break;
        }
        let measured = once(Some(*split), ProfileScope::Partitions)?;
        let other = cost(&measured);
        // A device rounds what it is asked for.
        if file.splits.iter().all(|known| (known.lm, known.background) != (other.lm, other.background)) {
            file.splits.push(other);
            devices.push(measured.device);
        }
    }
    let judged = judge(&file, workload).map_err(|error| error.to_string())?;
    let chosen = ProfileFile { choice: Some(judged.choice()), ..file.under(&file.splits[judged.chosen]) };
    let device = devices.swap_remove(judged.chosen);
    Ok((ProfileFile { device, splits: file.splits, ..chosen }, Some(judged)))
}

/// What of a profile depends on the split.
fn cost(file: &ProfileFile) -> SplitCost {
    let whole = partition_name(Partition::Whole);
    let stages = file.stages.iter().filter(|cost| cost.partition != whole).cloned().collect();
    let Parts { lm, background, .. } = file.parts;
    SplitCost { lm, background, stages, sharing: file.sharing.clone() }
}

fn failed(flags: &ProfileFlags, error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Failed(format!("cannot write {}: {error}", flags.out.display()))
}

fn profile(measured: &Measured, packet_us: f64) -> ProfileFile {
    let host = load::clock::host();
    let part = |thousandths: u32| f64::from(thousandths) / 1_000.0;
    let sharing = &measured.sharing;
    let [whole, lm, background] = measured.parts;
    let config = &measured.config;
    ProfileFile {
        name: measured.model.clone(),
        device: format!("{}; a host of {} cores ({})", measured.device, host.cores, host.cpu),
        guesses: guesses(),
        frame_ms: measured.frame.as_micros() as f64 / 1_000.0,
        rows_per_context: measured.rows_per_context,
        look_ahead: measured.look_ahead,
        state_grows: measured.state_grows,
        live_rows: measured.live_rows,
        decode_buckets: measured.decode_buckets.clone(),
        codec_buckets: measured.codec_buckets.clone(),
        codec_lengths: measured.codec_lengths.clone(),
        stages: measured
            .stages
            .iter()
            .map(|stage| StageCost {
                stage: stage.stage.name().to_owned(),
                partition: partition_name(stage.partition).to_owned(),
                rows: stage.rows.clone(),
                lengths: stage.lengths.clone(),
                micros: stage.micros.clone(),
            })
            .collect(),
        splits: Vec::new(),
        choice: None,
        parts: Parts {
            unit: if measured.live_rows { "core" } else { "SM" }.to_owned(),
            whole,
            lm,
            background,
        },
        sharing: Sharing {
            // On a CPU lanes yield between operations while urgent work runs; SMs are shared by priority.
            beside_urgent: if measured.live_rows { 0.0 } else { part(sharing.lm_beside_urgent.max(1)) },
            lm_beside_background: part(sharing.lm_beside_background),
            background_beside_lm: part(sharing.background_beside_lm),
            whole_beside_background: part(sharing.lm_beside_background),
            background_beside_whole: part(sharing.background_beside_lm),
            urgent_beside_lanes: part(sharing.urgent_beside_lanes.max(1)),
        },
        host: HostCost {
            // A GPU's lanes do not run where the host works.
            cores: if measured.live_rows { host.cores } else { 0 },
            packet_us: packet_us + PACKET_BESIDE_US,
            request_us: REQUEST_US,
            launch_us: LAUNCH_US,
            path_us: PATH_US,
            spread: 0.05,
        },
        prompt: PromptShape {
            positions: measured.prompt_positions,
            ids_per_word: measured.ids_per_word,
            onset_ms: 0.0,
        },
        limits: Limits {
            slots: Some(config.slots),
            open_max: Some(config.open_max),
            pages: Some(config.pages),
            page_positions: Some(config.page_positions),
            background_batch: Some(config.background_batch),
            lm_depth: Some(config.lm_depth),
            lm_ahead_us: (config.lm_depth > 1)
                .then(|| u32::try_from(config.lm_ahead.as_micros()).ok())
                .flatten(),
            prefill_rows_max: Some(config.prefill_rows_max),
            ride_rows_max: (config.ride_rows_max > 0).then_some(config.ride_rows_max),
            ride_tokens_max: (config.ride_rows_max > 0).then_some(config.ride_tokens_max),
            prefill_tokens_max: Some(config.prefill_tokens_max),
            first_audio_limit_ms: u32::try_from(config.first_audio_limit.as_millis()).ok(),
            steps_between_prefills: (config.steps_between_prefills > 0)
                .then_some(config.steps_between_prefills),
        },
    }
}

/// What nobody measured.
fn guesses() -> Vec<String> {
    let host = format!(
        "host: {PACKET_BESIDE_US} us a packet beside its encoding, {REQUEST_US} us a request, \
         {LAUNCH_US} us between launches and {PATH_US} us from a chunk to the listener"
    );
    vec![host]
}

/// Processor time of encoding one 20 ms packet of something like a voice.
fn opus_packet_us(clock: Clock, opus: OpusConfig) -> Result<f64, CommandError> {
    let broken = |error: codecs::CodecError| CommandError::Failed(format!("cannot measure Opus: {error}"));
    let settings = OpusSettings {
        bitrate_bps: opus.bitrate_bps,
        complexity: opus.complexity,
        rate_hz: RATE_HZ,
        ..OpusSettings::default()
    };
    let mut encoder = OpusEncoder::new(settings).map_err(broken)?;
    // A buzz of 120 Hz with a wandering overtone: enough to keep every part of the coder busy.
    let samples: Vec<f32> = (0..RATE_HZ / 50 * PACKETS)
        .map(|n| {
            let t = n as f32 / RATE_HZ as f32;
            let buzz = (t * 120.0).fract() - 0.5;
            let wander = (t * (900.0 + 300.0 * (t * 3.0).sin()) * std::f32::consts::TAU).sin();
            0.3 * buzz + 0.1 * wander
        })
        .collect();
    let mut least = f64::MAX;
    for second in samples.chunks(RATE_HZ as usize) {
        let begun = clock.now();
        for piece in second.chunks(RATE_HZ as usize / 50) {
            let _packets = encoder.push(piece).map_err(broken)?;
        }
        // The quickest counts, as of stages: whatever disturbs only makes it longer.
        least = least.min(micros(clock.now().since(begun)) / 50.0);
    }
    Ok(least)
}

fn micros(span: Span) -> f64 {
    span.as_micros() as f64
}
