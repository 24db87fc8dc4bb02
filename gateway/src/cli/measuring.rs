//! What `bench` and `simulate` have in common: rates, windows, workloads, and where a report goes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use contract::Span;
use load::mood::Moods;
use load::rates::Rates;
use load::report::Report;
use load::workload::Workload;

use super::CommandError;

#[derive(Args, Clone, Debug)]
pub(super) struct MeasureFlags {
    /// A workload (agent-turns, libritts, read-out, seed-tts) or a file of one {"text", "seconds"} a line
    #[arg(long, value_name = "NAME|FILE")]
    workload: String,
    /// Rates to offer, in requests a second: one, or from START by STEP to STOP
    #[arg(
        long,
        value_name = "RATE|START:STEP:STOP",
        required_unless_present = "search",
        conflicts_with = "search"
    )]
    rate: Option<String>,
    /// Find capacity between two rates: bisect by short windows, then confirm by full ones
    #[arg(long, value_name = "LO:HI")]
    search: Option<String>,
    /// Time that each rate is offered for
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub(super) window: Span,
    /// Schedules drawn and pooled for each rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: u32,
    /// The first of these schedules' seeds
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    first_seed: u32,
    /// Part of the listeners that behave like this, of jitter, slow-start, paused, barge-in, no-reports, lying; may be given
    /// several times. The rest are steady
    #[arg(long = "mood", value_name = "NAME=SHARE")]
    moods: Vec<String>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw attainment, first audio and goodput against rate: three pictures in this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

impl MeasureFlags {
    pub(super) fn workload(&self) -> Result<Arc<Workload>, CommandError> {
        Workload::load(&self.workload).map(Arc::new).map_err(|error| usage(&error))
    }

    pub(super) fn rates(&self) -> Result<Rates, CommandError> {
        match (&self.rate, &self.search) {
            (Some(rate), _) => Rates::sweep(rate),
            (None, Some(search)) => Rates::search(search),
            (None, None) => Rates::sweep(""),
        }
        .and_then(|rates| rates.check(self.window))
        .map_err(|error| usage(&error))
    }

    pub(super) fn seeds(&self) -> std::ops::Range<u32> {
        self.first_seed..self.first_seed + self.seeds
    }

    pub(super) fn moods(&self) -> Result<Moods, CommandError> {
        Moods::parse(&self.moods).map_err(|error| usage(&error))
    }

    /// Whether the files asked for can be written, found out before anything is measured.
    pub(super) fn writable(&self) -> Result<(), CommandError> {
        self.json.as_deref().map_or(Ok(()), writable)?;
        if let Some(folder) = &self.svg {
            std::fs::create_dir_all(folder).map_err(|error| usage(&unwritable(folder, &error)))?;
            let charts = load::plot::charts(&Report::default());
            charts.iter().try_for_each(|(name, _)| writable(&folder.join(name)))?;
        }
        Ok(())
    }

    /// Writes the report so far, if it is to be written; whether that can be done is said at the end.
    pub(super) fn keep(&self, report: &Report) {
        if let Some(file) = &self.json {
            drop(replace(file, &json(report)));
        }
    }

    /// Prints the report and writes the files asked for. A report that cannot be written is printed whole: hours
    /// may be in it.
    pub(super) fn publish(&self, report: &Report) -> Result<(), CommandError> {
        if report.targets.iter().any(|target| !target.rates.is_empty()) || !report.notes.is_empty() {
            say(&load::table::text(report));
        }
        let written = match &self.json {
            Some(file) => write(file, &json(report)).map_err(|error| {
                say(&json(report));
                failed(file, &error)
            }),
            None => Ok(()),
        };
        let drawn = self.svg.as_ref().map_or(Ok(()), |folder| draw(folder, report));
        written.and(drawn)
    }
}

/// Has a run ended with what it has at the first Ctrl-C, by `cut`; a second one ends the process at once. Never ends itself.
pub(super) async fn interrupted(cut: impl Fn()) {
    if tokio::signal::ctrl_c().await.is_ok() {
        cut();
        drop(tokio::signal::ctrl_c().await);
        std::process::exit(1);
    }
    std::future::pending::<()>().await;
}

/// Whether a file can be written, found out before anything is measured.
pub(super) fn writable(file: &Path) -> Result<(), CommandError> {
    // A pipe that were opened and closed here would have ended for its reader.
    if file.exists() && !file.is_file() && !file.is_dir() {
        return Ok(());
    }
    let opened = File::options().append(true).create(true).open(file);
    opened.map(drop).map_err(|error| usage(&unwritable(file, &error)))
}

/// Puts `text` in the place of a file at once: what ends the process meanwhile leaves the file of before. Terminals,
/// pipes and the like get the whole report when it is whole.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    if file.exists() && !file.is_file() {
        return Ok(());
    }
    // A link keeps pointing where it does.
    let file = &std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut beside = file.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}

/// The same, to whatever `file` is.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    // A folder that takes no second file may still let this one be written.
    if file.is_file() && replace(file, text).is_ok() { Ok(()) } else { std::fs::write(file, text) }
}

fn json(report: &Report) -> String {
    // Strings, numbers and maps by string: nothing in it can fail to be written.
    serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
}

fn draw(folder: &Path, report: &Report) -> Result<(), CommandError> {
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    for (name, chart) in load::plot::charts(report) {
        let file = folder.join(name);
        std::fs::write(&file, chart.svg()).map_err(|error| failed(&file, &error))?;
    }
    Ok(())
}

/// Prints to whoever listens: a pipe that was closed does not end a run.
fn say(text: &str) {
    drop(std::io::stdout().write_all(text.as_bytes()));
}

/// As [`say`], a line of progress.
pub(super) fn tell(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

pub(super) fn usage(error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Usage(error.to_string())
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Failed(unwritable(path, error))
}

fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// `500ms`, `60s`, `2m`, or seconds.
fn time(text: &str) -> Result<Span, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().map_err(|_| "give a time as 60s".to_owned())?;
    let millis = match unit {
        "ms" => number,
        "s" | "" => number * 1e3,
        "m" => number * 60e3,
        _ => return Err("units are ms, s and m".to_owned()),
    };
    if !(100.0..=86_400_000.0).contains(&millis) {
        return Err("must be from 100ms to a day".to_owned());
    }
    Ok(Span::from_millis(millis as i64))
}
