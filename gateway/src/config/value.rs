//! A configured value before it has a type of its own.

use std::fmt;

/// What a key can hold.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Count(u64),
    List(Vec<String>),
    /// Never shown, and no part of the configuration's hash.
    Secret(String),
    Text(String),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Value {
    /// As TOML writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Count(value) => write!(f, "{value}"),
            Self::List(values) => {
                let values = values.iter().cloned().map(toml::Value::String).collect();
                write!(f, "{}", toml::Value::Array(values))
            }
            // As a file may hold it: its origin tells that there is one.
            Self::Secret(_) => write!(f, "\"\""),
            Self::Text(value) => write!(f, "{}", toml::Value::String(value.clone())),
        }
    }
}
