//! What a session costs that does nothing.

use std::time::Duration;

use serde_json::{Value, json};

use crate::measure::Failure;
use crate::server::{Server, rounded};

/// Opens `sockets` sessions and leaves them; the memory that each takes of the server, kernel buffers aside.
pub(crate) async fn idle(server: &Server, sockets: usize) -> Result<Value, Failure> {
    let pid = || server.resident_bytes().ok_or("the server's --pid is needed");
    // What the first sessions make a process take once is not theirs.
    drop(server.connect().await?);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = pid()?;
    let mut sessions = Vec::with_capacity(sockets);
    for _ in 0..sockets {
        sessions.push(server.connect().await?);
    }
    // Let pings and timers settle.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let each = (pid()? - before) / sockets.max(1) as f64 / 1_024.0;
    drop(sessions);
    Ok(json!({ "sockets": sockets, "kib_per_socket": rounded(each) }))
}
