//! Everything the door decides by, built from the configuration at once: at start, and again at a reload.

use std::sync::Arc;

use super::api_keys::ApiKeys;
use super::claims::{Refusal, Rules, principal, verify};
use super::client_secret::{self, Minter};
use super::keys::{self, KeySet};
use super::origins::Origins;
use super::principal::Principal;
use super::remote::Remote;
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::metrics::Metrics;
use crate::proxies::Proxies;

pub(crate) struct Policy {
    /// No keys: everybody may come in.
    pub(crate) open: bool,
    pub(crate) origins: Origins,
    pub(crate) proxies: Proxies,
    pub(crate) remote: Option<Arc<Remote>>,
    pub(crate) minter: Minter,
    pub(crate) leeway_s: u64,
    api_keys: ApiKeys,
    keys: KeySet,
    rules: Rules,
}

impl Policy {
    /// Lets everybody in: for what serves nobody.
    ///
    /// # Errors
    /// When the operating system has no random bytes.
    pub(crate) fn everybody() -> std::io::Result<Self> {
        let rules = Rules {
            issuer: String::new(),
            audience: String::new(),
            tenant_claim: String::new(),
            leeway_s: 0,
        };
        Ok(Self {
            open: true,
            origins: Origins::open(),
            proxies: Proxies::default(),
            remote: None,
            minter: Minter::new(None, 0)?,
            leeway_s: 0,
            api_keys: ApiKeys::default(),
            keys: KeySet::default(),
            rules,
        })
    }

    /// Reads every key the configuration names. `before` lends its fetched key set if the URL is the same.
    ///
    /// # Errors
    /// [`ConfigError::Unusable`] naming the key at fault.
    pub(crate) fn load(config: &Config, before: Option<&Self>) -> Result<Self, ConfigError> {
        let auth = &config.auth;
        let unusable = |key: &'static str| move |what: String| ConfigError::Unusable { key, what };
        let mut found = KeySet::default();
        let secret = match (&auth.secret, &auth.secret_file) {
            (Some(_), Some(_)) => {
                let what = "is given beside auth.secret_file; keep one of them".to_owned();
                return Err(ConfigError::Unusable { key: "auth.secret", what });
            }
            (Some(secret), None) => Some(secret.bytes().to_vec()),
            (None, Some(path)) => {
                let bytes = keys::file(path).map_err(unusable("auth.secret_file"))?;
                Some(keys::trimmed(&bytes).to_vec())
            }
            (None, None) => None,
        };
        if let Some(secret) = &secret {
            found.add(KeySet::secret(secret).map_err(unusable("auth.secret"))?);
        }
        for path in &auth.public_keys {
            let read = keys::file(path)
                .and_then(|pem| KeySet::pem(&pem).map_err(|what| format!("{}: {what}", path.display())));
            found.add(read.map_err(unusable("auth.public_keys"))?);
        }
        if let Some(path) = &auth.jwks_file {
            let read = keys::file(path).and_then(|json| KeySet::jwks(&json, true));
            found.add(read.map_err(unusable("auth.jwks_file"))?);
        }
        let api_keys = match &auth.api_keys_file {
            None => ApiKeys::default(),
            Some(path) => {
                let text = keys::file(path).map_err(unusable("auth.api_keys_file"))?;
                let text = String::from_utf8(text)
                    .map_err(|_| unusable("auth.api_keys_file")("is not UTF-8".to_owned()))?;
                ApiKeys::read(&text).map_err(unusable("auth.api_keys_file"))?
            }
        };
        let remote = match &auth.jwks_url {
            None => None,
            Some(url) => {
                let made = Remote::new(url, auth.jwks_refresh, auth.jwks_max_age);
                let made = made.map_err(unusable("auth.jwks_url"))?;
                Some(Arc::new(match before.and_then(|before| before.remote.as_deref()) {
                    Some(before) => made.following(before),
                    None => made,
                }))
            }
        };
        let open = !auth.has_keys();
        if !open && found.is_empty() && api_keys.is_empty() && remote.is_none() {
            let what = "holds no key: nobody could come in".to_owned();
            return Err(ConfigError::Unusable { key: "auth.api_keys_file", what });
        }
        let origins =
            Origins::new(&auth.origins, &config.server.hosts, open).map_err(unusable("auth.origins"))?;
        let proxies =
            Proxies::new(&config.server.trusted_proxies).map_err(unusable("server.trusted_proxies"))?;
        let minter = Minter::new(secret.as_deref(), auth.leeway_s)
            .map_err(|error| unusable("auth.secret")(error.to_string()))?;
        let rules = Rules {
            issuer: auth.issuer.clone(),
            audience: auth.audience.clone(),
            tenant_claim: auth.tenant_claim.clone(),
            leeway_s: auth.leeway_s,
        };
        Ok(Self {
            open,
            origins,
            proxies,
            remote,
            minter,
            leeway_s: auth.leeway_s,
            api_keys,
            keys: found,
            rules,
        })
    }

    /// Who carries this token, now.
    ///
    /// # Errors
    /// Why nobody does.
    pub(crate) async fn admit(
        &self,
        token: &str,
        clock: Clock,
        metrics: &Metrics,
    ) -> Result<Principal, Refusal> {
        if let Some(principal) = self.api_keys.find(token) {
            return Ok(principal.clone());
        }
        let now = crate::clock::unix_seconds();
        if token.starts_with(client_secret::PREFIX) {
            return self.minter.verify(token, now);
        }
        let judged = self.judge(token, clock, now);
        match (&self.remote, judged) {
            (Some(remote), Err(Refusal::UnknownKey)) => {
                remote.refresh_unknown(clock, metrics).await;
                match self.judge(token, clock, now) {
                    // Nobody can say whether there is such a key.
                    Err(Refusal::UnknownKey) if !remote.answers() => Err(Refusal::KeysUnreachable),
                    judged => judged,
                }
            }
            (_, judged) => judged,
        }
    }

    fn judge(&self, token: &str, clock: Clock, now: u64) -> Result<Principal, Refusal> {
        let mut keys = self.keys.clone();
        if let Some(fetched) = self.remote.as_ref().and_then(|remote| remote.keys(clock.now())) {
            keys.add(fetched);
        }
        let claims = verify(token, &keys, &self.rules, now)?;
        principal(&claims, &self.rules.tenant_claim)
    }

    /// Whether a token could be taken at all; if not, why not yet.
    pub(crate) fn waits_for(&self, clock: Clock) -> Option<&'static str> {
        let remote = self.remote.as_ref()?;
        let others = !self.keys.is_empty() || !self.api_keys.is_empty();
        (!others && remote.keys(clock.now()).is_none())
            .then_some("no key set could be fetched from auth.jwks_url")
    }
}
