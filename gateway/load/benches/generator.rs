//! How many streams the generator carries by itself: a server that does next to nothing plays a tape to each, in a
//! process of its own. `cargo bench -p load --bench generator [STREAMS...]` prints a line of JSON for each number of
//! streams; `make generator` makes the table of docs/performance.md.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use contract::{Epoch, Span};
use futures_util::{SinkExt, StreamExt};
use load::bench::{Witness, run};
use load::mood::Moods;
use load::open_loop::{PATIENCE, Settings};
use load::rates::Rates;
use load::target::Target;
use load::workload::Workload;
use proto::wire::{Flags, HEADER_BYTES, Header, PacketKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::Message;

/// Every stream's length in seconds, and what is sent of it at once, as a server's lead.
const SECONDS: usize = 20;
const LEAD_S: usize = 3;
/// Packets of 20 ms in a second, and packets sent together afterwards.
const PACKETS: usize = 50;
const TOGETHER: usize = 10;
const WINDOW: Span = Span::from_millis(30_000);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    if arguments.first().is_some_and(|it| it == "tape") {
        return runtime().block_on(play());
    }
    let named: Vec<usize> = arguments.iter().filter_map(|it| it.parse().ok()).collect();
    let streams = if named.is_empty() { vec![500, 1_000, 2_000] } else { named };
    let itself = std::env::current_exe().expect("a path");
    let mut server =
        Command::new(itself).arg("tape").stdout(Stdio::piped()).spawn().expect("a second process");
    let mut address = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut address).expect("a line");
    for count in streams {
        println!("{}", runtime().block_on(measure(address.trim(), count)));
    }
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

async fn measure(address: &str, streams: usize) -> String {
    let rate = streams as f64 / SECONDS as f64;
    let settings = Settings {
        workload: Arc::new(
            Workload::parse("tape", &format!("{{\"text\": \"A tape.\", \"seconds\": {SECONDS}}}"))
                .expect("valid"),
        ),
        moods: Moods::default(),
        seeds: 0..1,
        token: None,
        exact_frame_ms: None,
        patience: PATIENCE,
    };
    let target = Target::parse(&format!("tape=native+pcm,ws://{address}")).expect("valid");
    let rates = Rates::sweep(&rate.to_string()).expect("valid");
    let (_alive, cut) = tokio::sync::watch::channel(false);
    let witness = Witness { progress: &|_| {}, so_far: &|_| {}, cut };
    let done = run(vec![target], settings, rates, WINDOW, witness).await;
    let rate = &done.report.targets[0].rates[0];
    let (busy, late) = (rate.generator_cpu.unwrap_or(0.0), rate.generator_late_ms.unwrap_or(0.0));
    let limit = done.report.notes.iter().any(|note| note.contains("is the limit"));
    json!({
        "streams": streams, "cores": busy, "core_ms_a_second_of_sound": busy * 1e3 / rate.audio_s_per_s,
        "late_ms_p99": late, "no_stall": rate.no_stall, "completed": rate.completed, "offered": rate.offered,
        "is_the_limit": limit, "error": done.error,
    })
    .to_string()
}

/// The server: says where it is, then plays the tape to whoever comes.
async fn play() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    std::io::stdout().flush().expect("somebody reads");
    let tape: Arc<Vec<u8>> = Arc::new((1..=SECONDS * PACKETS).flat_map(packet).collect());
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(serve(socket, Arc::clone(&tape)));
    }
}

/// One packet of loud PCM at 24 kHz, as a whole WebSocket frame.
fn packet(sequence: usize) -> Vec<u8> {
    let sequence = u32::try_from(sequence).expect("short");
    let (kind, flags) = (PacketKind::Pcm, Flags::default());
    let header = Header { kind, flags, context: 1, sequence, timestamp: 0, duration: 960, epoch: Epoch(0) };
    let samples = (0..480_u16).flat_map(|n| (if n % 2 == 0 { 8_000_i16 } else { -8_000 }).to_le_bytes());
    let length = u16::try_from(HEADER_BYTES + 960).expect("short").to_be_bytes();
    [0x82, 126, length[0], length[1]].into_iter().chain(header.encode()).chain(samples).collect()
}

async fn serve(socket: TcpStream, tape: Arc<Vec<u8>>) {
    let end = json!({ "type": "end", "context": 1, "epoch": 0, "reason": "done", "samples": 0, "sequence": 0,
        "usage": { "characters": 0, "text_ids": 0, "frames": SECONDS * PACKETS, "samples": SECONDS * 48_000,
            "encode_ms": 0.0, "text_starved_ms": 0.0 } })
    .to_string();
    // A client that has gone away is no fault.
    let _played = talk(socket, &tape, &end).await;
}

async fn talk(
    socket: TcpStream,
    tape: &[u8],
    end: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    socket.set_nodelay(true)?;
    #[expect(clippy::result_large_err, reason = "the library's own signature")]
    let answer = |request: &Request, mut response: Response| {
        if let Some(protocol) = request.headers().get("sec-websocket-protocol") {
            response.headers_mut().insert("sec-websocket-protocol", protocol.clone());
        }
        Ok(response)
    };
    let mut socket = tokio_tungstenite::accept_hdr_async(socket, answer).await?;
    let ready = json!({ "type": "ready", "protocol": "voxlane.v1", "session": "s", "resume": "r", "resume_window_ms": 0,
        "report_interval_ms": 200, "default_model": null, "models": [],
        "limits": { "message_bytes": 1, "frame_bytes": 1, "text_bytes": 1, "text_characters": 1, "contexts": 1, "lead_ms": 1,
            "idle_ms": 1, "context_idle_ms": 1, "pings_per_second": 1 },
        "audio": { "codecs": ["pcm"], "clock": 48_000, "packet_ms": 20, "sample_rates": [24_000] } });
    socket.send(Message::text(ready.to_string())).await?;
    let opened = json!({ "type": "opened", "context": 1, "epoch": 0, "model": "m", "voice": null, "language": null,
        "layout": "streamed",
        "audio": { "codec": "pcm", "sample_rate": 24_000, "channels": 1, "packet_ms": 20, "pre_skip": 0 } });
    socket.send(Message::text(opened.to_string())).await?;
    while let Some(message) = socket.next().await {
        if matches!(message?, Message::Text(text) if text.contains("text.end")) {
            break;
        }
    }
    let mut stream = socket.into_inner();
    let bytes = tape.len() / (SECONDS * PACKETS);
    let (lead, rest) = tape.split_at(LEAD_S * PACKETS * bytes);
    stream.write_all(lead).await?;
    let mut turn = tokio::time::interval(Duration::from_millis(20 * TOGETHER as u64));
    let mut heard = [0; 2_048];
    for together in rest.chunks(TOGETHER * bytes) {
        turn.tick().await;
        stream.write_all(together).await?;
        // Reports are taken and not looked at.
        while stream.try_read(&mut heard).is_ok_and(|read| read > 0) {}
    }
    let length = u16::try_from(end.len())?.to_be_bytes();
    stream.write_all(&[&[0x81, 126, length[0], length[1]], end.as_bytes()].concat()).await?;
    while stream.read(&mut heard).await? > 0 {}
    Ok(())
}
