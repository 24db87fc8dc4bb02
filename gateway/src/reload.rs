//! What can change while the server runs: keys, origins, hosts, proxies, the certificate, quotas, lexicons and the log.

use std::sync::Arc;

use crate::app::App;
use crate::auth::Policy;
use crate::config::{Config, ConfigError};
use crate::tls::Tls;

/// Applies configurations to a running server.
#[derive(Clone)]
pub struct Reloader {
    app: Arc<App>,
    tls: Option<Arc<Tls>>,
}

impl Reloader {
    pub(crate) fn new(app: Arc<App>, tls: Option<Arc<Tls>>) -> Self {
        Self { app, tls }
    }

    /// Takes over what can change and says what would need a restart. Nothing changes unless everything
    /// can be read.
    ///
    /// # Errors
    /// [`ConfigError`] as at start; the server goes on as before.
    pub fn reload(&self, config: &Config) -> Result<(), ConfigError> {
        let before = self.app.auth.policy();
        let policy = Policy::load(config, Some(&before))?;
        // A file that was half written, or whose keys were moved: behind a proxy even loopback is everybody.
        if policy.open && !before.open {
            return Err(ConfigError::Opens);
        }
        let lexicons = crate::lexicons::Set::load(&config.voices)?;
        if let Some(tls) = &self.tls {
            tls.reload(config)?;
        }
        self.app.auth.replace(policy);
        self.app.lexicons.replace(lexicons);
        if let Some(voices) = &self.app.voices {
            voices.set_quota(config.voices.per_tenant_max);
        }
        self.app.quotas.set(config.quotas);
        self.app.usage.reopen();
        crate::logs::set_filter(&config.log.filter);
        if let Some(section) = self.needs_restart(config) {
            tracing::warn!(section, "the configuration has changed where only a restart takes it up");
        }
        tracing::info!("reloaded: keys, origins, hosts, proxies, certificate, quotas, lexicons, log level");
        Ok(())
    }

    /// The first section that differs beyond what a reload takes up.
    fn needs_restart(&self, config: &Config) -> Option<&'static str> {
        let mut taken = self.app.config.clone();
        taken.auth = config.auth.clone();
        taken.server.hosts.clone_from(&config.server.hosts);
        taken.server.trusted_proxies.clone_from(&config.server.trusted_proxies);
        taken.server.tls = config.server.tls.clone();
        taken.quotas = config.quotas;
        taken.voices.lexicons.clone_from(&config.voices.lexicons);
        taken.voices.per_tenant_max = config.voices.per_tenant_max;
        taken.log.filter.clone_from(&config.log.filter);
        [
            (taken.server != config.server, "server"),
            (taken.engine != config.engine, "engine"),
            (taken.stream != config.stream, "stream"),
            (taken.voices != config.voices, "voices"),
            (taken.opus != config.opus, "opus"),
            (taken.log != config.log, "log"),
        ]
        .into_iter()
        .find_map(|(differs, section)| differs.then_some(section))
    }
}
