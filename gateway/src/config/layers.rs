//! Defaults, file, environment, flags: the later wins, and every value remembers where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::quota::Rates;

use super::{
    Config, ConfigError, EngineConfig, EngineKind, KEYS, Key, LogConfig, OpusConfig, ServerConfig,
    StreamConfig, TlsConfig, Value, VoicesConfig,
};

/// Longest configuration file read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    Environment(String),
    File(PathBuf),
    Flag(&'static str),
}

/// The layers that were given, before they are checked.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    file: Option<(PathBuf, String)>,
    environment: Vec<(String, String)>,
    flags: Vec<(&'static str, &'static str, String)>,
}

/// All keys with their values.
#[derive(Clone, Debug)]
pub struct Resolved {
    values: BTreeMap<&'static str, (Value, Source)>,
    /// Variables with our prefix that name no key: reported, because platforms set such names too.
    pub unknown_variables: Vec<String>,
}

impl Layers {
    /// Adds a TOML file.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn file(mut self, path: &Path) -> Result<Self, ConfigError> {
        let text = crate::input::read_text(path, FILE_BYTES_MAX)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        self.file = Some((path.to_owned(), text));
        Ok(self)
    }

    /// Adds TOML text as if it had been read from `path`.
    #[must_use]
    pub fn text(mut self, path: &str, text: &str) -> Self {
        self.file = Some((PathBuf::from(path), text.to_owned()));
        self
    }

    /// Adds the variables that begin with `VOXLANE_`; others are passed over.
    #[must_use]
    pub fn environment(mut self, variables: impl Iterator<Item = (String, String)>) -> Self {
        self.environment = variables.filter(|(name, _)| name.starts_with("VOXLANE_")).collect();
        self.environment.sort();
        self
    }

    /// Adds a flag's value for `key`.
    #[must_use]
    pub fn flag(mut self, flag: &'static str, key: &'static str, value: String) -> Self {
        self.flags.push((flag, key, value));
        self
    }

    /// Joins the layers.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key, where it came from, and what would be right.
    pub fn resolve(self) -> Result<Resolved, ConfigError> {
        let mut values = BTreeMap::new();
        for key in KEYS {
            let value = key.default_value().map_err(|found| wrong(key, found, Source::Default))?;
            values.insert(key.name, (value, Source::Default));
        }
        if let Some((path, text)) = &self.file {
            read_file(path, text, &mut values)?;
        }
        let mut unknown_variables = Vec::new();
        for (name, text) in self.environment {
            let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
                unknown_variables.push(name);
                continue;
            };
            let from = Source::Environment(name);
            let value = key.kind.read(&text).map_err(|found| wrong(key, found, from.clone()))?;
            values.insert(key.name, (value, from));
        }
        for (flag, name, text) in self.flags {
            let from = Source::Flag(flag);
            let key = find(name).ok_or_else(|| unknown(name, from.clone()))?;
            let value = key.kind.read(&text).map_err(|found| wrong(key, found, from.clone()))?;
            values.insert(key.name, (value, from));
        }
        Ok(Resolved { values, unknown_variables })
    }
}

