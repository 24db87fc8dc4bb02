//! The gateway over real sockets on loopback, with a scripted engine.

mod bad_input;
mod bench;
mod cli;
mod config;
mod doors;
mod drain;
mod ear;
mod faults;
mod foreign_rest;
mod guarded;
mod hostile;
mod keyring;
mod keys_cli;
mod operation;
mod pull;
mod quotas;
mod realtime;
mod resume;
mod rotation;
mod slow_reader;
mod sound;
mod speech;
mod stream;
mod support;
mod tokens;
mod voices;
