//! What a stage costs on this device: measured tables, interpolated, and corrected while running.

use contract::{Partition, Span, Stage};

use crate::ConfigError;

/// Measured costs and captured shapes of one model on one device. No model is named.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Playing time of one frame.
    pub frame_span: Span,
    /// Rows of the captured decode executables, ascending.
    pub decode_buckets: Vec<u32>,
    /// Rows of the captured codec executables, ascending.
    pub codec_buckets: Vec<u32>,
    /// Frames of the captured codec executables, ascending; the last is the steady chunk length.
    pub codec_lengths: Vec<u32>,
    /// Frames the codec must see beyond a chunk before it can make it.
    pub look_ahead: u32,
    /// Rows of the backbone one context takes (2 with classifier-free guidance).
    pub rows_per_context: u32,
    /// The codec's state grows with the context's length, so a context never yields its decode turn.
    pub state_grows: bool,
    costs: Vec<StageCost>,
}

/// Cost in microseconds over a grid of rows and lengths, both ascending. Between points it is linear;
/// beyond the last point it grows with the last slope; below the first it stays flat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostTable {
    rows: Vec<u32>,
    lengths: Vec<u32>,
    /// `micros[r * lengths.len() + l]`.
    micros: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
struct StageCost {
    stage: Stage,
    partition: Partition,
    table: CostTable,
    /// Measured over predicted, in millionths, smoothed.
    correction_ppm: i64,
}

const ONE_PPM: i64 = 1_000_000;
/// Weight of the newest measurement is one part in this.
const SMOOTHING: i64 = 8;

impl Profile {
    /// A profile without costs: add them with [`Profile::with_cost`].
    #[must_use]
    pub fn new(
        frame_span: Span,
        decode_buckets: Vec<u32>,
        codec_buckets: Vec<u32>,
        codec_lengths: Vec<u32>,
    ) -> Self {
        Self {
            frame_span,
            decode_buckets,
            codec_buckets,
            codec_lengths,
            look_ahead: 0,
            rows_per_context: 1,
            state_grows: false,
            costs: Vec::new(),
        }
    }

    /// Sets the cost of `stage` on `partition`. Lengths are: `Codec` frames a row, `Decode` positions
    /// of the longest row, `Encode` samples, `Prefill` prompt positions in all.
    #[must_use]
    pub fn with_cost(mut self, stage: Stage, partition: Partition, table: CostTable) -> Self {
        self.costs.retain(|cost| (cost.stage, cost.partition) != (stage, partition));
        self.costs.push(StageCost { stage, partition, table, correction_ppm: ONE_PPM });
        self
    }

    /// Predicted running time. A partition that was not measured costs what another partition of the
    /// same stage does; a stage never measured costs nothing.
    #[must_use]
    pub fn cost(&self, stage: Stage, partition: Partition, rows: u32, length: u32) -> Span {
        let Some(cost) = self.find(stage, partition) else { return Span::ZERO };
        let micros = cost.table.at(rows, length);
        corrected(micros, cost.correction_ppm)
    }

    /// As [`Profile::cost`] before any launch was measured, in microseconds.
    pub(crate) fn uncorrected(&self, stage: Stage, partition: Partition, rows: u32, length: u32) -> i64 {
        self.find(stage, partition).map_or(0, |cost| cost.table.at(rows, length))
    }

    /// What launches have since shown such a stage to take, in millionths of that.
    pub(crate) fn correction_ppm(&self, stage: Stage, partition: Partition) -> i64 {
        self.find(stage, partition).map_or(ONE_PPM, |cost| cost.correction_ppm)
    }

    /// Corrects the profile by one measured launch, smoothed and within a factor of 8 either way.
    pub fn observe(&mut self, stage: Stage, partition: Partition, rows: u32, length: u32, took: Span) {
        if took <= Span::ZERO {
            return;
        }
        let Some(index) =
            self.costs.iter().position(|cost| cost.stage == stage && cost.partition == partition)
        else {
            return;
        };
        let cost = &mut self.costs[index];
        let predicted = cost.table.at(rows, length).max(1);
        let measured = took.as_micros().saturating_mul(ONE_PPM) / predicted;
        let measured = measured.clamp(ONE_PPM / 8, ONE_PPM * 8);
        cost.correction_ppm += (measured - cost.correction_ppm) / SMOOTHING;
    }

    /// The longest captured chunk: what chunks are once the ladder has been climbed.
    #[must_use]
    pub fn steady_length(&self) -> u32 {
        self.codec_lengths.last().copied().unwrap_or(1)
    }

    /// The shortest captured chunk: what a first chunk is at least.
    #[must_use]
    pub fn shortest_length(&self) -> u32 {
        self.codec_lengths.first().copied().unwrap_or(1)
    }

    /// Contexts the largest decode executable holds.
    #[must_use]
    pub fn decode_contexts_max(&self) -> u32 {
        self.decode_buckets.last().copied().unwrap_or(1) / self.rows_per_context.max(1)
    }

    #[must_use]
    pub fn codec_rows_max(&self) -> u32 {
        self.codec_buckets.last().copied().unwrap_or(1)
    }

    /// Smallest captured decode executable for this many contexts, in rows.
    #[must_use]
    pub fn decode_bucket(&self, contexts: u32) -> u32 {
        smallest_holding(&self.decode_buckets, contexts.saturating_mul(self.rows_per_context))
    }

