//! What the URL of a socket says.

use contract::Span;

use super::{OutputFormat, is_their_model, normalize};
use crate::catalog::Ask;
use crate::wire::{INTEGER_MAX, SamplingFields, WireError};

/// How many contexts a socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contexts {
    /// `multi-stream-input`: each with an id of the client's.
    Many,
    /// `stream-input`: one without an id, and the socket ends with it.
    One,
}

/// The options of one socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub contexts: Contexts,
    pub format: OutputFormat,
    /// Model, voice, language, seed and normalization of every context.
    pub ask: Ask,
    /// Each message is spoken at once, as if flushed.
    pub auto_mode: bool,
    /// Times count from the context's first sample, not from where the message before ended.
    pub sync_alignment: bool,
    /// How long a context may stay without text.
    pub inactivity: Span,
}

/// Seconds, as the service bounds them.
const INACTIVITY_DEFAULT: u64 = 20;
const INACTIVITY_MAX: u64 = 180;

impl Options {
    /// Reads the query of a socket that speaks with `voice`. Names that are not known are ignored.
    ///
    /// # Errors
    /// A format that this server cannot make, or a value that cannot be read.
    pub fn read<'a>(
        contexts: Contexts,
        voice: &str,
        query: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, WireError> {
        let mut ask = Ask { voice: Some(voice.to_owned()), ..Ask::default() };
        let mut format = None;
        let (mut auto_mode, mut sync_alignment, mut inactivity) = (false, false, INACTIVITY_DEFAULT);
        for (name, value) in query {
            match name {
                "apply_text_normalization" => ask.normalize = normalize(value),
                "auto_mode" => auto_mode = flag("auto_mode", value)?,
                "inactivity_timeout" => inactivity = number("inactivity_timeout", value, INACTIVITY_MAX)?,
                "language_code" => ask.language = Some(value.to_owned()),
                "model_id" => ask.model = Some(value.to_owned()).filter(|name| !is_their_model(name)),
                "output_format" => format = Some(value),
                "seed" => {
                    let seed = number("seed", value, INTEGER_MAX)?;
                    ask.sampling = SamplingFields { seed: Some(seed), ..ask.sampling };
                }
                "sync_alignment" => sync_alignment = flag("sync_alignment", value)?,
                _ => {}
            }
        }
        Ok(Self {
            contexts,
            format: OutputFormat::read_for_socket(format)?,
            ask,
            auto_mode,
            sync_alignment,
            inactivity: Span::from_millis(i64::try_from(inactivity.max(1) * 1_000).unwrap_or(0)),
        })
    }
}

fn flag(name: &str, value: &str) -> Result<bool, WireError> {
    match value {
        "true" | "True" | "1" => Ok(true),
        "false" | "False" | "0" => Ok(false),
        _ => Err(out_of_range(name, "true or false".to_owned())),
    }
}

fn number(name: &str, value: &str, max: u64) -> Result<u64, WireError> {
    let read = value.parse().ok().filter(|value| *value <= max);
    read.ok_or_else(|| out_of_range(name, format!("a whole number from 0 to {max}")))
}

fn out_of_range(param: &str, bound: String) -> WireError {
    WireError::FieldOutOfRange { param: param.to_owned(), bound }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_as_clients_send_it_is_read() {
        let query = [
            ("model_id", "eleven_turbo_v2_5"),
            ("output_format", "pcm_24000"),
            ("enable_ssml_parsing", "false"),
            ("inactivity_timeout", "180"),
            ("apply_text_normalization", "off"),
            ("sync_alignment", "true"),
            ("auto_mode", "true"),
            ("seed", "9007199254740991"),
        ];
        let options = Options::read(Contexts::Many, "june", query).expect("valid");
        assert_eq!((options.format, options.ask.model), (OutputFormat::Pcm(24_000), None));
        assert_eq!(
            (options.ask.voice.as_deref(), options.ask.sampling.seed),
            (Some("june"), Some(INTEGER_MAX))
        );
        assert_eq!(options.ask.normalize, Some(false));
        assert!(options.auto_mode && options.sync_alignment);
        assert_eq!(options.inactivity, Span::from_millis(180_000));
    }

    #[test]
    fn a_value_that_cannot_be_read_is_refused_by_name() {
        for (name, value) in [
            ("auto_mode", "yes"),
            ("inactivity_timeout", "181"),
            ("seed", "-1"),
            ("seed", "9007199254740992"),
        ] {
            let query = [("output_format", "pcm_24000"), (name, value)];
            let refused = Options::read(Contexts::One, "june", query).expect_err(name);
            assert_eq!((refused.code(), refused.param()), ("field_out_of_range", Some(name)));
        }
    }
}
