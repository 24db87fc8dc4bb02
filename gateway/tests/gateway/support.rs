//! A server in this process, and the smallest HTTP client that shows everything.

use std::net::SocketAddr;
use std::time::Duration;

use client::{Event, Receiver};
use gateway::Server;
use gateway::config::{Config, Layers};
use proto::wire::{Open, ServerMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A serving gateway. Dropping it without [`Running::stop`] ends it with the test's runtime.
pub(crate) struct Running {
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// Serves the built-in script with these lines of configuration on top.
pub(crate) async fn start(config: &str) -> Running {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[engine]\nkind = \"scripted\"\n{config}"
    );
    start_with(Layers::default().text("test.toml", &text).resolve().and_then(|r| r.config()).expect("valid"))
        .await
}

pub(crate) async fn start_with(config: Config) -> Running {
    let server = Server::bind(config, None).expect("free ports");
    let public = server.public_address().expect("an address");
    let admin = server.admin_address().expect("an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let task = tokio::spawn(async move {
        let ready = move || {
            let _told = ready.send(());
        };
        let stopped = async move {
            let _asked = stopped.await;
        };
        server.run(ready, stopped).await.expect("a clean end");
    });
    is_ready.await.expect("ready");
    Running { public, admin, stop: Some(stop), task }
}

impl Running {
    pub(crate) fn address(&self) -> String {
        self.public.to_string()
    }

    /// Begins the drain.
    pub(crate) fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _running = stop.send(());
        }
    }

    /// Waits for the end of the drain.
    pub(crate) async fn stopped(self) {
        tokio::time::timeout(PATIENCE, self.task).await.expect("in time").expect("no panic");
    }

    /// Sessions that hold a place.
    pub(crate) async fn sessions(&self) -> u64 {
        get(self.admin, "/readyz").await.json()["sessions"].as_u64().expect("a count")
    }

    /// A metric's value, summed over all its labels that contain `label`.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> f64 {
        let answer = get(self.admin, "/metrics").await;
        answer
            .text()
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains(label))
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The body ended as its framing says.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// Asserts the error object's shape and gives its code.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        let json = self.json();
        let error = &json["error"];
        for field in ["type", "code", "message", "request_id"] {
            assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {json}");
        }
        assert_eq!(self.header("x-request-id"), error["request_id"].as_str(), "{json}");
        error["code"].as_str().expect("a code").to_owned()
    }
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")).await
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    request(address, &(head + body)).await
}

/// Sends bytes as they are and reads until the server closes.
pub(crate) async fn request(address: SocketAddr, bytes: &str) -> Answer {
    request_bytes(address, bytes.as_bytes()).await
}

pub(crate) async fn request_bytes(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut socket = TcpStream::connect(address).await.expect("a listener");
    // A server that has seen enough may answer and close before it has read all.
    let _sent = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = socket.read_to_end(&mut answer);
    // A reset after the answer is as good as an end.
    let _ended = tokio::time::timeout(PATIENCE, read).await.expect("an answer in time");
    parse(&answer)
}

pub(crate) fn parse(answer: &[u8]) -> Answer {
    let split = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&answer[..split]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = answer[split..].to_vec();
    let mut whole = true;
    if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
        (body, whole) = dechunk(&body);
    }
    Answer { status, headers, body, whole }
}

fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return (body, false) };
        let size =
            std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(size) = size else { return (body, false) };
        if size == 0 {
            return (body, true);
        }
        let start = end + 2;
        let Some(piece) = rest.get(start..start + size) else { return (body, false) };
        body.extend_from_slice(piece);
        rest = rest.get(start + size + 2..).unwrap_or_default();
    }
}

/// `open` for a context with a voice of the script.
pub(crate) fn open(context: u16, voice: &str) -> Open {
    Open { context, voice: Some(voice.to_owned()), ..Open::default() }
}

/// The next event, in time.
pub(crate) async fn next(receiver: &mut Receiver) -> Event {
    tokio::time::timeout(PATIENCE, receiver.next()).await.expect("an event in time").expect("readable")
}

/// Passes over packets and other messages until `wanted` gives something.
pub(crate) async fn until<T>(receiver: &mut Receiver, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    loop {
        let event = next(receiver).await;
        if let Some(found) = wanted(&event) {
            return found;
        }
        assert!(!matches!(event, Event::Closed { .. }), "closed while waiting: {event:?}");
    }
}

/// The code of the next `error`.
pub(crate) async fn error_code(receiver: &mut Receiver) -> String {
    until(receiver, |event| match event {
        Event::Message(ServerMessage::Error(error)) => Some(error.error.code.clone()),
        _ => None,
    })
    .await
}

/// The close code.
pub(crate) async fn close_code(receiver: &mut Receiver) -> u16 {
    until(receiver, |event| match event {
        Event::Closed { code, .. } => Some(*code),
        _ => None,
    })
    .await
}

/// Waits until `holds`, asking every 20 ms.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..500 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

/// How much of a tone of `hz` is in `samples` at 24 kHz, 0 to 1 (Goertzel).
pub(crate) fn share_of_tone(samples: &[f32], hz: f64) -> f64 {
    let w = std::f64::consts::TAU * hz / 24_000.0;
    let (mut re, mut im, mut power) = (0.0, 0.0, 0.0);
    for (n, &sample) in samples.iter().enumerate() {
        let x = f64::from(sample);
        re += x * (w * n as f64).cos();
        im += x * (w * n as f64).sin();
        power += x * x;
    }
    2.0 * (re * re + im * im) / (samples.len() as f64 * power.max(1e-12))
}
