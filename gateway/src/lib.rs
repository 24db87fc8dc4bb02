//! The gateway: sockets, HTTP, configuration and the command line around the pure parts in `proto`,
//! `codecs` and an engine behind [`contract::EngineHandle`] (DESIGN.md sections 2, 3 and 7).

pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod pull;

mod admin;
mod app;
mod auth;
mod bodies;
mod drain;
mod encode;
mod error;
mod file;
mod http;
mod inflow;
mod input;
mod lexicons;
mod listen;
mod logs;
mod metrics;
mod native;
mod output;
mod places;
mod proxies;
mod quotas;
mod realtime;
mod reload;
mod server;
mod split;
mod stream;
mod tls;
mod usage;
mod utterance;
mod voices;

pub use app::App;
pub use error::ApiError;
pub use listen::ListenError;
pub use reload::Reloader;
pub use server::{ServeError, Server};
