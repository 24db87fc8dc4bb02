//! How one protocol's clients speak with a [`crate::session::Session`].
//!
//! A session is the same for all of them: contexts, epochs, playback clock, pacing, cancel. A dialect
//! stands between it and the socket: it reads what the client sent into [`Step`]s, and puts what the
//! session says ([`Event`]) into the words of its protocol. Dialects are pure: time is an argument, and
//! whatever they keep is bounded. The native wire ([`crate::wire::Native`]) is one of them.
//!
//! Steps are done in order. Texts and binaries leave at once; the others act on the session, whose events
//! come back to [`Dialect::handle_event`], also while a message of the client is being handled.

use std::fmt;

use bytes::Bytes;
use contract::{Layout, Tick};

use crate::alignment::TimedCharacter;
use crate::quota::Level;
use crate::wire::{ClientMessage, CloseCode, Header, ServerMessage, Unreadable};

/// One protocol at a session's edge.
pub trait Dialect: fmt::Debug + Send {
    /// What clients of this protocol expect of a session.
    fn manner(&self) -> Manner;

    /// Whether clients read while nothing is spoken. Some keep a connection for later and do not look at it
    /// meanwhile: they answer no ping then, and are none the worse for it.
    fn reads_when_idle(&self) -> bool {
        true
    }

    /// A whole text message came. The session has bounded its length.
    fn handle_text(&mut self, now: Tick, text: &str, steps: &mut Vec<Step>);

    /// A whole binary message came.
    fn handle_binary(&mut self, now: Tick, bytes: &[u8], steps: &mut Vec<Step>);

    /// The session says something.
    fn handle_event(&mut self, now: Tick, event: &Event<'_>, steps: &mut Vec<Step>);

    /// The time of [`Dialect::poll_timeout`] has come.
    fn handle_timeout(&mut self, _now: Tick, _steps: &mut Vec<Step>) {}

    /// When the dialect wants to be woken at the latest.
    fn poll_timeout(&self) -> Tick {
        Tick::NEVER
    }
}

/// What a protocol's clients expect of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Layouts in the order to try when a context asks for none.
    pub layouts: [Layout; 2],
    /// [`Event::Times`] and [`Event::FlushSpoken`] are wanted.
    pub times: bool,
    /// A lost connection can be taken up again. Where it cannot, the session ends with its connection.
    pub resumes: bool,
}

/// What a session says.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Everything of the context up to its first flush that was not named yet has left.
    FlushSpoken {
        context: u16,
    },
    Message(&'a ServerMessage),
    /// One packet leaves for the listener.
    Packet {
        header: &'a Header,
        payload: &'a Bytes,
    },
    /// Where the tenant's quotas stand, now that a context begins: told before its `opened`.
    Quotas(&'a [Level]),
    /// Every packet that may leave now has left: what was gathered of them for one message leaves too.
    Settled,
    /// The next characters of a context's text, and when they sound: given before the packets they begin in
    /// as far as is known, in the order of the text, each once, all of them before the `end`.
    Times {
        context: u16,
        characters: &'a [TimedCharacter],
    },
}

/// What a dialect wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Audio of the client's for a context that awaits a reference clip.
    Audio { header: Header, payload: Bytes },
    /// Write a binary message.
    Binary(Bytes),
    /// The client says this. `id` comes back in an error that answers it.
    Client { id: Option<String>, message: ClientMessage },
    /// The file of a clip that the `open` of this context announced, whole.
    Clip { context: u16, file: Bytes },
    /// Close the connection, after what has been written.
    Close(CloseCode),
    /// Forget a context at once, cancelling what it speaks: of its events only that epoch's `end` follows.
    Forget { context: u16 },
    /// Write a text message.
    Text(String),
    /// The message cannot be read. The session answers with [`ServerMessage::Error`], and closes on a peer
    /// that sends many of them.
    Unreadable(Box<Unreadable>),
}

impl Step {
    /// A message without an id.
    #[must_use]
    pub const fn client(message: ClientMessage) -> Self {
        Self::Client { id: None, message }
    }
}
