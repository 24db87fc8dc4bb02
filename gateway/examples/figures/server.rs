//! The server under measurement: its addresses, its metrics, its memory.

use client::ClientError;
use proto::wire::Ready;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::measure::Failure;

/// Packets a second of one stream.
const PACKETS_PER_SECOND: f64 = 50.0;

#[derive(Clone)]
pub(crate) struct Server {
    public: String,
    admin: String,
    pid: Option<u32>,
    /// Of a server that has keys.
    token: Option<String>,
}

/// Totals at one time.
pub(crate) struct Counters {
    opus_packets: f64,
    opus_us: f64,
}

impl Server {
    pub(crate) fn new(public: &str, admin: &str, pid: Option<u32>, token: Option<&str>) -> Self {
        let token = token.map(str::to_owned);
        Self { public: public.to_owned(), admin: admin.to_owned(), pid, token }
    }

    /// A session.
    pub(crate) async fn connect(
        &self,
    ) -> Result<(client::Sender, client::Receiver, Box<Ready>), ClientError> {
        client::connect_as(&self.public, self.token.as_deref()).await
    }

    /// Posts JSON; the head of a 200, and its body as it came.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<(String, Vec<u8>), Failure> {
        let body = body.to_string();
        let token = self.token.as_deref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.public,
            token.unwrap_or_default(),
            body.len()
        );
        let mut socket = TcpStream::connect(&self.public).await?;
        socket.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        let split =
            answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no head in the answer")? + 4;
        let body = answer.split_off(split);
        let head = String::from_utf8_lossy(&answer).into_owned();
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("{head}{}", String::from_utf8_lossy(&body)).into());
        }
        Ok((head, body))
    }

    /// Bytes resident now; `None` without a process id.
    pub(crate) fn resident_bytes(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? * 1_024.0)
    }

    pub(crate) async fn counters(&self) -> std::io::Result<Counters> {
        let text = get(&self.admin, "/metrics").await?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        Ok(Counters {
            opus_packets: value("voxlane_opus_packets_total"),
            opus_us: value("voxlane_opus_busy_microseconds_total"),
        })
    }

    /// Resident now and at most so far, in MiB.
    pub(crate) fn resident_mib(&self) -> Value {
        let Some(pid) = self.pid else { return Value::Null };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
            Some((kib / 102.4).round() / 10.0)
        };
        json!({ "now": mib("VmRSS:"), "peak": mib("VmHWM:") })
    }
}

impl Counters {
    /// What encoding cost between two readings.
    pub(crate) fn opus_since(&self, before: &Self) -> Value {
        let packets = self.opus_packets - before.opus_packets;
        if packets < 1.0 {
            return Value::Null;
        }
        let us = (self.opus_us - before.opus_us) / packets;
        json!({
            "packets": packets,
            "us_per_packet": rounded(us),
            "core_percent_per_stream": rounded(us * PACKETS_PER_SECOND / 10_000.0),
        })
    }
}

/// Three digits after the point.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await?;
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    Ok(text)
}
