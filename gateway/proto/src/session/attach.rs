//! A connection is lost, and another takes the session up again (docs/protocol.md section 7).

use bytes::Bytes;
use contract::Tick;

use super::Session;
use super::context::Context;
use crate::wire::{Flags, Header, Received, ResumedContext, ServerMessage, WireError};

impl Session {
    /// The connection was lost without a Close: the session waits to be taken up.
    pub fn handle_detach(&mut self, now: Tick) {
        if !self.out.dialect().manner().resumes {
            return self.handle_peer_close(now);
        }
        if !self.out.is_closed() && self.out.is_attached() {
            self.out.detach();
            self.pings.restart(now);
            self.detached_until = Some(now + self.config.limits.resume_window);
        }
        self.advance(now);
    }

    /// The peer closed the connection, or it will not come back: everything is let go.
    pub fn handle_peer_close(&mut self, now: Tick) {
        if !self.out.is_closed() {
            self.stop_engines();
            self.out.end();
        }
        self.advance(now);
    }

    /// Another connection takes the session up. `resume` is the token for the next time; the driver has
    /// checked the old one and that the peer is the same.
    pub fn handle_attach(&mut self, now: Tick, resume: String, received: &[Received]) {
        if self.out.is_closed() {
            return;
        }
        // The old connection may not be known to be dead yet.
        self.out.detach();
        self.out.attach();
        self.detached_until = None;
        self.heard = now;
        self.pings.restart(now);
        self.config.resume = resume;
        let mut states = Vec::new();
        let mut catch_up = Vec::new();
        for received in received {
            if let Some(context) = self.contexts.get_mut(&received.context) {
                context.replay.forget(now);
                context.touched = now;
                context.utterance.clock.handle_resume(&self.pings.link);
                let (state, replay) = context.take_up(received);
                states.push(state);
                catch_up.push((received, replay));
            }
        }
        self.out.send(
            now,
            &ServerMessage::Resumed {
                session: self.out.session().to_owned(),
                resume: self.config.resume.clone(),
                contexts: states,
            },
        );
        for (received, replay) in catch_up {
            let Some(context) = self.contexts.get(&received.context) else { continue };
            if context.utterance.key.epoch != received.epoch
                && let Some(cancelled) = &context.last_cancelled
            {
                self.out.send(now, cancelled);
            }
            for (header, payload) in replay {
                self.out.send_packet(now, &header, &payload);
                self.counters.replayed += 1;
            }
            if context.utterance.ended
                && let Some(end) = &context.last_end
            {
                self.out.send(now, end);
            }
        }
        self.advance(now);
    }

    /// No session can be resumed with the token given; this one goes on.
    pub fn handle_resume_refused(&mut self, now: Tick) {
        self.out.error(now, &WireError::ResumeUnknown, None, None, None);
        self.advance(now);
    }
}

impl Context {
    /// Where the context stands for a client that has `received`, and the packets it lacks.
    fn take_up(&mut self, received: &Received) -> (ResumedContext, Vec<(Header, Bytes)>) {
        let epoch = self.utterance.key.epoch;
        let has = if received.epoch == epoch {
            received.sequence.clamp(self.epoch_first - 1, self.sequence)
        } else {
            self.epoch_first - 1
        };
        let mut replay = self.replay.after(epoch, has);
        let next = replay.first().map_or(self.sequence + 1, |(header, _)| header.sequence);
        let lost = next - has - 1;
        if lost > 0 {
            match replay.first_mut() {
                Some((header, _)) => header.flags = header.flags.with(Flags::START),
                None => self.restart = true,
            }
        }
        let state = ResumedContext {
            context: received.context,
            epoch: epoch.0,
            text_sequence: self.utterance.sequence,
            sequence: next,
            lost,
            ended: self.utterance.ended,
        };
        (state, replay)
    }
}
