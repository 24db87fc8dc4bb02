//! A key set at a URL: fetched now and then, and when a token names a key that is not in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use contract::{Span, Tick};
use tokio::sync::watch;

use super::keys::{FILE_BYTES_MAX, KeySet};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Least time between two fetches, whatever makes them: strangers' tokens cannot make us flood the service.
pub(super) const ATTEMPT_EVERY: Span = Span::from_millis(10_000);
/// A whole fetch, and with it the longest that a token waits for one.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Remote {
    url: String,
    client: reqwest::Client,
    refresh: Duration,
    max_age: Span,
    set: RwLock<Option<Fetched>>,
    attempts: Mutex<Attempts>,
}

#[derive(Clone)]
struct Fetched {
    keys: KeySet,
    at: Tick,
}

#[derive(Default)]
struct Attempts {
    /// When the last one began.
    begun: Option<Tick>,
    /// Whether the last one that has ended brought a set.
    answered: bool,
    /// Closes when the one that runs ends. All who wait share it.
    running: Option<watch::Receiver<()>>,
}

impl Remote {
    /// # Errors
    /// A URL that others on the way could answer for, or a set that would be too old before it is fetched again.
    pub(crate) fn new(url: &str, refresh: Duration, max_age: Duration) -> Result<Self, String> {
        let parsed = reqwest::Url::parse(url).map_err(|error| format!("this is no URL: {error}"))?;
        let local = parsed.host_str().is_some_and(crate::http::is_loopback);
        if parsed.scheme() != "https" && !(parsed.scheme() == "http" && local) {
            return Err("a key set is fetched by https, or by http from loopback only".to_owned());
        }
        if max_age <= refresh {
            return Err("its auth.jwks_max_age_ms must be longer than auth.jwks_refresh_ms".to_owned());
        }
        let client = reqwest::Client::builder()
            .timeout(FETCH_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("voxlane/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("no TLS client: {error}"))?;
        let max_age = Span::from_micros(i64::try_from(max_age.as_micros()).unwrap_or(i64::MAX));
        let (set, attempts) = (RwLock::new(None), Mutex::new(Attempts::default()));
        Ok(Self { url: url.to_owned(), client, refresh, max_age, set, attempts })
    }

    /// With what another configuration's fetches of the same URL have brought.
    pub(crate) fn following(self, before: &Self) -> Self {
        if self.url == before.url {
            self.set(before.fetched());
            let before = before.attempts();
            let attempts = Attempts { begun: before.begun, answered: before.answered, running: None };
            drop(before);
            *self.attempts() = attempts;
        }
        self
    }

    /// The keys, unless there are none yet or they are too old to trust.
    pub(crate) fn keys(&self, now: Tick) -> Option<KeySet> {
        self.fetched().filter(|fetched| now.since(fetched.at) < self.max_age).map(|fetched| fetched.keys)
    }

    /// Whether the service answered when it was last asked: what it has not told then, there is not.
    pub(crate) fn answers(&self) -> bool {
        self.attempts().answered
    }

    /// Fetches because the time has come; says when to come again.
    pub(crate) async fn refresh(self: &Arc<Self>, clock: Clock, metrics: &Metrics) -> Duration {
        let running = self.begin(clock, metrics);
        ended(running).await;
        let soon = Duration::from_micros(ATTEMPT_EVERY.as_micros().unsigned_abs());
        if self.answers() { self.refresh } else { self.refresh.min(soon) }
    }

    /// Fetches because a token names an unknown key: at most once in 10 s, whoever asks and how often. Ends
    /// when the fetch does.
    pub(crate) async fn refresh_unknown(self: &Arc<Self>, clock: Clock, metrics: &Metrics) {
        let recent = {
            let attempts = self.attempts();
            let recent = attempts.begun.is_some_and(|begun| clock.now().since(begun) < ATTEMPT_EVERY);
            recent.then(|| attempts.running.clone())
        };
        match recent {
            Some(None) => {}
            Some(Some(running)) => ended(running).await,
            None => ended(self.begin(clock, metrics)).await,
        }
    }

    /// Begins a fetch, unless one runs. It has a task of its own: whoever waits for it may hang up, and others
    /// wait for the same one.
    fn begin(self: &Arc<Self>, clock: Clock, metrics: &Metrics) -> watch::Receiver<()> {
        let mut attempts = self.attempts();
        // One whose task is gone has ended, whatever way.
        if let Some(running) = attempts.running.as_ref().filter(|running| running.has_changed().is_ok()) {
            return running.clone();
        }
        let (end, running) = watch::channel(());
        attempts.begun = Some(clock.now());
        attempts.running = Some(running.clone());
        let (remote, metrics) = (Arc::clone(self), metrics.clone());
        tokio::spawn(async move {
            let answered = remote.fetch(clock, &metrics).await;
            let mut attempts = remote.attempts();
            attempts.answered = answered;
            attempts.running = None;
            // Under the lock, so that nobody begins another before everyone knows of this one's end.
            drop(end);
        });
        running
    }

    async fn fetch(&self, clock: Clock, metrics: &Metrics) -> bool {
        match self.download().await.and_then(|json| KeySet::jwks(&json, false)) {
            Ok(keys) => {
                metrics.key_set_fetched("done");
                self.set(Some(Fetched { keys, at: clock.now() }));
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

    fn fetched(&self) -> Option<Fetched> {
        self.set.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, fetched: Option<Fetched>) {
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = fetched;
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
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

async fn ended(mut running: watch::Receiver<()>) {
    // Nothing is ever sent: it only closes.
    while running.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_reload_keeps_what_the_same_url_has_brought_and_takes_up_its_new_ages() {
        let make = |url: &str, max_age| Remote::new(url, MINUTE, max_age).expect("a URL");
        let before = make("https://a.example/keys", MINUTE * 10);
        before
            .set(Some(Fetched { keys: KeySet::secret(&[7; 32]).expect("a key"), at: Tick::from_millis(0) }));
        *before.attempts() = Attempts { begun: Some(Tick::from_millis(0)), answered: true, running: None };
        let (soon, late) = (Tick::from_millis(60_000), Tick::from_millis(300_000));
        let same = make("https://a.example/keys", MINUTE * 2).following(&before);
        assert!(same.keys(soon).is_some() && same.answers(), "nobody waits for a fetch after a reload");
        assert!(same.keys(late).is_none() && before.keys(late).is_some(), "its own age holds");
        let other = make("https://b.example/keys", MINUTE * 10).following(&before);
        assert!(other.keys(soon).is_none() && !other.answers(), "another's keys are not trusted");
    }

    #[test]
    fn a_set_that_would_be_too_old_before_it_is_fetched_again_is_refused() {
        assert!(Remote::new("https://a.example/keys", MINUTE, MINUTE).is_err());
        assert!(Remote::new("https://a.example/keys", MINUTE, MINUTE + Duration::from_millis(1)).is_ok());
    }
}
