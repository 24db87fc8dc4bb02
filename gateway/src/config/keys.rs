//! The one table of keys. `config/voxlane.toml` shows the same keys to people; a test compares them.

use super::Value;

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `address:port`.
    Address,
    Bool,
    /// A whole number within bounds, in this unit.
    Count {
        min: u64,
        max: u64,
        unit: &'static str,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Several texts; the words say what each names. The environment separates them by commas.
    List(&'static str),
    /// Text that only the environment may hold.
    Secret(&'static str),
    /// Any text; the words say what it names.
    Text(&'static str),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Section and name, `server.listen`.
    pub name: &'static str,
    pub kind: Kind,
    /// As the environment would write it.
    pub default: &'static str,
    pub about: &'static str,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key { name, kind, default, about }
}

const fn count(min: u64, max: u64, unit: &'static str) -> Kind {
    Kind::Count { min, max, unit }
}

/// Every key there is, by section.
pub const KEYS: &[Key] = &[
    key(
        "server.listen",
        Kind::Address,
        "127.0.0.1:8080",
        "Public address. Any other than loopback needs keys: see [auth]",
    ),
    key("server.admin", Kind::Address, "127.0.0.1:9464", "Address of /livez, /readyz and /metrics"),
    key(
        "server.admin_remote",
        Kind::Bool,
        "false",
        "Let server.admin be another address than loopback: it checks no token, so guard it yourself",
    ),
    key(
        "server.unix",
        Kind::Text("a path; empty is none"),
        "",
        "Socket file to serve beside server.listen, for a proxy on this machine",
    ),
    key(
        "server.tls_cert",
        Kind::Text("a PEM file's path; empty is plain HTTP"),
        "",
        "Certificate chain of the public side",
    ),
    key("server.tls_key", Kind::Text("a PEM file's path"), "", "Private key of the certificate"),
    key(
        "server.tls_self_signed",
        Kind::Bool,
        "false",
        "Make a certificate at start, for phones in a lab (a browser's microphone and WebCodecs need TLS)",
    ),
    key(
        "server.trusted_proxies",
        Kind::List("addresses, networks such as 10.0.0.0/8, or unix"),
        "",
        "Proxies whose Forwarded and X-Forwarded-* headers are believed",
    ),
    key(
        "server.hosts",
        Kind::List("host names, without port"),
        "",
        "What a Host header may name beside loopback; empty takes any once keys are set",
    ),
    key(
        "server.sessions_max",
        count(1, 100_000, "sessions"),
        "2000",
        "Sessions served at once; more get 503",
    ),
    key(
        "server.connections_max",
        count(1, 200_000, "connections"),
        "4096",
        "Open connections, HTTP and WebSocket together; more get 503",
    ),
    key(
        "server.handshake_timeout_ms",
        count(100, 60_000, "ms"),
        "5000",
        "Time a peer has to send its request head",
    ),
    key("server.body_bytes_max", count(1_024, 67_108_864, "bytes"), "1048576", "Longest request body"),
    key(
        "server.bodies_bytes_max",
        count(1_048_576, 17_179_869_184, "bytes"),
        "268435456",
        "Request bodies and long WebSocket messages in memory at once, all together; more get 503 or close 1013",
    ),
    key(
        "server.input_characters_max",
        count(1, 10_000_000, "characters"),
        "50000",
        "Longest input of POST /v1/audio/speech",
    ),
    key(
        "server.whole_answer_s_max",
        count(1, 86_400, "s"),
        "600",
        "Longest audio of an answer that is not streamed (stream = false); it waits in memory",
    ),
    key(
        "server.body_stall_ms",
        count(100, 3_600_000, "ms"),
        "10000",
        "How long an answer's body may go untaken before it is cut off",
    ),
    key(
        "server.drain_grace_ms",
        count(0, 3_600_000, "ms"),
        "20000",
        "Time running contexts get to end after SIGTERM or SIGINT",
    ),
    key(
        "server.exit_when_lost",
        Kind::Bool,
        "true",
        "End with status 1 once no device is left, so that whoever started the process starts it again",
    ),
    key(
        "server.threads",
        count(0, 256, "threads"),
        "0",
        "Threads of the async runtime; 0 takes one for every three cores, one for every four where engine.device is a CPU, two at least",
    ),
    key("engine.kind", Kind::Text("native, scripted, or scripted:FILE"), "native", "Which engine speaks"),
    key(
        "engine.model",
        Kind::Text("a checkpoint's folder, or OWNER/NAME once pulled; empty is the embedded model"),
        "",
        "Model to load",
    ),
    key(
        "engine.device",
        Kind::Text("auto, or a list of cpu, cpu:0,1 for chosen cores, and cuda:0"),
        "auto",
        "Processors, each with an engine of its own; CPU engines without cores share out those left",
    ),
    key(
        "engine.precision",
        Kind::Text("bf16 or f32"),
        "bf16",
        "How a GPU keeps weights and multiplies; a CPU always works in f32",
    ),
    key(
        "engine.background_sms",
        count(0, 1_024, "SMs"),
        "56",
        "SMs of a GPU that only decode chunks with slack, fewer where they were more than half (engine.split takes any); 0 leaves all lanes the whole GPU",
    ),
    key(
        "engine.split",
        Kind::Text(
            "auto, LM/BACKGROUND such as 100/32, or a profile's file; empty is engine.background_sms, or half of a CPU",
        ),
        "",
        "Parts (SMs, cores) of the lm and the background lane; auto measures at the first start and keeps what it chose",
    ),
    key(
        "engine.random_weights",
        Kind::Text("qwen3-tts-1.7b or qwen3-tts-0.6b; empty loads a checkpoint"),
        "",
        "Published shapes with weights drawn from a seed, for measuring",
    ),
    key("engine.contexts_max", count(1, 4_096, "contexts"), "32", "Contexts that run at once on each device"),
    key(
        "engine.first_audio_limit_ms",
        count(0, 60_000, "ms"),
        "0",
        "Predicted wait for first audio past which a request is refused; 0 is 140 on a GPU and 2000 on a CPU",
    ),
    key(
        "engine.steps_between_prefills",
        Kind::Text("a whole number of steps, 0 to 64; empty is 2 on a GPU and 0 on a CPU"),
        "",
        "Prompts may have chunks of running speech cut short to be in time, with so many steps between two; 0 lets them not (docs/performance.md)",
    ),
    key(
        "engine.seed",
        Kind::Text("a whole number; empty draws one for each"),
        "",
        "Seed of requests that give none, as clients of protocols without seeds do",
    ),
    key(
        "engine.stuck_ms",
        count(0, 600_000, "ms"),
        "0",
        "Longest a launch may stay away beyond 20 times its prediction before its device counts as lost; 0 is 5000 on a GPU and 20000 on a CPU",
    ),
    key(
        "engine.without",
        Kind::Text("partition, urgent, async, deadlines between commas, with engine.bench; empty is none"),
        "",
        "Parts to go without, to measure what each is worth (docs/measuring.md)",
    ),
    key(
        "engine.faults",
        Kind::Text("KIND@STAGE:N between commas, with engine.bench; empty is none"),
        "",
        "Faults to rehearse: error, fail, lost, stuck, hang, nan, memory (docs/operation.md)",
    ),
    key("engine.bench", Kind::Bool, "false", "Let requests set an exact number of frames, for measuring"),
    key(
        "auth.secret",
        Kind::Secret("at least 32 bytes"),
        "",
        "Secret that signs HS256 tokens. From the environment only; else use auth.secret_file",
    ),
    key(
        "auth.secret_file",
        Kind::Text("a file's path; empty is none"),
        "",
        "File with the secret of HS256 tokens",
    ),
    key(
        "auth.public_keys",
        Kind::List("paths of PEM files"),
        "",
        "Public keys of RS256 (RSA, 2048 bits or more) and ES256 (P-256) tokens",
    ),
    key("auth.jwks_file", Kind::Text("a file's path; empty is none"), "", "Key set (JWKS) in a file"),
    key(
        "auth.jwks_url",
        Kind::Text("an https URL (http on loopback); empty is none"),
        "",
        "Key set (JWKS) of a token service",
    ),
    key(
        "auth.jwks_refresh_ms",
        count(1_000, 86_400_000, "ms"),
        "300000",
        "How often the key set is fetched; an unknown key id fetches at most once in 10 s",
    ),
    key(
        "auth.jwks_max_age_ms",
        count(1_000, 604_800_000, "ms"),
        "86400000",
        "How long the last good key set serves while its URL cannot be reached",
    ),
    key(
        "auth.api_keys_file",
        Kind::Text("a TOML file's path; empty is none"),
        "",
        "Static keys, with tenant and scopes",
    ),
    key("auth.issuer", Kind::Text("the claim iss of every token"), "voxlane", "Who signs tokens"),
    key("auth.audience", Kind::Text("in the claim aud of every token"), "voxlane", "Whom tokens are for"),
    key(
        "auth.tenant_claim",
        Kind::Text("a claim's name"),
        "tenant",
        "Claim that names the tenant; sub where it is absent",
    ),
    key("auth.leeway_s", count(0, 300, "s"), "30", "How far clocks may differ at exp and nbf"),
    key(
        "auth.token_grace_ms",
        count(0, 3_600_000, "ms"),
        "60000",
        "Time running contexts get to end once the session's token has ended",
    ),
    key(
        "auth.origins",
        Kind::List("origins such as \"https://app.example\""),
        "",
        "Web pages of other hosts that may connect, each exactly as browsers send it",
    ),
    key(
        "quotas.requests_per_minute",
        count(0, 1_000_000, "requests"),
        "0",
        "Contexts and HTTP requests one tenant may begin in a minute; more get 429. 0 is no bound",
    ),
    key(
        "quotas.characters_per_minute",
        count(0, 10_000_000, "characters"),
        "0",
        "Characters one tenant may have spoken in a minute; what has begun is spoken, what follows gets 429. 0 is no bound",
    ),
    key("stream.contexts_max", count(1, 1_024, "contexts"), "8", "Live contexts in one session"),
    key(
        "stream.frame_bytes_max",
        count(1_024, 16_777_216, "bytes"),
        "65536",
        "Longest WebSocket frame from a client",
    ),
    key(
        "stream.message_bytes_max",
        count(1_024, 16_777_216, "bytes"),
        "262144",
        "Longest WebSocket message from a client",
    ),
    key("stream.lead_ms", count(100, 60_000, "ms"), "3000", "Audio sent ahead of the playback clock"),
    key(
        "stream.unreported_lead_ms",
        count(100, 600_000, "ms"),
        "10000",
        "The same for clients of protocols that report no playback, and buffer for themselves",
    ),
    key(
        "stream.resume_window_ms",
        count(0, 60_000, "ms"),
        "10000",
        "How long a session whose socket was lost stays",
    ),
    key("stream.idle_ms", count(1_000, 3_600_000, "ms"), "120000", "Silence after which a session is closed"),
    key(
        "stream.context_idle_ms",
        count(1_000, 3_600_000, "ms"),
        "60000",
        "Silence after which a context without an end ends as idle",
    ),
    key(
        "stream.send_buffer_bytes",
        count(4_096, 4_194_304, "bytes"),
        "65536",
        "Kernel send buffer of a connection",
    ),
    key(
        "stream.write_buffer_bytes",
        count(4_096, 4_194_304, "bytes"),
        "65536",
        "Data waiting for a socket that does not take it",
    ),
    key(
        "stream.slow_reader_ms",
        count(100, 600_000, "ms"),
        "10000",
        "How long sent data may go untaken before close 4499",
    ),
    key(
        "voices.folder",
        Kind::Text("a folder's path; empty keeps none"),
        "",
        "Where clients' voices are kept, and what was made of them; several processes may share it",
    ),
    key("voices.per_tenant_max", count(0, 100_000, "voices"), "100", "Voices one tenant may keep"),
    key(
        "voices.lexicons",
        Kind::Text("a folder's path; empty is none"),
        "",
        "How tenants say single words: TENANT.toml and default.toml, each of lines word = \"respelling\"",
    ),
    key(
        "voices.upload_bytes_max",
        count(1_024, 67_108_864, "bytes"),
        "10485760",
        "Longest file of a reference clip",
    ),
    key(
        "opus.threads",
        count(0, 64, "threads"),
        "0",
        "Threads that encode Opus; 0 takes three for every four cores, one for every two where engine.device is a CPU",
    ),
    key("opus.bitrate_bps", count(6_000, 510_000, "bit/s"), "32000", "Bit rate of Opus"),
    key("opus.complexity", count(0, 10, "steps"), "5", "Effort of the Opus encoder: 0 cheapest, 10 best"),
    key(
        "log.usage",
        Kind::Text("a file's path; empty is none"),
        "",
        "Usage log: one JSON object a line for everything spoken, appended",
    ),
    key(
        "log.filter",
        Kind::Text("a level, or target=level pairs"),
        "info,symphonia=error",
        "What is logged: error, warn, info, debug, trace",
    ),
    key("log.format", Kind::Choice(&["text", "json"]), "text", "Form of a log line"),
];

impl Key {
    /// The environment variable that sets this key.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("VOXLANE_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    pub(crate) fn default_value(&self) -> Result<Value, String> {
        self.kind.read(self.default)
    }
}

impl Kind {
    /// What is allowed, for people.
    #[must_use]
    pub fn expected(self) -> String {
        match self {
            Self::Address => "an address and port such as \"127.0.0.1:8080\"".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Count { min, max, unit } => format!("a whole number of {unit}, {min} to {max}"),
            Self::List(what) => format!("a list of {what}"),
            Self::Secret(what) => format!("{what}, from the environment"),
            Self::Text(what) => what.to_owned(),
        }
    }

    /// Reads a value written as plain text (environment, flags, defaults).
    pub(crate) fn read(self, text: &str) -> Result<Value, String> {
        let value = match self {
            Self::Bool => text.parse().map(Value::Bool).map_err(|_| text.to_owned())?,
            Self::Count { .. } => text.parse().map(Value::Count).map_err(|_| text.to_owned())?,
            Self::List(_) => {
                let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
                Value::List(entries.map(str::to_owned).collect())
            }
            Self::Secret(_) => Value::Secret(text.to_owned()),
            Self::Address | Self::Choice(_) | Self::Text(_) => Value::Text(text.to_owned()),
        };
        self.check(value)
    }

    /// Reads a value of a TOML file.
    pub(crate) fn take(self, value: &toml::Value) -> Result<Value, String> {
        let shown = || value.to_string();
        let taken = match (self, value) {
            (Self::Bool, toml::Value::Boolean(value)) => Value::Bool(*value),
            (Self::Count { .. }, toml::Value::Integer(value)) => {
                Value::Count(u64::try_from(*value).map_err(|_| shown())?)
            }
            (Self::Address | Self::Choice(_) | Self::Text(_), toml::Value::String(text)) => {
                Value::Text(text.clone())
            }
            (Self::List(_), toml::Value::Array(entries)) => {
                let texts = entries.iter().map(|entry| entry.as_str().map(str::to_owned));
                Value::List(texts.collect::<Option<Vec<_>>>().ok_or_else(shown)?)
            }
            // An empty one says that there is none.
            (Self::Secret(_), toml::Value::String(text)) if text.is_empty() => Value::Secret(String::new()),
            (Self::Secret(_), _) => return Err("set in the file".to_owned()),
            _ => return Err(shown()),
        };
        self.check(taken)
    }

    fn check(self, value: Value) -> Result<Value, String> {
        let holds = match (self, &value) {
            (Self::Address, Value::Text(text)) => text.parse::<std::net::SocketAddr>().is_ok(),
            (Self::Choice(words), Value::Text(text)) => words.contains(&text.as_str()),
            (Self::Count { min, max, .. }, Value::Count(count)) => (min..=max).contains(count),
            (Self::Bool, Value::Bool(_))
            | (Self::List(_), Value::List(_))
            | (Self::Secret(_), Value::Secret(_))
            | (Self::Text(_), Value::Text(_)) => true,
            _ => false,
        };
        if holds { Ok(value) } else { Err(value.to_string()) }
    }
}
