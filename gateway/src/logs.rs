//! Log output. No line holds text, audio, tokens or secrets above debug level.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::MakeWriterExt;

use crate::config::LogConfig;

/// Reads a filter: a level, or `target=level` pairs with commas between.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(text).map_err(|error| format!("{text:?} is no filter: {error}"))
}

/// Starts logging to standard error, once per process. The configuration's reading has refused a filter
/// that is none.
pub(crate) fn start(config: &LogConfig) {
    let filter = filter(&config.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let writer = std::io::stderr.with_max_level(tracing::Level::TRACE);
    // A second start in one process keeps the first one's output.
    let _ = if config.json {
        builder.json().with_writer(writer).try_init().is_ok()
    } else {
        builder.with_ansi(false).with_writer(writer).try_init().is_ok()
    };
}

/// Counts panics, and replaces their message by its place: a message may quote what a client sent.
pub(crate) fn hide_panic_payloads() {
    std::panic::set_hook(Box::new(|info| {
        crate::metrics::panicked();
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
        tracing::error!(place = place.as_deref().unwrap_or("unknown"), "panic; this is a bug");
    }));
}