impl Resolved {
    /// The typed configuration: whatever a command accepts or refuses of the values is decided here.
    ///
    /// # Errors
    /// [`ConfigError`] where a value's form only shows when it is read.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let kind = self.text("engine.kind");
        let kind = match kind.split_once(':') {
            None if kind == "native" => EngineKind::Native,
            None if kind == "scripted" => EngineKind::Scripted(None),
            Some(("scripted", file)) if !file.is_empty() => EngineKind::Scripted(Some(file.into())),
            _ => return Err(self.refuse("engine.kind")),
        };
        let (model, random) = (self.text("engine.model"), self.text("engine.random_weights"));
        let (device, precision) = (self.text("engine.device"), self.text("engine.precision"));
        crate::native::read_precision(precision).map_err(|what| self.unfit("engine.precision", what))?;
        let filter = self.text("log.filter");
        crate::logs::filter(filter).map_err(|what| self.unfit("log.filter", what))?;
        let path = |name| Some(self.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let seed = Some(self.text("engine.seed")).filter(|seed| !seed.is_empty());
        let seed = seed.map(str::parse).transpose().map_err(|_| self.refuse("engine.seed"))?;
        // A CPU's lanes have cores of their own to keep; beside a GPU the cores are the gateway's.
        let on_cpu = device.starts_with("cpu");
        let engine = EngineConfig {
            kind,
            model: (!model.is_empty()).then(|| PathBuf::from(model)),
            device: device.to_owned(),
            precision: precision.to_owned(),
            background_sms: self.count("engine.background_sms") as u32,
            random_weights: (!random.is_empty()).then(|| random.to_owned()),
            contexts_max: self.count("engine.contexts_max") as u32,
            first_audio_limit: self.millis("engine.first_audio_limit_ms"),
            steps_between_prefills: self.steps_between_prefills()?,
            stuck_after: self.millis("engine.stuck_ms"),
            split: self.text("engine.split").to_owned(),
            without: self.text("engine.without").to_owned(),
            faults: self.text("engine.faults").to_owned(),
            seed,
            bench: self.bool("engine.bench"),
        };
        crate::native::devices(&engine).map_err(|what| self.unfit("engine.device", what))?;
        let shape = engine.random_weights.as_deref().map_or(Ok(()), crate::native::knows_shape);
        shape.map_err(|what| self.unfit("engine.random_weights", what))?;
        crate::split::check(&engine.split).map_err(|what| self.unfit("engine.split", what))?;
        crate::native::without(&engine).map_err(|what| self.unfit("engine.without", what))?;
        crate::native::faults(&engine).map_err(|what| self.unfit("engine.faults", what))?;
        Ok(Config {
            server: ServerConfig {
                listen: self.address("server.listen")?,
                admin: self.address("server.admin")?,
                admin_remote: self.bool("server.admin_remote"),
                unix: path("server.unix"),
                tls: self.tls()?,
                trusted_proxies: self.list("server.trusted_proxies").to_vec(),
                hosts: self.list("server.hosts").iter().map(|host| host.to_ascii_lowercase()).collect(),
                sessions_max: self.count("server.sessions_max") as u32,
                connections_max: self.count("server.connections_max") as u32,
                handshake_timeout: self.millis("server.handshake_timeout_ms"),
                body_bytes_max: self.count("server.body_bytes_max") as usize,
                bodies_bytes_max: self.bodies()?,
                input_characters_max: self.count("server.input_characters_max") as usize,
                whole_answer: Duration::from_secs(self.count("server.whole_answer_s_max")),
                body_stall: self.millis("server.body_stall_ms"),
                exit_when_lost: self.bool("server.exit_when_lost"),
                drain_grace: self.millis("server.drain_grace_ms"),
                threads: self.threads("server.threads", (1, if on_cpu { 4 } else { 3 }), 2),
            },
            engine,
            auth: self.auth(),
            quotas: Rates {
                requests: self.count("quotas.requests_per_minute") as u32,
                characters: self.count("quotas.characters_per_minute") as u32,
            },
            stream: StreamConfig {
                contexts_max: self.count("stream.contexts_max") as u32,
                frame_bytes_max: self.count("stream.frame_bytes_max") as usize,
                message_bytes_max: self.count("stream.message_bytes_max") as usize,
                lead: self.millis("stream.lead_ms"),
                unreported_lead: self.millis("stream.unreported_lead_ms"),
                resume_window: self.millis("stream.resume_window_ms"),
                idle: self.millis("stream.idle_ms"),
                context_idle: self.millis("stream.context_idle_ms"),
                send_buffer_bytes: self.count("stream.send_buffer_bytes") as u32,
                write_buffer_bytes: self.count("stream.write_buffer_bytes") as usize,
                slow_reader: self.millis("stream.slow_reader_ms"),
            },
            voices: VoicesConfig {
                folder: path("voices.folder"),
                per_tenant_max: self.count("voices.per_tenant_max") as usize,
                lexicons: path("voices.lexicons"),
                upload_bytes_max: self.count("voices.upload_bytes_max") as usize,
            },
            opus: OpusConfig {
                threads: self.threads("opus.threads", if on_cpu { (1, 2) } else { (3, 4) }, 1),
                bitrate_bps: self.count("opus.bitrate_bps") as u32,
                complexity: self.count("opus.complexity") as u8,
            },
            log: LogConfig {
                filter: filter.to_owned(),
                json: self.text("log.format") == "json",
                usage: path("log.usage"),
            },
        })
    }

