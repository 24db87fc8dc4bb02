//! A configured value before it has a type of its own.

use std::fmt;

/// What a key can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Count(u64),
    Text(String),
}

impl fmt::Display for Value {
    /// As TOML writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Count(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{}", toml::Value::String(value.clone())),
        }
    }
}
