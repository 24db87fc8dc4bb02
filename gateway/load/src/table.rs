//! A report as text for a terminal.

use std::fmt::Write;

use crate::report::{Rate, Report, TargetReport};

/// The whole report.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _written = writeln!(
        out,
        "workload {}, {} {}, {} cores ({})",
        report.workload,
        report.seeds,
        if report.seeds == 1 { "seed" } else { "seeds" },
        report.host.cores,
        report.host.cpu
    );
    for target in &report.targets {
        let _written = writeln!(
            out,
            "\n{}\n{:>8} {:>8} {:>9} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}",
            target.name,
            "rate/s",
            "offered",
            "completed",
            "refused",
            "failed",
            "TTFA p50",
            "p90",
            "p99",
            "no stall",
            "200 ms",
            "1000 ms",
            "goodput",
            "audio/s"
        );
        for rate in &target.rates {
            let _written = writeln!(out, "{}", row(rate));
        }
        if target.rates.is_empty() {
            let _written = writeln!(out, "nothing was measured");
        }
        let lowest = target.rates.iter().find(|rate| !rate.cut_short).map(|rate| rate.rate);
        let said = |rate: &Option<f64>| match (rate, lowest) {
            (Some(rate), _) if held_all(target, *rate) => format!("at least {rate}"),
            (Some(rate), _) => rate.to_string(),
            (None, Some(lowest)) => format!("below {lowest}"),
            (None, None) => "unknown".to_owned(),
        };
        let capacity: Vec<String> =
            target.capacity.iter().map(|(percent, rate)| format!("{} at {percent}%", said(rate))).collect();
        if !target.rates.is_empty() {
            let _written = writeln!(out, "capacity (requests/s): {}", capacity.join(", "));
        }
    }
    if let [first, second] = report.targets.as_slice() {
        for (percent, rate) in &first.capacity {
            let other = second.capacity.get(percent).copied().flatten().filter(|other| *other > 0.0);
            let Some((rate, other)) = rate.zip(other) else { continue };
            let (bound, note) = match (held_all(first, rate), held_all(second, other)) {
                (true, true) => ("", ", as far as was measured: neither reached its limit"),
                (true, false) => ("at least ", ""),
                (false, true) => ("at most ", ""),
                (false, false) => ("", ""),
            };
            let ratio = rate / other;
            let _written = writeln!(
                out,
                "\nratio at {percent}%: {} carries {bound}{ratio:.2} times what {} does{note}",
                first.name, second.name
            );
        }
    }
    for note in &report.notes {
        let _written = writeln!(out, "\nnote: {note}");
    }
    out
}

/// Whether a capacity is the highest rate measured, so that the true one may be higher.
fn held_all(target: &TargetReport, capacity: f64) -> bool {
    target.rates.iter().rfind(|rate| !rate.cut_short).is_some_and(|highest| highest.rate <= capacity)
}

fn row(rate: &Rate) -> String {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    format!(
        "{:>8} {:>8} {:>9} {:>7} {:>6} {:>9} {:>9} {:>9} {:>8.1}% {:>7.1}% {:>7.1}% {:>8.2} {:>8.1}",
        rate.rate,
        rate.offered,
        rate.completed,
        rate.refused_by.values().sum::<u64>(),
        rate.failed,
        ms(rate.ttfa_ms.p50),
        ms(rate.ttfa_ms.p90),
        ms(rate.ttfa_ms.p99),
        rate.no_stall * 100.0,
        rate.attained() * 100.0,
        rate.attainment.get("1000").copied().unwrap_or(0.0) * 100.0,
        rate.goodput,
        rate.audio_s_per_s,
    )
}
