//! A lost socket, and another that takes the session up.

use client::{Event, connect};
use proto::wire::{ClientMessage, Received, Resume, ServerMessage};

use crate::support::{error_code, next, open, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_taken_up_where_it_was_lost() {
    let server = start("").await;
    let (mut sender, mut receiver, ready) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "steady")).await.expect("sent");
    sender.append(1, "A sentence that outlives the socket it began on, and then some.").await.expect("sent");
    sender.end(1).await.expect("sent");
    let mut last = None;
    while last.is_none_or(|(sequence, _)| sequence < 5) {
        if let Event::Packet { header, .. } = next(&mut receiver).await {
            last = Some((header.sequence, header.epoch));
        }
    }
    let (sequence, epoch) = last.expect("packets came");
    drop((sender, receiver));

    let (mut sender, mut receiver, fresh) = connect(&server.address()).await.expect("connects");
    assert_ne!(fresh.session, ready.session);
    let received = vec![Received { context: 1, epoch, sequence }];
    let resume = Resume { token: ready.resume.clone(), received };
    sender.send(&ClientMessage::Resume(resume.clone())).await.expect("sent");
    let (session, next_sequence) = until(&mut receiver, |event| match event {
        Event::Message(ServerMessage::Resumed { session, contexts, .. }) => {
            assert_eq!((contexts.len(), contexts[0].lost), (1, 0));
            Some((session.clone(), contexts[0].sequence))
        }
        _ => None,
    })
    .await;
    assert_eq!((session, next_sequence), (ready.session.clone(), sequence + 1));
    let mut expected = sequence + 1;
    let end = until(&mut receiver, |event| match event {
        Event::Packet { header, .. } => {
            assert_eq!(header.sequence, expected, "without gap or repeat");
            expected += 1;
            None
        }
        Event::Message(ServerMessage::End(end)) => Some(end.clone()),
        _ => None,
    })
    .await;
    assert_eq!((end.reason.as_str(), end.sequence), ("done", expected - 1));

    // The token was for one time.
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    sender.send(&ClientMessage::Resume(resume)).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "resume_unknown");
}
