//! Who may come in, as configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Resolved;

/// Where keys come from and what tokens must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    /// From the environment; [`AuthConfig::secret_file`] is read by the key loader.
    pub secret: Option<Secret>,
    pub secret_file: Option<PathBuf>,
    pub public_keys: Vec<PathBuf>,
    pub jwks_file: Option<PathBuf>,
    pub jwks_url: Option<String>,
    pub jwks_refresh: Duration,
    pub jwks_max_age: Duration,
    pub api_keys_file: Option<PathBuf>,
    pub issuer: String,
    pub audience: String,
    pub tenant_claim: String,
    pub leeway_s: u64,
    pub token_grace: Duration,
    pub origins: Vec<String>,
}

/// A secret that no log or error shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(value)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl AuthConfig {
    /// Whether anything is named that could let somebody in: without it, everybody is.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.secret.is_some()
            || self.secret_file.is_some()
            || !self.public_keys.is_empty()
            || self.jwks_file.is_some()
            || self.jwks_url.is_some()
            || self.api_keys_file.is_some()
    }
}

impl Resolved {
    pub(super) fn auth(&self) -> AuthConfig {
        let path = |name| Some(self.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let secret = self.secret("auth.secret");
        AuthConfig {
            secret: (!secret.is_empty()).then(|| Secret::new(secret.to_owned())),
            secret_file: path("auth.secret_file"),
            public_keys: self.list("auth.public_keys").iter().map(PathBuf::from).collect(),
            jwks_file: path("auth.jwks_file"),
            jwks_url: Some(self.text("auth.jwks_url")).filter(|url| !url.is_empty()).map(str::to_owned),
            jwks_refresh: self.millis("auth.jwks_refresh_ms"),
            jwks_max_age: self.millis("auth.jwks_max_age_ms"),
            api_keys_file: path("auth.api_keys_file"),
            issuer: self.text("auth.issuer").to_owned(),
            audience: self.text("auth.audience").to_owned(),
            tenant_claim: self.text("auth.tenant_claim").to_owned(),
            leeway_s: self.count("auth.leeway_s"),
            token_grace: self.millis("auth.token_grace_ms"),
            origins: self.list("auth.origins").to_vec(),
        }
    }
}
