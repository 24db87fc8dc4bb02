//! Room for all bodies together: it is taken by what has come, refused when it is gone, and given back.

use gateway::config::{ConfigError, Layers};
use proto::wire::PacketKind;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::support::{PATIENCE, Running, eventually, parse, post, start_with};
use crate::voices::{CLARA, Kept, packets, speech, upload};

fn config(kept: &Kept, bytes: u64) -> Result<gateway::config::Config, ConfigError> {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nbody_bytes_max = 400000\n\
         bodies_bytes_max = {bytes}\n[engine]\nkind = \"scripted\"\n{}",
        kept.config()
    );
    Layers::default().text("test.toml", &text).resolve().and_then(|resolved| resolved.config())
}

/// A request whose body is announced, and of which this much comes.
async fn halfway(server: &Running, path: &str, kind: &str, begins: &str, bytes: usize) -> TcpStream {
    let mut socket = TcpStream::connect(server.public).await.expect("connects");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: {kind}\r\ncontent-length: 399999\r\n\r\n{begins}",
        server.public
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    socket.write_all(&vec![b' '; bytes]).await.expect("sent");
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_come_slowly_take_no_more_than_their_room_and_the_next_is_told() {
    let kept = Kept::new("bodies");
    let server = start_with(config(&kept, 1_200_000).expect("valid")).await;
    let taken = async || server.metric("voxlane_bodies_bytes", "").await;
    let parts = |name: &'static str| -> [(&str, &[u8]); 3] {
        [("name", name.as_bytes()), ("consent", b"yes"), ("audio", CLARA)]
    };
    // Who announces much and sends nothing takes nothing.
    let (form, json) = ("multipart/form-data; boundary=border", "application/json");
    let part = "--border\r\ncontent-disposition: form-data; name=\"audio\"; filename=\"a\"\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(halfway(&server, "/v1/audio/speech", json, "", 0).await);
    }
    assert_eq!(upload(&server, None, &parts("warm")).await.status, 200);
    eventually("it is given back", async || taken().await == 0.0).await;
    for (path, kind, begins) in
        [("/v1/audio/voices", form, part), ("/v1/audio/speech", json, ""), ("/tts/bytes", json, "")]
    {
        held.push(halfway(&server, path, kind, begins, 380_000).await);
    }
    eventually("they have come", async || taken().await > 1_100_000.0).await;
    assert!(taken().await <= 1_200_000.0);
    let refused = upload(&server, None, &parts("cold")).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "overloaded"), "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(server.metric("voxlane_errors_total", "overloaded").await >= 1.0);
    let small = post(server.public, "/v1/audio/speech", &speech("steady")).await;
    assert_eq!(small.status, 200, "there is room for what is small");
    drop(held);
    eventually("all is given back", async || taken().await == 0.0).await;
    assert_eq!(upload(&server, None, &parts("cold")).await.status, 200);
}

/// The library that reads forms gathers whatever it cannot take apart yet: heads, and what stands before the first
/// border.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_in_a_form_beside_its_file_takes_room_and_is_cut_off_at_its_bound() {
    let kept = Kept::new("beside");
    let server = start_with(config(&kept, 12_000_000).expect("valid")).await;
    let taken = async || server.metric("voxlane_bodies_bytes", "").await;
    let form = "multipart/form-data; boundary=border";
    let head = "--border\r\ncontent-disposition: form-data; name=\"name\"; x=\"";
    let heads = "--border\r\nx: y\r\n";
    for begins in [head, heads, "", "--border--\r\n"] {
        let held = halfway(&server, "/v1/audio/voices", form, begins, 50_000).await;
        if begins != "--border--\r\n" {
            eventually("it has come and is counted", async || taken().await >= 50_000.0).await;
        }
        drop(held);
        eventually("it is given back", async || taken().await == 0.0).await;
        let mut held = halfway(&server, "/v1/audio/voices", form, begins, 350_000).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, held.read_to_end(&mut answer));
        let _ended = read.await.unwrap_or_else(|_| panic!("{begins:?}: no answer"));
        let answer = parse(&answer);
        let wanted =
            if begins == "--border--\r\n" { (400, "missing_field") } else { (413, "body_too_large") };
        assert_eq!((answer.status, answer.code().as_str()), wanted, "{begins:?}: {}", answer.text());
        drop(held);
        eventually("it is given back", async || taken().await == 0.0).await;
    }
}