    #[must_use]
    pub fn codec_bucket(&self, rows: u32) -> u32 {
        smallest_holding(&self.codec_buckets, rows)
    }

    /// Smallest captured length that holds this many frames.
    #[must_use]
    pub fn codec_length(&self, frames: u32) -> u32 {
        smallest_holding(&self.codec_lengths, frames)
    }

    /// # Errors
    /// The first field that is out of its bound.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.frame_span <= Span::ZERO {
            let value = self.frame_span.to_string();
            return Err(ConfigError { field: "frame_span", value, bound: "more than zero" });
        }
        for (field, axis) in [
            ("decode_buckets", &self.decode_buckets),
            ("codec_buckets", &self.codec_buckets),
            ("codec_lengths", &self.codec_lengths),
        ] {
            if !is_axis(axis) {
                let value = format!("{axis:?}");
                return Err(ConfigError { field, value, bound: "ascending numbers from 1 up" });
            }
        }
        if self.rows_per_context == 0 || self.decode_contexts_max() == 0 {
            let value = self.rows_per_context.to_string();
            return Err(ConfigError {
                field: "rows_per_context",
                value,
                bound: "from 1 to the largest decode bucket",
            });
        }
        Ok(())
    }

    fn find(&self, stage: Stage, partition: Partition) -> Option<&StageCost> {
        let of_stage = |cost: &&StageCost| cost.stage == stage;
        self.costs
            .iter()
            .filter(of_stage)
            .find(|cost| cost.partition == partition)
            .or_else(|| self.costs.iter().find(of_stage))
    }
}

impl CostTable {
    /// # Errors
    /// An axis that does not ascend from 1, or a number of costs that is not rows times lengths.
    pub fn new(rows: Vec<u32>, lengths: Vec<u32>, micros: Vec<u32>) -> Result<Self, ConfigError> {
        for (field, axis) in [("rows", &rows), ("lengths", &lengths)] {
            if !is_axis(axis) {
                let value = format!("{axis:?}");
                return Err(ConfigError { field, value, bound: "ascending numbers from 1 up" });
            }
        }
        if micros.len() != rows.len() * lengths.len() {
            let value = format!("{} costs", micros.len());
            return Err(ConfigError { field: "micros", value, bound: "one for each row count and length" });
        }
        Ok(Self { rows, lengths, micros })
    }

    /// `base + rows * per_row + rows * length * per_unit`, all in microseconds: a first guess before
    /// anything is measured.
    #[must_use]
    pub fn linear(base: u32, per_row: u32, per_unit: u32, rows_max: u32, length_max: u32) -> Self {
        let rows = vec![1, rows_max.max(2)];
        let lengths = vec![1, length_max.max(2)];
        let micros = rows
            .iter()
            .flat_map(|&row| {
                lengths.iter().map(move |&length| {
                    let unit = row.saturating_mul(length).saturating_mul(per_unit);
                    base.saturating_add(row.saturating_mul(per_row)).saturating_add(unit)
                })
            })
            .collect();
        Self { rows, lengths, micros }
    }

    /// Microseconds at a point, interpolated.
    #[must_use]
    pub fn at(&self, rows: u32, length: u32) -> i64 {
        let (low, high) = bracket(&self.rows, rows);
        let at_low = self.along_length(low, length);
        let at_high = self.along_length(high, length);
        lerp(self.rows[low], at_low, self.rows[high], at_high, rows).max(0)
    }

    fn along_length(&self, row: usize, length: u32) -> i64 {
        let (low, high) = bracket(&self.lengths, length);
        let base = row * self.lengths.len();
        let at_low = i64::from(self.micros[base + low]);
        let at_high = i64::from(self.micros[base + high]);
        lerp(self.lengths[low], at_low, self.lengths[high], at_high, length)
    }
}

/// A cost of this many microseconds, corrected.
pub(crate) fn corrected(micros: i64, correction_ppm: i64) -> Span {
    Span::from_micros(micros.saturating_mul(correction_ppm) / ONE_PPM)
}

/// The two points of `axis` whose line gives the value at `x`.
fn bracket(axis: &[u32], x: u32) -> (usize, usize) {
    let last = axis.len() - 1;
    let above = axis.partition_point(|&point| point <= x);
    if above == 0 {
        (0, 0)
    } else if above > last {
        (last.saturating_sub(1), last)
    } else {
        (above - 1, above)
    }
}

fn lerp(x0: u32, y0: i64, x1: u32, y1: i64, x: u32) -> i64 {
    if x1 == x0 {
        return y0;
    }
    let offset = i64::from(x) - i64::from(x0);
    y0 + (y1 - y0).saturating_mul(offset) / (i64::from(x1) - i64::from(x0))
}

fn is_axis(axis: &[u32]) -> bool {
    axis.first().is_some_and(|&first| first >= 1) && axis.windows(2).all(|pair| pair[0] < pair[1])
}

/// The first entry that is at least `wanted`, else the largest.
fn smallest_holding(axis: &[u32], wanted: u32) -> u32 {
    let at = axis.partition_point(|&entry| entry < wanted);
    axis.get(at).or(axis.last()).copied().unwrap_or(wanted)
}
