//! What is measured: `NAME=ADAPTER,URL`.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};

/// One system and how to speak to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub name: String,
    pub adapter: Adapter,
    /// Host and port.
    pub address: String,
    /// Path of the endpoint, without the query.
    pub path: String,
    /// Items of the URL's query: fields of the request (`voice`, `model`...).
    pub fields: Vec<(String, String)>,
}

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adapter {
    /// `voxlane.v1` (docs/protocol.md).
    Native {
        pcm: bool,
        /// Text comes at this many ids a second; `None` is all at once.
        ids_per_s: Option<f64>,
    },
    /// `POST /v1/audio/speech`, streamed.
    Speech { dialect: Dialect, wav: bool },
    /// `nari.speech.v1`.
    Nari { ids_per_s: Option<f64> },
    /// OpenAI Realtime.
    Realtime,
}

/// What each server wants to hear before it streams raw audio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `stream_format: "audio"`.
    OpenAi,
    /// `stream: true` and `stream_format: "audio"`.
    VllmOmni,
    /// `stream: true`; raw audio is its default.
    SglangOmni,
}

/// A target that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("target {0:?} must be written NAME=ADAPTER,URL, as voxlane=native,ws://127.0.0.1:8080")]
    Shape(String),
    #[error("{0:?} is no adapter; one of {ADAPTERS}")]
    Adapter(String),
    #[error("native has no field {0:?} in a URL's query; it takes voice, model and language")]
    Field(String),
    #[error("{0:?} in the query of a URL must be written FIELD=VALUE, with %XX as UTF-8")]
    Query(String),
    #[error("native speaks at /v1/stream alone, not at {0:?}: leave the path out")]
    Path(String),
    #[error(
        "URL {0:?} must begin with ws:// or http:// and name a host and a port (no TLS: measure behind it)"
    )]
    Url(String),
}

const ADAPTERS: &str = "native, native+pcm, native+ids=N, speech, speech+wav, vllm-omni, sglang-omni, nari, \
                        nari+ids=N, realtime";

impl Target {
    /// # Errors
    /// [`TargetError`].
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let shape = || TargetError::Shape(text.to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(shape)?;
        // `native+ids=25,ws://...`: the adapter may hold an equals sign, the name not.
        let (adapter, url) = rest.split_once(',').ok_or_else(shape)?;
        if name.is_empty() {
            return Err(shape());
        }
        let adapter = Adapter::parse(adapter)?;
        let wrong = || TargetError::Url(url.to_owned());
        let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("http://")).ok_or_else(wrong)?;
        let (address, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return Err(wrong());
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let path = if path.is_empty() || path == "/" { adapter.path() } else { path };
        if matches!(adapter, Adapter::Native { .. }) && path != adapter.path() {
            return Err(TargetError::Path(path.to_owned()));
        }
        let field = |item: &str| {
            let (key, value) = item.split_once('=')?;
            Some((decoded(key)?, decoded(value)?))
        };
        let items = query.split('&').filter(|item| !item.is_empty());
        let fields: Result<Vec<_>, _> =
            items.map(|item| field(item).ok_or_else(|| TargetError::Query(item.to_owned()))).collect();
        let fields = fields?;
        // Left out in silence, it would be believed in.
        let unknown = fields.iter().find(|(key, _)| !NATIVE_FIELDS.contains(&key.as_str()));
        if let Some((key, _)) = unknown.filter(|_| matches!(adapter, Adapter::Native { .. })) {
            return Err(TargetError::Field(key.clone()));
        }
        Ok(Self {
            name: name.to_owned(),
            adapter,
            address: address.to_owned(),
            path: path.to_owned(),
            fields,
        })
    }

    /// The fields as a URL's query holds them.
    #[must_use]
    pub fn query(&self) -> String {
        let items = self.fields.iter().map(|(key, value)| format!("{}={}", encoded(key), encoded(value)));
        items.collect::<Vec<_>>().join("&")
    }

    #[must_use]
    pub fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// All that a URL does not take as it stands anywhere (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What a native request takes from its target's URL.
const NATIVE_FIELDS: [&str; 3] = ["voice", "model", "language"];

/// A part of a query without its `%XX`; `None` where it is no UTF-8.
fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

/// The other way round.
fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

/// Text no language model writes slower or faster.
const IDS_PER_S: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

impl Adapter {
    /// Whether requests can fix their number of frames.
    #[must_use]
    pub const fn fixes_frames(self) -> bool {
        matches!(self, Self::Native { .. } | Self::Speech { .. })
    }

    /// Whether silence with which the server fills a gap is marked as such.
    #[must_use]
    pub const fn tells_gaps(self) -> bool {
        matches!(self, Self::Native { .. })
    }

    fn parse(text: &str) -> Result<Self, TargetError> {
        let wrong = || TargetError::Adapter(text.to_owned());
        let mut parts = text.split('+');
        let base = parts.next().unwrap_or_default();
        let (mut pcm, mut wav, mut ids) = (false, false, None);
        for option in parts {
            match option.split_once('=') {
                None if option == "pcm" => pcm = true,
                None if option == "wav" => wav = true,
                Some(("ids", rate)) => {
                    let rate = rate.parse::<f64>().ok().filter(|rate| IDS_PER_S.contains(rate));
                    ids = Some(rate.ok_or_else(wrong)?);
                }
                _ => return Err(wrong()),
            }
        }
        let speech = |dialect| Self::Speech { dialect, wav };
        let (adapter, takes) = match base {
            "native" => (Self::Native { pcm, ids_per_s: ids }, (true, false, true)),
            "speech" => (speech(Dialect::OpenAi), (true, true, false)),
            "vllm-omni" => (speech(Dialect::VllmOmni), (true, true, false)),
            "sglang-omni" => (speech(Dialect::SglangOmni), (true, true, false)),
            "nari" => (Self::Nari { ids_per_s: ids }, (false, false, true)),
            "realtime" => (Self::Realtime, (false, false, false)),
            _ => return Err(wrong()),
        };
        let allowed = (!pcm || takes.0) && (!wav || takes.1) && (ids.is_none() || takes.2);
        if allowed { Ok(adapter) } else { Err(wrong()) }
    }

    /// Where the endpoint is unless the URL says otherwise.
    const fn path(self) -> &'static str {
        match self {
            Self::Native { .. } => "/v1/stream",
            Self::Speech { .. } => "/v1/audio/speech",
            Self::Nari { .. } => "/v1/audio/speech/ws",
            Self::Realtime => "/v1/realtime",
        }
    }
}