/// A message of `bytes`, of which all but the last comes.
async fn most_of_a_message(server: &Running, path: &str, bytes: usize) -> TcpStream {
    let mut socket = TcpStream::connect(server.public).await.expect("connects");
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        server.public
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    // Text, masked by zeros.
    let mut frame = vec![0x81, 0xff];
    frame.extend_from_slice(&(bytes as u64).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.resize(frame.len() + bytes - 1, b' ');
    // Who is refused may be closed before all has been sent.
    let _sent = socket.write_all(&frame).await;
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn long_messages_share_the_room_of_bodies_and_who_finds_none_is_closed_as_overload() {
    let kept = Kept::new("messages");
    let server = start_with(config(&kept, 12_000_000).expect("valid")).await;
    let taken = async || server.metric("voxlane_bodies_bytes", "").await;
    let mut first = most_of_a_message(&server, "/v1/realtime", 8_000_000).await;
    eventually("it has come", async || taken().await >= 7_999_999.0).await;
    let second = most_of_a_message(&server, "/v1/realtime", 8_000_000).await;
    let overload = async || server.metric("voxlane_sessions_closed_total", "overload").await;
    eventually("the second is closed", async || overload().await == 1.0).await;
    assert!(taken().await <= 12_000_000.0);
    drop(second);
    eventually("its room is given back", async || taken().await < 8_100_000.0).await;
    // A clip in another protocol's message finds room, and the first message can still be finished.
    let third = most_of_a_message(&server, "/tts/websocket", 300_000).await;
    eventually("it has come", async || taken().await > 8_250_000.0).await;
    drop(third);
    first.write_all(b" ").await.expect("sent");
    eventually("all is given back", async || taken().await == 0.0).await;
    assert_eq!(server.metric("voxlane_sessions_open", "").await, 1.0, "the first goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn clips_that_come_over_sockets_take_room_until_they_are_judged_and_who_finds_none_is_closed() {
    let kept = Kept::new("clips");
    let server = start_with(config(&kept, 12_000_000).expect("valid")).await;
    let taken = async || server.metric("voxlane_bodies_bytes", "").await;
    let packets = packets(PacketKind::Pcm, &crate::clip_bounds::clip(29_000, 48_000, PacketKind::Pcm));
    let (last, all_but_it) = packets.split_last().expect("many");
    let announced = async || {
        let (mut sender, receiver, _) = client::connect(&server.address()).await.expect("connects");
        let about = json!({ "codec": "pcm", "sample_rate": 48_000 });
        let open = json!({ "type": "open", "context": 1, "reference": about }).to_string();
        sender.raw(Message::text(open)).await.expect("sent");
        (sender, receiver)
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        let (mut sender, receiver) = announced().await;
        for packet in all_but_it {
            sender.raw(Message::binary(packet.clone())).await.expect("sent");
        }
        held.push((sender, receiver));
    }
    eventually("all have come", async || taken().await > 4.0 * 2_770_000.0).await;
    assert!(taken().await < 4.0 * 2_800_000.0, "each is counted once");
    let (mut sender, mut receiver) = announced().await;
    for packet in all_but_it {
        // Who is refused may be closed before all has been sent.
        let _sent = sender.raw(Message::binary(packet.clone())).await;
    }
    assert_eq!(crate::support::close_code(&mut receiver).await, 1013);
    eventually("its room is given back", async || taken().await < 4.0 * 2_800_000.0).await;
    for (sender, _) in &mut held {
        sender.raw(Message::binary(last.clone())).await.expect("sent");
    }
    eventually("all are judged", async || taken().await == 0.0).await;
    assert_eq!(server.metric("voxlane_sessions_open", "").await, 4.0, "they go on");
}

#[test]
fn room_for_less_than_one_body_is_refused_at_start() {
    let kept = Kept::new("no-bodies");
    let Err(error) = config(&kept, 1_048_576) else { panic!("taken") };
    let told = error.to_string();
    assert!(told.contains("server.bodies_bytes_max") && told.contains("voices.upload_bytes_max"), "{told}");
}
