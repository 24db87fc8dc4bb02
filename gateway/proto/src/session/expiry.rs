//! A session's token ends while it is connected (docs/protocol.md section 10, close code 4401).
//!
//! What has been said is spoken to its end: every context that speaks gets the `text.end` it may still
//! lack, new text and new contexts are refused with `token_expired`, and the session closes with 4401 when
//! the last of them has ended, or when its grace is over.

use contract::{Span, Tick};

use super::Session;
use crate::wire::{CloseCode, WireError};

impl Session {
    /// The token is over; what runs may end within `within`.
    pub fn handle_token_end(&mut self, now: Tick, within: Span) {
        if self.token_until.is_none() && !self.out.is_closed() {
            self.out.error(now, &WireError::TokenExpired, None, None, None);
            self.token_until = Some(now + within);
            for context in self.contexts.values_mut() {
                let utterance = &mut context.utterance;
                if utterance.is_live() && !utterance.is_over() && !utterance.text_ended {
                    utterance.handle_flush(now, true, &mut self.out);
                }
            }
        }
        self.advance(now);
    }

    /// Another connection took the session up with a token that is good.
    pub fn handle_token_renewed(&mut self, now: Tick) {
        self.token_until = None;
        self.advance(now);
    }

    /// # Errors
    /// [`WireError::TokenExpired`] once the token is over.
    pub(super) fn check_token(&self) -> Result<(), WireError> {
        if self.token_until.is_some() { Err(WireError::TokenExpired) } else { Ok(()) }
    }

    /// Closes when the token is over and nothing speaks any more.
    pub(super) fn close_without_token(&mut self) -> bool {
        let over = self.token_until.is_some();
        if over {
            self.close(CloseCode::Token);
        }
        over
    }
}
