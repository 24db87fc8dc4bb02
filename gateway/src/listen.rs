//! Sockets and connections below HTTP: bounded buffers, bounded time, a bounded number.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::config::ConfigError;
use crate::drain::Drain;

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{key} {address} is in use by another process; stop it, or choose another with {flag}")]
    Busy { key: &'static str, address: SocketAddr, flag: &'static str },
    #[error("cannot listen on {key} {address}: {source}")]
    Socket { key: &'static str, address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Refused(#[from] ConfigError),
}

/// Marks a request that came over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secure;

/// Bounds on one listener's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) connections_max: usize,
    pub(crate) handshake_timeout: Duration,
}

/// Binds `address`. Connections inherit the kernel send buffer, so that a peer who does not read holds
/// no more than that.
pub(crate) fn bind(
    key: &'static str,
    flag: &'static str,
    address: SocketAddr,
    send_buffer_bytes: u32,
) -> Result<TcpListener, ListenError> {
    let open = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.set_send_buffer_size(send_buffer_bytes)?;
        socket.bind(address)?;
        socket.listen(1_024)
    };
    open().map_err(|source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AddrInUse => ListenError::Busy { key, address, flag },
        _ => ListenError::Socket { key, address, source },
    })
}

/// Accepts and serves connections until `end`. From `drain` on, connections close after one answer: they
/// are still taken, so that peers hear where they stand instead of finding a closed port.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    drain: Drain,
    end: Drain,
) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut failing = false;
    loop {
        // A place is taken before the connection is, so that a full house costs no memory.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.started() => return,
        };
        match accepted {
            Ok((socket, _)) => {
                failing = false;
                crate::metrics::connections(limits.connections_max - places.available_permits());
                let served = serve(socket, router.clone(), limits.handshake_timeout, drain.clone());
                tokio::spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: existing sessions go on, the rest waits.
                if !failing {
                    tracing::warn!(%error, "cannot accept connections");
                }
                failing = true;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(socket: TcpStream, router: Router, handshake_timeout: Duration, drain: Drain) {
    // Packets are small and must leave at once.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move {
            let answer: Result<_, Infallible> = router.oneshot(request.map(Body::new)).await;
            answer
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(handshake_timeout).max_buf_size(32 * 1_024);
    let late = drain.draining();
    builder.keep_alive(!late);
    let connection = builder.serve_connection(TokioIo::new(socket), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return log_end(ended),
        _ = drain.started(), if !late => connection.as_mut().graceful_shutdown(),
    }
    log_end(connection.await);
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
