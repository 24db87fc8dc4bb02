//! A key set at a URL: fetched now and then, and when a token names a key that is not in it.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use contract::{Span, Tick};
use tokio::sync::Mutex;

use super::keys::{FILE_BYTES_MAX, KeySet};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Least time between two fetches, whatever makes them: strangers' tokens cannot make us flood the service.
const ATTEMPT_EVERY: Span = Span::from_millis(10_000);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Remote {
    url: String,
    client: reqwest::Client,
    refresh: Duration,
    max_age: Span,
    set: RwLock<Option<Fetched>>,
    /// When the last fetch began. Held while one runs, so that all who wait share it.
    attempt: Mutex<Option<Tick>>,
}

struct Fetched {
    keys: KeySet,
    at: Tick,
}

impl Remote {
    /// # Errors
    /// A URL that others on the way could answer for.
    pub(crate) fn new(url: &str, refresh: Duration, max_age: Duration) -> Result<Self, String> {
        let parsed = reqwest::Url::parse(url).map_err(|error| format!("this is no URL: {error}"))?;
        let local = parsed.host_str().is_some_and(crate::http::is_loopback);
        if parsed.scheme() != "https" && !(parsed.scheme() == "http" && local) {
            return Err("a key set is fetched by https, or by http from loopback only".to_owned());
        }
        let client = reqwest::Client::builder()
            .timeout(FETCH_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("voxlane/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("no TLS client: {error}"))?;
        let max_age = Span::from_micros(i64::try_from(max_age.as_micros()).unwrap_or(i64::MAX));
        let (set, attempt) = (RwLock::new(None), Mutex::new(None));
        Ok(Self { url: url.to_owned(), client, refresh, max_age, set, attempt })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The keys, unless there are none yet or they are too old to trust.
    pub(crate) fn keys(&self, now: Tick) -> Option<KeySet> {
        let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
        set.as_ref()
            .filter(|fetched| now.since(fetched.at) < self.max_age)
            .map(|fetched| fetched.keys.clone())
    }

    /// Fetches because the time has come; says when to come again.
    pub(crate) async fn refresh(&self, clock: Clock, metrics: &Metrics) -> Duration {
        let mut attempt = self.attempt.lock().await;
        *attempt = Some(clock.now());
        let fetched = self.fetch(clock, metrics).await;
        let soon = Duration::from_micros(ATTEMPT_EVERY.as_micros().unsigned_abs());
        if fetched { self.refresh } else { self.refresh.min(soon) }
    }

    /// Fetches because a token names an unknown key: at most once in 10 s, whoever asks and how often.
    pub(crate) async fn refresh_unknown(&self, clock: Clock, metrics: &Metrics) {
        let mut attempt = self.attempt.lock().await;
        let now = clock.now();
        if attempt.is_some_and(|last| now.since(last) < ATTEMPT_EVERY) {
            return;
        }
        *attempt = Some(now);
        self.fetch(clock, metrics).await;
    }

    async fn fetch(&self, clock: Clock, metrics: &Metrics) -> bool {
        match self.download().await.and_then(|json| KeySet::jwks(&json, false)) {
            Ok(keys) => {
                metrics.key_set_fetched("done");
                let fetched = Fetched { keys, at: clock.now() };
                *self.set.write().unwrap_or_else(PoisonError::into_inner) = Some(fetched);
                true
            }
            Err(error) => {
                metrics.key_set_fetched("failed");
                tracing::warn!(
                    error,
                    "the key set cannot be fetched; the last good one serves until its age ends"
                );
                false
            }
        }
    }

    async fn download(&self) -> Result<Vec<u8>, String> {
        // The library's texts hold the URL, which may hold a secret.
        let failed = |error: reqwest::Error| error.without_url().to_string();
        let mut answer = self.client.get(&self.url).send().await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(format!("status {}", answer.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            if (body.len() + piece.len()) as u64 > FILE_BYTES_MAX {
                return Err(format!("the key set is longer than {FILE_BYTES_MAX} bytes"));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }
}
