//! Who may come in, and as whom (docs/security.md).
//!
//! A request carries at most one token: a static key, a JWT of a known key, or a client secret made here.
//! Each becomes a [`Principal`]: subject, tenant, scopes, and when it ends. A server without keys is open:
//! everybody is the same principal, and only loopback is served.

mod api_keys;
mod claims;
mod client_secret;
mod credentials;
mod door;
mod end;
mod keys;
mod origins;
mod policy;
mod principal;
mod remote;

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Notify;

pub(crate) use client_secret::create as create_client_secret;
pub(crate) use door::{Caller, cross_origin, door};
pub(crate) use end::TokenEnd;
pub(crate) use keys::{file as key_file, signing_key};
pub(crate) use policy::Policy;
pub(crate) use principal::{Kind, Principal, Scope, Scopes, is_name};

use crate::app::App;
use crate::clock::Clock;

/// The policy in force. A reload replaces it whole; a request keeps the one it began with.
pub(crate) struct Auth {
    policy: RwLock<Arc<Policy>>,
    replaced: Notify,
}

impl Auth {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy: RwLock::new(Arc::new(policy)), replaced: Notify::new() }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        // Whoever is not waiting reads the new policy anyway.
        self.replaced.notify_waiters();
    }
}

/// Keeps the key set of the configured URL fresh, for as long as the process serves.
pub(crate) async fn keep_fresh(app: Arc<App>) {
    loop {
        // Before the policy is read, so that none can be replaced unseen.
        let replaced = app.auth.replaced.notified();
        let policy = app.auth.policy();
        let again = async {
            match &policy.remote {
                Some(remote) => tokio::time::sleep(remote.refresh(app.clock, &app.metrics).await).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = again => {}
            () = replaced => {}
        }
    }
}

/// The tick at which a token with this `exp` is no longer taken, seen from both clocks now.
pub(crate) fn end_tick(clock: Clock, exp: u64, leeway_s: u64) -> contract::Tick {
    let left = exp.saturating_add(leeway_s).saturating_sub(crate::clock::unix_seconds());
    let left = i64::try_from(left.saturating_mul(1_000)).unwrap_or(i64::MAX / 1_000_000);
    clock.now() + contract::Span::from_millis(left.min(1_000 * 3_600 * 24 * 366))
}
