//! Somebody who has been let in.

use std::sync::Arc;

/// What a token allows. `admin` allows everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Speak,
    Voices,
    Observe,
    Admin,
}

/// A set of [`Scope`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scopes(u8);

/// Subject, tenant and scopes of one token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Principal {
    pub(crate) subject: Arc<str>,
    /// Whose voices, quotas and share of an overload these are.
    pub(crate) tenant: Arc<str>,
    pub(crate) scopes: Scopes,
    /// Seconds since 1970; `None` never ends.
    pub(crate) expires: Option<u64>,
    pub(crate) kind: Kind,
}

/// What the principal came with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Nothing: the server is open.
    Open,
    ApiKey,
    Token,
    /// Made here for a browser; it may not make another.
    ClientSecret {
        session: Option<Arc<serde_json::Value>>,
    },
}

impl Scope {
    const ALL: [Self; 4] = [Self::Speak, Self::Voices, Self::Observe, Self::Admin];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Speak => "speak",
            Self::Voices => "voices",
            Self::Observe => "observe",
            Self::Admin => "admin",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

impl Scopes {
    pub(crate) const ALL: Self = Self(0b1111);

    pub(crate) fn with(self, scope: Scope) -> Self {
        Self(self.0 | 1 << scope as u8)
    }

    pub(crate) fn allow(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8 | 1 << Scope::Admin as u8) != 0
    }

    /// The names, separated by spaces as the claim `scope` has them (RFC 8693 section 4.2).
    pub(crate) fn names(self) -> String {
        let held = Scope::ALL.into_iter().filter(|scope| self.0 & (1 << *scope as u8) != 0);
        held.map(Scope::name).collect::<Vec<_>>().join(" ")
    }
}

impl<'a> FromIterator<&'a str> for Scopes {
    /// Names of other services' scopes are passed over.
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        names.into_iter().filter_map(Scope::named).fold(Self::default(), Self::with)
    }
}

impl Principal {
    pub(crate) fn open() -> Self {
        Self {
            subject: Arc::from("open"),
            tenant: Arc::from("open"),
            scopes: Scopes::ALL,
            expires: None,
            kind: Kind::Open,
        }
    }

    /// The tenant as the scheduler's fairness group: 32-bit FNV-1a of its name. Two tenants that meet in
    /// one number share one share, and nothing else.
    pub(crate) fn group(&self) -> u32 {
        match self.kind {
            Kind::Open => 0,
            _ => self
                .tenant
                .bytes()
                .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)),
        }
    }

    /// Tells principals apart where something of one must not be reached by another.
    pub(crate) fn owner(&self) -> String {
        format!("{}\n{}", self.tenant, self.subject)
    }
}

/// Whether a tenant or subject may go by this name: it stands in logs and manifests.
pub(crate) fn is_name(text: &str) -> bool {
    // Marks that turn the writing direction make a line of a log read as another.
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (1..=128).contains(&text.chars().count()) && !text.chars().any(|c| c.is_control() || turns(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_a_set_and_admin_is_all_of_them() {
        let scopes: Scopes = "speak profile voices".split(' ').collect();
        assert!(scopes.allow(Scope::Speak) && scopes.allow(Scope::Voices));
        assert!(!scopes.allow(Scope::Observe) && !scopes.allow(Scope::Admin));
        assert_eq!(scopes.names(), "speak voices");
        let admin: Scopes = ["admin"].into_iter().collect();
        assert!(Scope::ALL.into_iter().all(|scope| admin.allow(scope)));
        assert!(Scope::ALL.into_iter().all(|scope| !Scopes::default().allow(scope)));
    }
}