    /// 64-bit FNV-1a over every key and value, as 16 hexadecimal digits: two processes with the same
    /// hash were told the same, wherever they were told it.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for (name, (value, _)) in &self.values {
            for byte in format!("{name} = {value}\n").bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        format!("{hash:016x}")
    }

    /// Key, value and origin, in the order of the table.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, &Value, &Source)> {
        KEYS.iter()
            .filter_map(|key| self.values.get(key.name).map(|(value, source)| (key.name, value, source)))
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).map(|(value, _)| value)
    }

    pub(super) fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Room for all bodies, in which each has its own.
    fn bodies(&self) -> Result<usize, ConfigError> {
        let all = self.count("server.bodies_bytes_max");
        let one = self.count("server.body_bytes_max").max(self.count("voices.upload_bytes_max") + (1 << 17));
        if all < one {
            let what = format!(
                "is {all}, but one body may have {one} bytes (server.body_bytes_max, voices.upload_bytes_max and its form)"
            );
            return Err(self.unfit("server.bodies_bytes_max", what));
        }
        Ok(all as usize)
    }

    /// A number of threads; 0 is `threads` for every `cores` of this process's cores, `least` at least.
    fn threads(&self, name: &str, (threads, cores): (usize, usize), least: usize) -> usize {
        match self.count(name) as usize {
            0 => {
                let all = std::thread::available_parallelism().map_or(1, usize::from);
                (all * threads / cores).max(least)
            }
            given => given,
        }
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        match self.value(name) {
            Some(Value::Count(count)) => *count,
            _ => 0,
        }
    }

    pub(super) fn bool(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Bool(true)))
    }

    pub(super) fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.count(name))
    }

    fn unfit(&self, key: &'static str, what: String) -> ConfigError {
        ConfigError::Unfit { key, what, from: self.source(key) }
    }

    fn source(&self, name: &str) -> Source {
        self.values.get(name).map_or(Source::Default, |(_, source)| source.clone())
    }

    pub(super) fn list(&self, name: &str) -> &[String] {
        match self.value(name) {
            Some(Value::List(entries)) => entries,
            _ => &[],
        }
    }

    pub(super) fn secret(&self, name: &str) -> &str {
        match self.value(name) {
            Some(Value::Secret(value)) => value,
            _ => "",
        }
    }

    fn tls(&self) -> Result<TlsConfig, ConfigError> {
        let (cert, key) = (self.text("server.tls_cert"), self.text("server.tls_key"));
        let unusable = |key, what: &str| Err(ConfigError::Unusable { key, what: what.to_owned() });
        match (cert.is_empty(), key.is_empty(), self.bool("server.tls_self_signed")) {
            (true, true, false) => Ok(TlsConfig::Off),
            (true, true, true) => Ok(TlsConfig::SelfSigned),
            (false, false, false) => Ok(TlsConfig::Files { cert: cert.into(), key: key.into() }),
            (false, true, _) => unusable("server.tls_key", "is missing beside server.tls_cert"),
            (true, false, _) => unusable("server.tls_cert", "is missing beside server.tls_key"),
            (false, false, true) => {
                unusable("server.tls_self_signed", "stands beside a certificate; keep one of them")
            }
        }
    }

    fn address(&self, name: &str) -> Result<SocketAddr, ConfigError> {
        self.text(name).parse().map_err(|_| self.refuse(name))
    }

    fn steps_between_prefills(&self) -> Result<Option<u32>, ConfigError> {
        const STEPS_MAX: u32 = 64;
        let name = "engine.steps_between_prefills";
        let given = Some(self.text(name)).filter(|steps| !steps.is_empty());
        let steps = given.map(|steps| steps.parse().ok().filter(|steps| *steps <= STEPS_MAX));
        steps.map(|steps| steps.ok_or_else(|| self.refuse(name))).transpose()
    }

    fn refuse(&self, name: &str) -> ConfigError {
        let source = self.source(name);
        match find(name) {
            Some(key) => wrong(key, self.text(name).to_owned(), source),
            None => unknown(name, source),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

fn read_file(
    path: &Path,
    text: &str,
    values: &mut BTreeMap<&'static str, (Value, Source)>,
) -> Result<(), ConfigError> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        message: readable(&error),
    })?;
    let from = Source::File(path.to_owned());
    for (section, entries) in &table {
        let toml::Value::Table(entries) = entries else {
            return Err(unknown(section, from));
        };
        for (name, value) in entries {
            let name = format!("{section}.{name}");
            let key = find(&name).ok_or_else(|| unknown(&name, from.clone()))?;
            let value = key.kind.take(value).map_err(|found| wrong(key, found, from.clone()))?;
            values.insert(key.name, (value, from.clone()));
        }
    }
    Ok(())
}

/// The parser's text, but for whole numbers over 64 bits, of which it speaks in its own types.
fn readable(error: &toml::de::Error) -> String {
    let text = error.to_string();
    if error.message().starts_with("invalid type: integer") {
        return text
            .replace(error.message(), &format!("this number is too large: at most {} can be", i64::MAX));
    }
    text
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn unknown(name: &str, from: Source) -> ConfigError {
    let distance = |key: &&Key| (strsim::jaro_winkler(key.name, name) * 1e6) as i64;
    let nearest = KEYS.iter().max_by_key(distance).map_or("", |key| key.name);
    ConfigError::UnknownKey { key: name.to_owned(), nearest, from }
}

fn wrong(key: &Key, found: String, from: Source) -> ConfigError {
    ConfigError::WrongType { key: key.name, expected: key.kind.expected(), found, from }
}
