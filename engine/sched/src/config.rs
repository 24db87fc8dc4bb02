//! The scheduler's bounds and targets.

use contract::Span;

/// Every bound and target. The defaults suit a small model on a few CPU cores.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedConfig {
    /// Contexts that may be open, with or without text.
    pub open_max: u32,
    /// Contexts that may hold device state at once.
    pub slots: u32,
    /// Pages in the device's pool.
    pub pages: u32,
    /// Key/value positions of one page.
    pub page_positions: u32,
    /// Pages that voices may keep for prompt prefixes their contexts share; 0 keeps none.
    pub prefix_pages_max: u32,
    /// Segments that may wait in one context; one more ends it as overloaded.
    pub segments_max: u32,
    /// First audio is due this long after arrival.
    pub ttfa_target: Span,
    /// A context whose predicted first audio is further off than this is refused at arrival, and one
    /// that has waited this long for a slot or pages is refused then.
    pub first_audio_limit: Span,
    /// Largest part of real time, in thousandths, that decode steps may take with one more context
    /// running. Refused beyond.
    pub lm_load_max_permille: u32,
    /// A chunk with less slack is urgent.
    pub urgent_margin: Span,
    /// Most chunks in one urgent batch; at most 8.
    pub urgent_batch_max: u32,
    /// Chunks that must be ready before a background batch goes without further reason (B).
    pub background_batch: u32,
    /// Launches that may stand in the lm lane: 1 when results are read before the next step, 2 for
    /// one step ahead.
    pub lm_depth: u32,
    /// The second of two goes so long before the first is predicted to end: in time to follow it at once, and late
    /// enough for whoever has come meanwhile.
    pub lm_ahead: Span,
    /// A context with more decoded audio in hand may be left out of decode.
    pub lm_lead: Span,
    /// A prefill waits at most this long in a row for running contexts short of slack.
    pub deferral_cap: Span,
    /// Prefills may go for which chunks of running contexts have to be cut short to be in time, with at least so
    /// many steps between two; 0 lets none go. Not for where short chunks cost nearly what long ones do: on a CPU
    /// they would eat the time that they are to save.
    pub steps_between_prefills: u32,
    /// Prompt positions packed into one prefill launch (a single longer prompt still goes, alone).
    pub prefill_tokens_max: u32,
    pub prefill_rows_max: u32,
    /// Rows of a launch in which the decode step rides along with prompts, its own and theirs: the weights are read
    /// once for both. 0 lets none ride: not for where a launch costs what its rows cost one by one.
    pub ride_rows_max: u32,
    /// Prompt positions packed into such a launch; a longer prompt goes without riders.
    pub ride_tokens_max: u32,
    pub prefill_policy: PrefillPolicy,
    /// The automatic policy changes after its condition has held for this long.
    pub policy_hold: Span,
    /// Prefill on the lm partition while a background batch runs, instead of on the whole processor.
    pub prefill_beside_background: bool,
    /// Largest part of the urgent lane's time, in thousandths, that first chunks may take before the
    /// ladder starts with a longer one.
    pub ladder_budget_permille: u32,
    /// Admissions are counted over this span to find the ladder's load.
    pub ladder_window: Span,
    /// A further segment's prefill is due this long before its predicted first audio demands it.
    pub continuation_margin: Span,
    /// A context that waits for text is ended as idle after this long without input or output.
    pub idle_limit: Span,
    pub guard: GuardConfig,
    /// Decisions kept for [`crate::Sched::records`].
    pub records_max: u32,
}

/// When prefill goes before decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillPolicy {
    /// Deadline-aware, changed to prefill-first while every running context is short of slack.
    Automatic,
    DeadlineAware,
    PrefillFirst,
}

/// Bounds of the runaway guard, beside each segment's frame cap.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardConfig {
    /// Longest cycle of frames looked for.
    pub repeat_period_max: u32,
    /// Frames in a row that equal the frame one period earlier before the segment is cut.
    pub repeat_frames: u32,
    /// A chunk whose largest sample is below this is silent (0.001 is -60 dBFS).
    pub silence_peak: f32,
    /// Silent audio in a row before the segment is cut.
    pub silence_limit: Span,
}

