//! A client of the native wire (docs/protocol.md), with a listener that reports what it has played.
//!
//! [`connect`] gives a sending and a receiving half. [`Listener`] is a player without a sound card: it
//! starts at the first packet, plays in real time, counts every pause, and makes the reports that move
//! the server's deadlines. [`speak`] joins the three for one utterance, as the figures need it.

mod connection;
mod listener;
mod utterance;

pub use connection::{
    ClientError, Event, Receiver, Sender, connect, connect_as, connect_over, connect_with_buffer,
    connect_with_headers,
};
pub use listener::Listener;
pub use utterance::{Outcome, Utterance, speak};
