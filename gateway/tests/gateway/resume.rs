//! A lost socket, and another that takes the session up.

use client::{Event, connect};
use proto::wire::{ClientMessage, Received, Resume, ServerMessage};

use crate::support::{close_code, error_code, eventually, get, next, open, start, until};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_live_session_moves_to_the_connection_that_brings_its_token_and_the_old_one_hears_why() {
    let server = start("").await;
    let (mut sender, mut receiver, ready) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "steady")).await.expect("sent");
    sender.append(1, "A sentence that moves from one socket to another, and then some.").await.expect("sent");
    sender.end(1).await.expect("sent");
    let first = until(&mut receiver, |event| match event {
        Event::Packet { header, .. } => Some(*header),
        _ => None,
    })
    .await;

    let (mut second, mut second_receiver, _) = connect(&server.address()).await.expect("connects");
    let received = vec![Received { context: 1, epoch: first.epoch, sequence: first.sequence }];
    let resume = Resume { token: ready.resume.clone(), received };
    second.send(&ClientMessage::Resume(resume)).await.expect("sent");
    until(&mut second_receiver, |event| {
        matches!(event, Event::Message(ServerMessage::Resumed { session, .. }) if *session == ready.session)
            .then_some(())
    })
    .await;
    // What was on its way to the old connection may still come; then it is told.
    assert_eq!(close_code(&mut receiver).await, 4_409);
    let mut expected = first.sequence + 1;
    let end = until(&mut second_receiver, |event| match event {
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
    eventually("one session is left", async || {
        get(server.admin, "/readyz").await.json()["sessions"].as_u64() == Some(1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_named_twice_is_refused_and_the_token_still_counts() {
    let server = start("").await;
    let (mut sender, mut receiver, ready) = connect(&server.address()).await.expect("connects");
    sender.open(open(1, "instant")).await.expect("sent");
    sender.append(1, "Said once.").await.expect("sent");
    let epoch = until(&mut receiver, |event| match event {
        Event::Packet { header, .. } => Some(header.epoch),
        _ => None,
    })
    .await;
    drop((sender, receiver));
    let once = Received { context: 1, epoch, sequence: 0 };
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    let twice = Resume { token: ready.resume.clone(), received: vec![once, once] };
    sender.send(&ClientMessage::Resume(twice)).await.expect("sent");
    assert_eq!(error_code(&mut receiver).await, "field_out_of_range");
    let (mut sender, mut receiver, _) = connect(&server.address()).await.expect("connects");
    let resume = Resume { token: ready.resume.clone(), received: vec![once] };
    sender.send(&ClientMessage::Resume(resume)).await.expect("sent");
    until(&mut receiver, |event| {
        matches!(event, Event::Message(ServerMessage::Resumed { .. })).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_makes_room_for_a_new_one_when_every_place_is_taken() {
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nsessions_max = 2\n\
                [engine]\nkind = \"scripted\"\n[stream]\nresume_window_ms = 60000\n";
    let config = gateway::config::Layers::default().text("test.toml", text);
    let server = crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    let (mut lost, mut heard, ready) = connect(&server.address()).await.expect("connects");
    lost.open(open(1, "steady")).await.expect("sent");
    lost.append(1, &"It goes on and on. ".repeat(20)).await.expect("sent");
    until(&mut heard, |event| matches!(event, Event::Packet { .. }).then_some(())).await;
    let (kept, mut kept_heard, _) = connect(&server.address()).await.expect("connects");
    assert!(connect(&server.address()).await.is_err(), "both have their sockets");
    // Without a Close: the whole connection, both directions, just ends.
    drop((lost, heard));
    eventually("the loss is noticed", async || get(server.admin, "/readyz").await.status == 200).await;
    let (mut third, mut third_heard, _) = connect(&server.address()).await.expect("there is room");
    assert!(connect(&server.address()).await.is_err(), "the house is full again");
    third.open(open(1, "instant")).await.expect("sent");
    third.append(1, "Room for one more.").await.expect("sent");
    third.end(1).await.expect("sent");
    until(&mut third_heard, |event| matches!(event, Event::Message(ServerMessage::End(_))).then_some(()))
        .await;
    eventually("what the lost one spoke is cancelled", async || {
        server.metric("voxlane_engine_contexts_open", "").await == 0.0
    })
    .await;
    // Its token is void, and nobody else was harmed.
    drop((third, third_heard));
    eventually("a place is free or lost", async || get(server.admin, "/readyz").await.status == 200).await;
    let (mut late, mut late_heard, _) = connect(&server.address()).await.expect("connects");
    let resume = Resume { token: ready.resume, received: Vec::new() };
    late.send(&ClientMessage::Resume(resume)).await.expect("sent");
    assert_eq!(error_code(&mut late_heard).await, "resume_unknown");
    let mut kept = kept;
    kept.open(open(1, "instant")).await.expect("sent");
    kept.append(1, "Still here.").await.expect("sent");
    kept.end(1).await.expect("sent");
    until(&mut kept_heard, |event| matches!(event, Event::Message(ServerMessage::End(_))).then_some(()))
        .await;
}
