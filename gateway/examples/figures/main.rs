//! Measures a running server and prints one JSON object.
//!
//! ```text
//! voxlane serve &
//! cargo run --release -p gateway --example figures -- --pid $! alone concurrent throughput
//! voxlane serve --engine scripted &
//! cargo run --release -p gateway --example figures -- --pid $! share
//! voxlane serve --engine scripted --config WITH_KEYS &
//! cargo run --release -p gateway --example figures -- --pid $! --token TOKEN share idle
//! ```
//!
//! The client runs on the same machine and takes its part of the processor: the figures include it.

mod idle;
mod measure;
mod server;
mod voices;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::{Map, Value, json};

use server::Server;

/// Measure a running Voxlane server.
#[derive(Debug, Parser)]
struct Flags {
    /// What to measure, in this order
    #[arg(value_enum, required = true)]
    what: Vec<What>,
    /// Public address of the server
    #[arg(long, default_value = "127.0.0.1:8080")]
    server: String,
    /// Its admin address
    #[arg(long, default_value = "127.0.0.1:9464")]
    admin: String,
    /// Its process id, for resident memory
    #[arg(long)]
    pid: Option<u32>,
    /// Token of a server that has keys
    #[arg(long)]
    token: Option<String>,
    /// Sessions of `idle`
    #[arg(long, default_value_t = 5_000)]
    sockets: usize,
    /// Clips of `voices`, for each way of cloning
    #[arg(long, default_value_t = 10)]
    clips: usize,
    /// Utterances of `alone`
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// Real-time streams of `concurrent`; several give one result each
    #[arg(long, value_delimiter = ',', default_value = "12")]
    streams: Vec<usize>,
    /// Seconds of `concurrent`, `throughput` and `share`
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Contexts of `throughput`
    #[arg(long, default_value_t = 8)]
    contexts: usize,
    /// Sessions of `share`
    #[arg(long, default_value_t = 200)]
    sessions: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// First audio of one stream on an idle server
    Alone,
    /// Real-time streams at once, and the pauses of their listeners
    Concurrent,
    /// Audio seconds made in a second, taken as fast as they come
    Throughput,
    /// The gateway's own share of first audio, on a scripted engine
    Share,
    /// Memory of a session that does nothing
    Idle,
    /// Clips encoded in a second, and what one costs that is kept
    Voices,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(run(&flags)) {
        Ok(figures) => {
            println!("{figures:#}");
            ExitCode::SUCCESS
        }
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("figures: {error}");
    ExitCode::FAILURE
}

async fn run(flags: &Flags) -> Result<Value, measure::Failure> {
    let server = Server::new(&flags.server, &flags.admin, flags.pid, flags.token.as_deref());
    let duration = Duration::from_secs(flags.seconds);
    let mut figures = Map::new();
    for what in &flags.what {
        let before = server.counters().await?;
        let (name, mut figure) = match what {
            What::Alone => ("alone", measure::alone(&server, flags.runs).await?),
            What::Concurrent => {
                let mut results = Vec::new();
                for streams in &flags.streams {
                    results.push(measure::concurrent(&server, *streams, duration).await?);
                }
                ("concurrent", json!({ "results": results }))
            }
            What::Throughput => ("throughput", measure::throughput(&server, flags.contexts, duration).await?),
            What::Idle => ("idle", idle::idle(&server, flags.sockets).await?),
            What::Voices => ("voices", voices::voices(&server, flags.clips).await?),
            What::Share => ("share", measure::share(&server, flags.sessions, duration).await?),
        };
        figure["opus"] = server.counters().await?.opus_since(&before);
        figure["resident_mib"] = json!(server.resident_mib());
        figures.insert(name.to_owned(), figure);
    }
    Ok(Value::Object(figures))
}
