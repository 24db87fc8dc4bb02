//! One kept voice, and who may see it.

use contract::CloneMode;
use serde::{Deserialize, Serialize};

use crate::auth::{Principal, Scope};

/// What the manifest holds of a voice. The clip lies in a file of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) tenant: String,
    /// Who brought it.
    pub(crate) subject: String,
    pub(crate) sharing: Sharing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) language: Option<String>,
    /// The exact words of the clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transcript: Option<String>,
    pub(crate) mode: Mode,
    /// What the speaker agreed to, in words, as given with the clip.
    pub(crate) consent: String,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    pub(crate) rate_hz: u32,
    pub(crate) samples: u32,
    /// Of the clip's file, in hexadecimal.
    pub(crate) sha256: String,
}

/// Who beside its bringer may speak with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sharing {
    /// Nobody.
    Subject,
    #[default]
    Tenant,
    /// Every tenant of this server; only an admin may share so.
    Everyone,
}

/// How the clip conditions a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    InContext,
    Speaker,
}

/// Somebody who looks for voices.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    pub(crate) tenant: String,
    pub(crate) subject: String,
    pub(crate) admin: bool,
}

impl Viewer {
    pub(crate) fn of(principal: &Principal) -> Self {
        Self {
            tenant: principal.tenant.to_string(),
            subject: principal.subject.to_string(),
            admin: principal.scopes.allow(Scope::Admin),
        }
    }

    /// Whether this is theirs to delete.
    pub(crate) fn owns(&self, record: &Record) -> bool {
        let theirs = record.tenant == self.tenant;
        theirs && (self.admin || record.sharing != Sharing::Subject || record.subject == self.subject)
    }

    /// Whether they may speak with it.
    pub(crate) fn sees(&self, record: &Record) -> bool {
        record.sharing == Sharing::Everyone || self.owns(record)
    }
}

impl From<Mode> for CloneMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::InContext => Self::InContext,
            Mode::Speaker => Self::Speaker,
        }
    }
}

impl From<CloneMode> for Mode {
    fn from(mode: CloneMode) -> Self {
        match mode {
            CloneMode::InContext => Self::InContext,
            CloneMode::Speaker => Self::Speaker,
        }
    }
}
