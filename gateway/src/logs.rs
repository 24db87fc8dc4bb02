//! Log output. No line holds text, audio, tokens or secrets above debug level.

use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

use crate::config::LogConfig;

/// Reads a filter: a level, or `target=level` pairs with commas between.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(text).map_err(|error| format!("{text:?} is no filter: {error}"))
}

/// Replaces the filter of the running subscriber.
type SetFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;
static SET: OnceLock<SetFilter> = OnceLock::new();

/// Starts logging to standard error, once per process. The configuration's reading has refused a filter
/// that is none.
pub(crate) fn start(config: &LogConfig) {
    let filter = filter(&config.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    // A second start in one process keeps the first one's output.
    let first = if config.json {
        registry.with(lines.json()).try_init().is_ok()
    } else {
        registry.with(lines).try_init().is_ok()
    };
    if first {
        let _set = SET.set(Box::new(move |filter: EnvFilter| handle.reload(filter).is_ok()));
    }
}

/// Changes what is logged; a filter that cannot be read changes nothing.
pub(crate) fn set_filter(filter: &str) {
    let Some(set) = SET.get() else { return };
    match EnvFilter::try_new(filter) {
        Ok(filter) => drop(set(filter)),
        Err(error) => tracing::warn!(%error, "log.filter cannot be read; the old one stays"),
    }
}

/// Counts panics, and replaces their message by its place: a message may quote what a client sent.
pub(crate) fn hide_panic_payloads() {
    std::panic::set_hook(Box::new(|info| {
        crate::metrics::panicked();
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
        tracing::error!(place = place.as_deref().unwrap_or("unknown"), "panic; this is a bug");
    }));
}
