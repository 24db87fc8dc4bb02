//! A request's sampling fields against the checkpoint's defaults.

use contract::{EngineError, Sampling, SamplingDefaults};

use super::config::{GenerationConfig, SamplingConfig};
use crate::RowSampling;

const TEMPERATURE_BOUND: &str = "from 0 (greedy) to 5";
const TEMPERATURE_MAX: f32 = 5.0;
const TOP_P_BOUND: &str = "above 0 and at most 1";
const PENALTY_BOUND: &str = "above 0 and at most 10";
const PENALTY_MAX: f32 = 10.0;

/// Resolves and checks.
///
/// # Errors
/// [`EngineError::FieldOutOfRange`]; NaN is out of every range.
pub(crate) fn resolve(defaults: &GenerationConfig, asked: &Sampling) -> Result<RowSampling, EngineError> {
    let penalty = asked.repetition_penalty.unwrap_or(defaults.repetition_penalty);
    if !(penalty > 0.0 && penalty <= PENALTY_MAX) {
        return Err(out_of_range("repetition_penalty", penalty, PENALTY_BOUND));
    }
    let fields = ["temperature", "top_p"];
    let [temperature, top_k, top_p] =
        one(&defaults.head, asked.temperature, asked.top_k, asked.top_p, fields)?;
    let fields = ["sub_temperature", "sub_top_p"];
    let [sub_temperature, sub_top_k, sub_top_p] =
        one(&defaults.sub, asked.sub_temperature, asked.sub_top_k, asked.sub_top_p, fields)?;
    Ok(RowSampling {
        head: [temperature, top_k, top_p, penalty],
        // The heads below the first never see a penalty.
        sub: [sub_temperature, sub_top_k, sub_top_p, 1.0],
    })
}

/// What the checkpoint does when a request says nothing.
pub(crate) fn defaults(config: &GenerationConfig) -> SamplingDefaults {
    SamplingDefaults {
        temperature: config.head.temperature,
        top_k: config.head.top_k,
        top_p: config.head.top_p,
        repetition_penalty: config.repetition_penalty,
    }
}

fn one(
    defaults: &SamplingConfig,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    [temperature_field, top_p_field]: [&'static str; 2],
) -> Result<[f32; 3], EngineError> {
    let temperature = temperature.unwrap_or(defaults.temperature);
    if !(0.0..=TEMPERATURE_MAX).contains(&temperature) {
        return Err(out_of_range(temperature_field, temperature, TEMPERATURE_BOUND));
    }
    let top_p = top_p.unwrap_or(defaults.top_p);
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(out_of_range(top_p_field, top_p, TOP_P_BOUND));
    }
    // Any larger limit is no limit; vocabularies are far below the 2^24 an f32 counts exactly.
    let top_k = top_k.unwrap_or(defaults.top_k).min(u32::from(u16::MAX));
    Ok([temperature, top_k as f32, top_p])
}

fn out_of_range(field: &'static str, value: f32, bound: &'static str) -> EngineError {
    EngineError::FieldOutOfRange { field, value: value.to_string(), bound }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: GenerationConfig = GenerationConfig {
        head: SamplingConfig { temperature: 0.9, top_k: 50, top_p: 0.8 },
        sub: SamplingConfig { temperature: 0.7, top_k: 40, top_p: 0.6 },
        repetition_penalty: 1.05,
        tokens_max: 100,
    };

    fn field_of(asked: Sampling) -> Option<&'static str> {
        resolve(&DEFAULTS, &asked).err().and_then(|error| error.param())
    }

    #[test]
    fn fields_not_given_take_the_checkpoints_values() {
        let sampling = resolve(&DEFAULTS, &Sampling::default()).expect("defaults are valid");
        assert_eq!(sampling.head, [0.9, 50.0, 0.8, 1.05]);
        assert_eq!(sampling.sub, [0.7, 40.0, 0.6, 1.0]);
    }

    #[test]
    fn values_that_are_not_numbers_are_refused_by_name() {
        let nan = Some(f32::NAN);
        assert_eq!(field_of(Sampling { temperature: nan, ..Sampling::default() }), Some("temperature"));
        assert_eq!(field_of(Sampling { top_p: nan, ..Sampling::default() }), Some("top_p"));
        assert_eq!(
            field_of(Sampling { repetition_penalty: nan, ..Sampling::default() }),
            Some("repetition_penalty")
        );
        assert_eq!(
            field_of(Sampling { sub_temperature: nan, ..Sampling::default() }),
            Some("sub_temperature")
        );
        assert_eq!(field_of(Sampling { sub_top_p: nan, ..Sampling::default() }), Some("sub_top_p"));
    }

    #[test]
    fn values_outside_their_range_are_refused_by_name() {
        assert_eq!(
            field_of(Sampling { temperature: Some(-0.1), ..Sampling::default() }),
            Some("temperature")
        );
        assert_eq!(
            field_of(Sampling { temperature: Some(f32::INFINITY), ..Sampling::default() }),
            Some("temperature")
        );
        assert_eq!(field_of(Sampling { top_p: Some(0.0), ..Sampling::default() }), Some("top_p"));
        assert_eq!(field_of(Sampling { top_p: Some(1.1), ..Sampling::default() }), Some("top_p"));
        assert_eq!(
            field_of(Sampling { repetition_penalty: Some(0.0), ..Sampling::default() }),
            Some("repetition_penalty")
        );
    }

    #[test]
    fn a_huge_top_k_is_no_limit_and_stays_exact() {
        let sampling = resolve(&DEFAULTS, &Sampling { top_k: Some(u32::MAX), ..Sampling::default() });
        assert_eq!(sampling.expect("valid").head[1], 65_535.0);
    }
}
