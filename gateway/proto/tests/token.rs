//! A token that ends while its session is connected.

mod rig;

use contract::Span;
use proto::session::TimeoutReason;
use proto::wire::{CloseCode, ServerMessage};
use rig::Rig;

const GRACE: Span = Span::from_millis(60_000);

#[test]
fn a_token_that_ends_lets_the_turn_finish_and_then_closes_with_4401() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.append(1, 1, "Hello there. And a half");
    rig.session.handle_token_end(rig.now, GRACE);
    rig.drain();
    assert_eq!(rig.errors(), ["token_expired"]);
    // Nothing new is taken, in the running context or in another.
    rig.append(1, 2, " sentence");
    rig.simple("open", 2);
    assert_eq!(rig.errors(), ["token_expired"; 3]);
    assert_eq!(rig.closed, None);
    // What was said is spoken, though its text.end never came.
    rig.speak_all(rig.key(1, 0), 2);
    assert_eq!(rig.reasons(), [(1, 0, "done")]);
    assert_eq!(rig.closed, Some(CloseCode::Token));
    assert!(matches!(rig.last(), ServerMessage::End(_)));
}

#[test]
fn a_quiet_session_closes_at_the_very_tick_its_token_ends() {
    let mut rig = Rig::new();
    rig.simple("open", 1);
    rig.session.handle_token_end(rig.now, GRACE);
    rig.drain();
    assert_eq!(rig.errors(), ["token_expired"]);
    assert_eq!(rig.closed, Some(CloseCode::Token));
}

#[test]
fn a_turn_that_outlasts_its_grace_is_cut_at_the_tick() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.speak(rig.key(1, 0), 2);
    let until = rig.now + GRACE;
    rig.session.handle_token_end(rig.now, GRACE);
    // A second word about it moves nothing.
    rig.session.handle_token_end(rig.now, GRACE + GRACE);
    rig.drain();
    rig.wait(GRACE - Span::from_millis(1));
    assert_eq!(rig.closed, None);
    rig.wait(Span::from_millis(1));
    assert_eq!((rig.closed, rig.now), (Some(CloseCode::Token), until));
    assert_eq!(rig.session.poll_timeout().1, TimeoutReason::None);
}

#[test]
fn a_session_taken_up_with_a_good_token_goes_on() {
    let mut rig = Rig::new();
    rig.say(1, "Hello there.");
    rig.session.handle_token_end(rig.now, GRACE);
    rig.session.handle_detach(rig.now);
    rig.session.handle_token_renewed(rig.now);
    rig.session.handle_attach(rig.now, "r-2".to_owned(), &[]);
    rig.drain();
    rig.simple("open", 2);
    assert!(matches!(rig.last(), ServerMessage::Opened(_)));
    rig.speak_all(rig.key(1, 0), 2);
    assert_eq!(rig.closed, None);
}
