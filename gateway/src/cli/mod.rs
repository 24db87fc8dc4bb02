//! The command line (DESIGN.md section 7). Exit codes: 0 done, 1 failed, 2 bad usage or config.

/// Prints a line to whoever listens: a pipe that was closed (`| head`) ends nothing.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::cli::put(format_args!("{}\n", format_args!($($words)*)))
    };
}

mod bench;
mod check;
mod inspect;
mod measuring;
pub(crate) mod profile;
mod pull;
mod serve;
mod simulate;
mod speak;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Layers, Resolved};
use crate::engine::Embedded;

/// A realtime voice gateway: text streams in, speech streams out.
#[derive(Debug, Parser)]
#[command(name = "voxlane", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure running servers: open loop, with a listener's ears
    Bench(bench::BenchFlags),
    /// Print the resolved configuration, where each value came from, and its hash
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// Say what a checkpoint holds, what it needs, and its licence
    Inspect {
        /// Folder of the checkpoint
        dir: PathBuf,
    },
    /// Rank what roles on several devices would carry
    Plan(simulate::PlanFlags),
    /// Measure every stage of a model on a device, for simulate and plan
    Profile(profile::ProfileFlags),
    /// Bring a checkpoint from a hub (HF_ENDPOINT, HF_TOKEN)
    Pull(pull::PullFlags),
    /// Serve the WebSocket, the HTTP endpoints and the page
    Serve(ServeFlags),
    /// Predict a benchmark's report from a profile, on virtual time
    Simulate(simulate::SimulateFlags),
    /// Speak a text into a file
    Speak(speak::SpeakFlags),
    /// Sign a token that lets somebody in
    Token(token::TokenFlags),
}

/// Flags of `serve`. Each sets one key of the configuration.
#[derive(Args, Clone, Debug, Default)]
struct ServeFlags {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Public address; any other than loopback needs keys [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Address of /livez, /readyz and /metrics [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<String>,
    /// Certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// Make a certificate at start, for phones in a lab
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Let requests set an exact number of frames, for measuring
    #[arg(long)]
    bench: bool,
    /// Parts to go without, with --bench: partition, urgent, async, deadlines, riders, ahead, device
    #[arg(long, value_name = "PART,...", requires = "bench")]
    without: Option<String>,
}

/// Flags that choose an engine.
#[derive(Args, Clone, Debug, Default)]
struct EngineFlags {
    /// Folder of the checkpoint, or a repository that was pulled [default: the embedded model]
    #[arg(long, value_name = "DIR|OWNER/NAME")]
    model: Option<String>,
    /// Processors, each with an engine of its own [default: auto]
    #[arg(long, value_name = "auto|cpu|cpu:0,1|cuda:0,cuda:1")]
    device: Option<String>,
    /// Published shapes with weights drawn from a seed, for measuring
    #[arg(long, value_name = "qwen3-tts-1.7b|qwen3-tts-0.6b")]
    random_weights: Option<String>,
    /// Which engine speaks: native, or scripted for a tone generator (scripted:FILE has it obey a script)
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Contexts that run at once on each device [default: 32]
    #[arg(long, value_name = "N")]
    max_contexts: Option<u32>,
}

/// How a command can fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
}

/// Runs the command line of this process. `embedded` is the model inside the binary, if it has one.
#[must_use]
pub fn main(embedded: Option<Embedded>) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing to do if the terminal is gone.
            drop(error.print());
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let outcome = match cli.command {
        Command::Bench(flags) => bench::run(&flags),
        Command::Check { file } => check::run(&file),
        Command::Inspect { dir } => inspect::run(&dir),
        Command::Plan(flags) => simulate::plan(&flags),
        Command::Profile(flags) => profile::run(&flags, embedded),
        Command::Pull(flags) => pull::run(&flags),
        Command::Serve(flags) => serve::run(&flags, embedded),
        Command::Simulate(flags) => simulate::run(&flags),
        Command::Speak(flags) => speak::run(&flags, embedded),
        Command::Token(flags) => token::run(&flags),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voxlane: {error}");
            match error {
                CommandError::Config(_) | CommandError::Usage(_) => ExitCode::from(2),
                CommandError::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

impl ServeFlags {
    fn resolve(&self) -> Result<(Resolved, Config), ConfigError> {
        let mut layers = layers(self.config.as_deref())?;
        layers = self.engine.apply(layers);
        let plain = [
            ("--listen", "server.listen", &self.listen),
            ("--admin", "server.admin", &self.admin),
            ("--tls-cert", "server.tls_cert", &self.tls_cert),
            ("--tls-key", "server.tls_key", &self.tls_key),
            ("--without", "engine.without", &self.without),
        ];
        for (flag, key, value) in plain {
            if let Some(value) = value {
                layers = layers.flag(flag, key, value.clone());
            }
        }
        if self.tls_self_signed {
            layers = layers.flag("--tls-self-signed", "server.tls_self_signed", "true".to_owned());
        }
        if self.bench {
            layers = layers.flag("--bench", "engine.bench", "true".to_owned());
        }
        let resolved = layers.resolve()?;
        let config = resolved.config()?;
        Ok((resolved, config))
    }
}

impl EngineFlags {
    fn apply(&self, mut layers: Layers) -> Layers {
        let flags = [
            ("--model", "engine.model", self.model.clone()),
            ("--device", "engine.device", self.device.clone()),
            ("--random-weights", "engine.random_weights", self.random_weights.clone()),
            ("--engine", "engine.kind", self.engine.clone()),
            ("--max-contexts", "engine.contexts_max", self.max_contexts.map(|n| n.to_string())),
        ];
        for (flag, key, value) in flags {
            if let Some(value) = value {
                layers = layers.flag(flag, key, value);
            }
        }
        layers
    }
}

/// File and environment, in that order.
fn layers(file: Option<&std::path::Path>) -> Result<Layers, ConfigError> {
    let layers = Layers::default().environment(
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    );
    match file {
        Some(file) => layers.file(file),
        None => Ok(layers),
    }
}

/// Prints `words`, if anybody listens.
pub(crate) fn put(words: std::fmt::Arguments<'_>) {
    drop(std::io::Write::write_fmt(&mut std::io::stdout(), words));
}
