//! The gateway over real sockets on loopback, with a scripted engine.

mod bench;
mod cli;
mod config;
mod doors;
mod drain;
mod hostile;
mod resume;
mod slow_reader;
mod speech;
mod stream;
mod support;
