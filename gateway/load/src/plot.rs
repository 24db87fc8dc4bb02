//! Line charts as SVG: several systems in one picture.

use std::fmt::Write;

use crate::report::Report;

/// One system's line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    /// Upper end of the y axis, when the values alone should not choose it.
    pub y_max: Option<f64>,
    /// A dashed level.
    pub level: Option<f64>,
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
/// Height at which the lines' names stand, and room for a character of one.
const NAMES: f64 = 44.0;
const CHARACTER: f64 = 6.5;
/// Most steps of an axis.
const MARKS_MAX: f64 = 6.0;
const BOTTOM: f64 = 56.0;
/// Colours that differ for the colour-blind too (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// The three pictures of a report, by file name: attainment, first audio and goodput against rate.
#[must_use]
pub fn charts(report: &Report) -> Vec<(&'static str, Chart)> {
    let lines = |value: fn(&crate::report::Rate) -> Option<f64>| {
        let line = |target: &crate::report::TargetReport| Line {
            name: target.name.clone(),
            points: target.rates.iter().filter_map(|rate| Some((rate.rate, value(rate)?))).collect(),
        };
        report.targets.iter().map(line).collect::<Vec<_>>()
    };
    let chart = |title: &str, y_label: &str, y_max, level, lines| Chart {
        title: format!("{title} ({})", report.workload),
        x_label: "offered requests a second".to_owned(),
        y_label: y_label.to_owned(),
        y_max,
        level,
        lines,
    };
    vec![
        (
            "attainment.svg",
            chart(
                "First audio within 200 ms and no stall",
                "part of requests",
                Some(1.0),
                Some(0.9),
                lines(|rate| Some(rate.attained())),
            ),
        ),
        (
            "ttfa.svg",
            chart(
                "Time to first audio, 99th percentile",
                "ms",
                None,
                Some(200.0),
                lines(|rate| rate.ttfa_ms.p99),
            ),
        ),
        (
            "goodput.svg",
            chart(
                "Goodput",
                "requests/s in time and without stall",
                None,
                None,
                lines(|rate| Some(rate.goodput)),
            ),
        ),
    ]
}

impl Chart {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let (x_max, x_step) = axis(points().map(|(x, _)| x).fold(0.0, f64::max));
        let highest = points().map(|(_, y)| y).chain(self.level).fold(0.0, f64::max);
        let (y_max, y_step) = axis(self.y_max.unwrap_or(highest));
        let x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - (value / y_max).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM);
        let mut svg = String::new();
        // Writing into a string cannot fail.
        let _written = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            escaped(&self.title)
        );
        for yv in ticks(y_max, y_step) {
            let _written = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                WIDTH - RIGHT,
                y(yv),
                y(yv),
                LEFT - 6.0,
                y(yv) + 4.0,
                short(yv)
            );
        }
        for xv in ticks(x_max, x_step) {
            let _written = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(xv),
                HEIGHT - BOTTOM + 16.0,
                short(xv)
            );
        }
        let _written = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">{}</text>\n",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 12.0,
            escaped(&self.x_label),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escaped(&self.y_label)
        );
        if let Some(level) = self.level {
            let _written = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#888\" stroke-dasharray=\"5 4\"/>",
                WIDTH - RIGHT,
                y(level),
                y(level)
            );
        }
        let mut named = LEFT;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            // Of lines that fall together the earlier ones are seen around the later.
            let around = (self.lines.len() - index - 1).min(4) as f64;
            let path: Vec<String> =
                line.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
            let _written = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"/>",
                path.join(" "),
                2.0 + 2.0 * around
            );
            for (px, py) in &line.points {
                let _written = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{}\" fill=\"{colour}\"/>",
                    x(*px),
                    y(*py),
                    3.0 + 1.5 * around
                );
            }
            // Names stand above the picture, where no line runs.
            let _written = write!(
                svg,
                "<rect x=\"{named:.1}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                NAMES - 5.0,
                named + 16.0,
                NAMES,
                escaped(&line.name)
            );
            named += 36.0 + CHARACTER * line.name.chars().count() as f64;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// The end of an axis from 0 that holds `value`, and the step of its marks: 1, 2, 2.5 or 5 times a power of ten.
fn axis(value: f64) -> (f64, f64) {
    if !(value > 0.0 && value.is_finite()) {
        return (1.0, 0.2);
    }
    let least = value / MARKS_MAX;
    let scale = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * scale);
    let step = steps.into_iter().find(|step| *step >= least * 0.999_999).unwrap_or(10.0 * scale);
    ((value / step * 0.999_999).ceil() * step, step)
}

/// The marks of an axis.
fn ticks(end: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..=(end / step).round() as u32).map(move |mark| f64::from(mark) * step)
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text as XML takes it, which has no place for most control characters, escaped or not.
fn escaped(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
