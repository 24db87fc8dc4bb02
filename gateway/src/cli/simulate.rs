//! `voxlane simulate` and `voxlane plan`: what a profiled device would carry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use load::sim::{Decided, ProfileFile, Scene, Variant};
use load::workload::Workload;
use serde_json::json;

use super::CommandError;
use super::measuring::{MeasureFlags, interrupted, tell, usage, writable};

#[derive(Args, Debug)]
pub(super) struct SimulateFlags {
    /// h100-published, or a file: written by voxlane profile, or one of config/profiles
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// A system to simulate, with settings changed: reports=off, urgent=off, partition=off, async=off, policy=prefill-first,
    /// background_batch=1, urgent_margin_ms=50... [default: the profile's own settings]
    #[arg(long = "variant", value_name = "NAME:KEY=VALUE,...")]
    variants: Vec<String>,
    #[command(flatten)]
    measure: MeasureFlags,
    /// Fix each request's number of frames, as bench --exact-frames does
    #[arg(long)]
    exact_frames: bool,
    /// Write which rule made how many launches, and the scheduler's counters, as JSON
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
}

pub(super) fn run(flags: &SimulateFlags) -> Result<(), CommandError> {
    let profile = ProfileFile::load(&flags.profile).map_err(|error| usage(&error))?;
    let mut variants = Vec::new();
    for text in &flags.variants {
        let variant = Variant::parse(text).map_err(|error| usage(&error))?;
        if variants.iter().any(|other: &Variant| other.name == variant.name) {
            return Err(CommandError::Usage(format!("two variants are called {}", variant.name)));
        }
        variants.push(variant);
    }
    if variants.is_empty() {
        variants.push(Variant::plain(&profile.name));
    }
    for variant in &mut variants {
        variant.exact_frames = flags.exact_frames;
        variant.config(&profile).validate().map_err(|error| usage(&error))?;
    }
    let (workload, moods) = (flags.measure.workload()?, flags.measure.moods()?);
    let measure = &flags.measure;
    let scene = Scene { profile: &profile, workload: &workload, moods: &moods, seeds: measure.seeds() };
    let rates = measure.rates()?;
    measure.writable()?;
    flags.decisions.as_deref().map_or(Ok(()), writable)?;
    let progress = |line: String| tell(&line);
    let cut = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&cut);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime =
        runtime.map_err(|error| CommandError::Failed(format!("cannot listen for Ctrl-C: {error}")))?;
    runtime.spawn(interrupted(move || told.store(true, Ordering::Relaxed)));
    let simulated = load::sim::run(&scene, &variants, rates, measure.window, &progress, &cut);
    runtime.shutdown_background();
    let simulated = simulated.map_err(|error| usage(&error))?;
    measure.publish(&simulated.report)?;
    if let Some(file) = &flags.decisions {
        let text = format!("{:#}\n", log(&simulated.decided));
        std::fs::write(file, text)
            .map_err(|error| CommandError::Failed(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(())
}

fn log(decided: &BTreeMap<String, Vec<(f64, Decided)>>) -> serde_json::Value {
    let of_rate = |(rate, decided): &(f64, Decided)| {
        let count = |of| decided.count(of);
        json!({
            "rate": rate,
            "launches_by_reason": decided.reasons,
            "promotions": count(|it| it.promotions),
            "inversions_averted": count(|it| it.inversions_averted),
            "batches_cut": count(|it| it.batches_cut),
            "chunks_cut": count(|it| it.chunks_cut),
            "chunks_late": count(|it| it.chunks_late),
            "deferrals": count(|it| it.deferrals),
            "deferrals_to_cap": count(|it| it.deferrals_to_cap),
            "ladder_changes": count(|it| it.ladder_changes),
            "policy_switches": count(|it| it.policy_switches),
            "yields": count(|it| it.yields),
            "slot_exhaustions": count(|it| it.slot_exhaustions),
            "page_waits": count(|it| it.page_waits),
        })
    };
    let of_variant = |rates: &Vec<_>| rates.iter().map(of_rate).collect::<Vec<_>>();
    json!(decided.iter().map(|(name, rates)| (name.clone(), of_variant(rates))).collect::<BTreeMap<_, _>>())
}

#[derive(Args, Debug)]
pub(super) struct PlanFlags {
    /// h100-published, or a file: written by voxlane profile, or one of config/profiles
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// Devices to place roles on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    devices: u32,
    /// What is said: a workload (agent-turns, libritts, read-out, seed-tts) or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "libritts")]
    workload: String,
    /// Write the ranking as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Most layouts printed.
const PRINTED: usize = 12;

pub(super) fn plan(flags: &PlanFlags) -> Result<(), CommandError> {
    let profile = ProfileFile::load(&flags.profile).map_err(|error| usage(&error))?;
    let workload = Workload::load(&flags.workload).map_err(|error| usage(&error))?;
    flags.json.as_deref().map_or(Ok(()), writable)?;
    let layouts = load::sim::plan::rank(&profile, flags.devices, &workload).map_err(|error| usage(&error))?;
    say!("{:>8} {:>8} {:>5} {:>9} {:>11}  limit", "combined", "backbone", "codec", "contexts", "requests/s");
    for layout in layouts.iter().take(PRINTED) {
        say!(
            "{:>8} {:>8} {:>5} {:>9} {:>11}  {}{}",
            layout.combined,
            layout.backbone,
            layout.codec,
            layout.contexts,
            layout.requests_per_s,
            layout.limit,
            if layout.guessed { " (decode on the whole device was not measured)" } else { "" },
        );
    }
    for guess in &profile.guesses {
        say!("guessed in the profile: {guess}");
    }
    if let Some(file) = &flags.json {
        let text = format!("{:#}\n", json!(layouts));
        std::fs::write(file, text)
            .map_err(|error| CommandError::Failed(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(())
}