/// A configuration or profile that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but must be {bound}")]
pub struct ConfigError {
    pub field: &'static str,
    pub value: String,
    pub bound: &'static str,
}

impl Default for SchedConfig {
    fn default() -> Self {
        Self {
            open_max: 256,
            slots: 32,
            pages: 1_024,
            page_positions: 64,
            prefix_pages_max: 0,
            segments_max: 1_024,
            ttfa_target: Span::from_millis(200),
            first_audio_limit: Span::from_millis(2_000),
            lm_load_max_permille: 1_000,
            urgent_margin: Span::from_millis(100),
            urgent_batch_max: 8,
            background_batch: 8,
            lm_depth: 1,
            lm_ahead: Span::from_millis(1_000),
            lm_lead: Span::from_millis(6_000),
            deferral_cap: Span::from_millis(100),
            steps_between_prefills: 0,
            prefill_tokens_max: 512,
            prefill_rows_max: 8,
            ride_rows_max: 0,
            ride_tokens_max: 256,
            prefill_policy: PrefillPolicy::Automatic,
            policy_hold: Span::from_millis(200),
            prefill_beside_background: false,
            ladder_budget_permille: 250,
            ladder_window: Span::from_millis(2_000),
            continuation_margin: Span::from_millis(300),
            idle_limit: Span::from_millis(60_000),
            guard: GuardConfig::default(),
            records_max: 256,
        }
    }
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            repeat_period_max: 8,
            repeat_frames: 50,
            silence_peak: 0.001,
            silence_limit: Span::from_millis(5_000),
        }
    }
}

impl SchedConfig {
    /// # Errors
    /// The first field that is out of its bound.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let counts = [
            ("open_max", self.open_max),
            ("slots", self.slots),
            ("pages", self.pages),
            ("page_positions", self.page_positions),
            ("segments_max", self.segments_max),
            ("lm_load_max_permille", self.lm_load_max_permille),
            ("background_batch", self.background_batch),
            ("prefill_tokens_max", self.prefill_tokens_max),
            ("prefill_rows_max", self.prefill_rows_max),
            ("ladder_budget_permille", self.ladder_budget_permille),
            ("guard.repeat_period_max", self.guard.repeat_period_max),
            ("guard.repeat_frames", self.guard.repeat_frames),
            ("records_max", self.records_max),
        ];
        for (field, value) in counts {
            if value == 0 {
                return Err(ConfigError { field, value: "0".to_owned(), bound: "at least 1" });
            }
        }
        if !(1..=8).contains(&self.urgent_batch_max) {
            let value = self.urgent_batch_max.to_string();
            return Err(ConfigError { field: "urgent_batch_max", value, bound: "1 to 8" });
        }
        if self.lm_ahead < Span::ZERO {
            let value = format!("{} us", self.lm_ahead.as_micros());
            return Err(ConfigError { field: "lm_ahead", value, bound: "0 or more" });
        }
        if !(1..=2).contains(&self.lm_depth) {
            let value = self.lm_depth.to_string();
            return Err(ConfigError { field: "lm_depth", value, bound: "1 or 2" });
        }
        let spans = [
            ("ttfa_target", self.ttfa_target),
            ("first_audio_limit", self.first_audio_limit),
            ("lm_lead", self.lm_lead),
            ("ladder_window", self.ladder_window),
            ("idle_limit", self.idle_limit),
            ("guard.silence_limit", self.guard.silence_limit),
        ];
        for (field, value) in spans {
            if value <= Span::ZERO {
                return Err(ConfigError { field, value: value.to_string(), bound: "more than zero" });
            }
        }
        let spans = [
            ("urgent_margin", self.urgent_margin),
            ("deferral_cap", self.deferral_cap),
            ("policy_hold", self.policy_hold),
            ("continuation_margin", self.continuation_margin),
        ];
        for (field, value) in spans {
            if value.is_negative() {
                return Err(ConfigError { field, value: value.to_string(), bound: "not negative" });
            }
        }
        if !(self.guard.silence_peak >= 0.0 && self.guard.silence_peak < 1.0) {
            let value = self.guard.silence_peak.to_string();
            return Err(ConfigError { field: "guard.silence_peak", value, bound: "in [0, 1)" });
        }
        Ok(())
    }
}
