//! `voxlane bench`: an open-loop benchmark of any server that speaks, with a listener's ears.

use clap::Args;
use load::bench::Witness;
use load::open_loop::{PATIENCE, Settings};
use load::report::Report;
use load::target::Target;
use tokio::sync::watch;

use super::CommandError;
use super::measuring::{MeasureFlags, interrupted, tell, usage};

#[derive(Args, Debug)]
pub(super) struct BenchFlags {
    /// A system: NAME=ADAPTER,URL with an adapter of native, native+pcm, speech, speech+wav, vllm-omni, sglang-omni, nari,
    /// realtime; native and nari take +ids=N for text as a language model writes it. Several take turns, rate by rate
    #[arg(long = "target", value_name = "NAME=ADAPTER,URL", required = true)]
    targets: Vec<String>,
    #[command(flatten)]
    measure: MeasureFlags,
    /// Bearer token
    #[arg(long, value_name = "T")]
    token: Option<String>,
    /// Fix each request's number of frames by its length in the workload, for random weights; the
    /// server must run with --bench. The value is a frame's length
    #[arg(long, value_name = "MS", num_args = 0..=1, default_missing_value = "80")]
    exact_frames: Option<f64>,
}

pub(super) fn run(flags: &BenchFlags) -> Result<(), CommandError> {
    let targets: Result<Vec<Target>, _> = flags.targets.iter().map(|text| Target::parse(text)).collect();
    let targets = targets.map_err(|error| usage(&error))?;
    for (index, target) in targets.iter().enumerate() {
        if targets[..index].iter().any(|other| other.name == target.name) {
            return Err(CommandError::Usage(format!("two targets are called {}", target.name)));
        }
    }
    if flags.exact_frames.is_some_and(|ms| !(1.0..=1_000.0).contains(&ms)) {
        return Err(CommandError::Usage("--exact-frames takes a frame's length, 1 to 1000 ms".to_owned()));
    }
    if let Some(target) = targets.iter().find(|it| flags.exact_frames.is_some() && !it.adapter.fixes_frames())
    {
        let what =
            "its protocol cannot fix a request's frames: --exact-frames takes native and speech targets";
        return Err(CommandError::Usage(format!("target {}: {what}", target.name)));
    }
    let rates = flags.measure.rates()?;
    flags.measure.writable()?;
    let settings = Settings {
        workload: flags.measure.workload()?,
        moods: flags.measure.moods()?,
        seeds: flags.measure.seeds(),
        token: flags.token.clone(),
        exact_frame_ms: flags.exact_frames,
        patience: PATIENCE,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::Failed(format!("cannot start the async runtime: {error}")))?;
    let run = runtime.block_on(async {
        let (cut, is_cut) = watch::channel(false);
        // The run may be over already.
        tokio::spawn(interrupted(move || _ = cut.send_replace(true)));
        let progress = |line: String| tell(&line);
        let so_far = |report: &Report| flags.measure.keep(report);
        let witness = Witness { progress: &progress, so_far: &so_far, cut: is_cut };
        load::bench::run(targets, settings, rates, flags.measure.window, witness).await
    });
    runtime.shutdown_background();
    let published = flags.measure.publish(&run.report);
    match (run.error, published) {
        (Some(error), Err(other)) => Err(CommandError::Failed(format!("{error}; {other}"))),
        (Some(error), Ok(())) => Err(CommandError::Failed(error)),
        (None, published) => published,
    }
}
