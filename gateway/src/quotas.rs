//! What each tenant may ask for in a minute, over all of its connections to this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::Tick;
use proto::quota::{Level, Meter, Quotas, Rates};
use proto::wire::WireError;

/// Tenants whose use is remembered at once; from here on, those who have used nothing for a minute are
/// forgotten at each newcomer.
const TENANTS_MAX: usize = 4_096;

/// The quotas in force and what has been used of them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    rates: Rates,
    tenants: BTreeMap<Arc<str>, Meter>,
}

/// The quotas of one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) tenant: Arc<str>,
}

impl Ledger {
    /// What has been used stays used.
    pub(crate) fn set(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    fn with<T>(&self, tenant: &Arc<str>, now: Tick, act: impl FnOnce(&mut Meter, Rates) -> T) -> T {
        let mut inner = self.lock();
        let Inner { rates, tenants } = &mut *inner;
        if *rates == Rates::default() {
            // Nobody is counted where nothing is bounded.
            return act(&mut Meter::default(), *rates);
        }
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            tenants.retain(|_, meter| !meter.is_full(now));
        }
        act(tenants.entry(Arc::clone(tenant)).or_default(), *rates)
    }

    /// Whoever panicked with it left whole entries.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quotas for Share {
    fn begin(&self, now: Tick) -> Result<(), WireError> {
        self.ledger.with(&self.tenant, now, |meter, rates| meter.begin(now, rates))
    }

    fn take_characters(&self, now: Tick, characters: u64) {
        self.ledger.with(&self.tenant, now, |meter, rates| meter.take_characters(now, rates, characters));
    }

    fn levels(&self, now: Tick) -> Vec<Level> {
        self.ledger.with(&self.tenant, now, |meter, rates| meter.levels(now, rates))
    }
}

#[cfg(test)]
mod tests {
    use contract::Span;

    use super::*;

    #[test]
    fn tenants_are_counted_apart_and_those_with_nothing_used_are_forgotten() {
        let ledger = Arc::new(Ledger::default());
        let share = |name: &str| Share { ledger: Arc::clone(&ledger), tenant: Arc::from(name) };
        for _ in 0..10 {
            share("anybody").begin(Tick::ZERO).expect("no quota");
        }
        ledger.set(Rates { requests: 1, characters: 0 });
        for tenant in 0..TENANTS_MAX {
            share(&tenant.to_string()).begin(Tick::ZERO).expect("its first");
        }
        assert!(share("0").begin(Tick::ZERO).is_err() && share("new").begin(Tick::ZERO).is_ok());
        share("later").begin(Tick::ZERO + Span::from_millis(60_000)).expect("its first");
        assert_eq!(ledger.lock().tenants.len(), 1, "the others are as good as new");
    }
}
