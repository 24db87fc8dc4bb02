//! Sockets and connections below HTTP: bounded buffers, bounded time, a bounded number.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tower::ServiceExt;

use crate::bodies::Bodies;
use crate::config::ConfigError;
use crate::drain::Drain;
use crate::inflow::{Counted, Inflow};
use crate::metrics::Metrics;
use crate::places::{Place, Placed, Places};
use crate::proxies::Peer;
use crate::tls::Tls;

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{key} {address} is in use by another process; stop it, or choose another with {flag}")]
    Busy { key: &'static str, address: SocketAddr, flag: &'static str },
    #[error("cannot listen on {key} {address}: {source}")]
    Socket { key: &'static str, address: SocketAddr, source: std::io::Error },
    #[error("cannot listen on server.unix {}: {source}", path.display())]
    Unix { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Refused(#[from] ConfigError),
}

/// Marks a request that came over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secure;

/// What serves a listener's connections, and how many.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) router: Router,
    /// Answers one request of a connection that found every place taken.
    pub(crate) full: Router,
    pub(crate) places: Places,
    /// Where long messages find room.
    pub(crate) bodies: Arc<Bodies>,
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
/// are still taken, so that peers hear where they stand instead of finding a closed port. So are those that
/// find every place taken, a few at a time.
pub(crate) async fn accept(listener: Listener, service: Service, front: Front, drain: Drain, end: Drain) {
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = async { (service.places.turn().await, listener.accept().await) } => accepted,
            _ = end.started() => return,
        };
        match accepted {
            (turn, Ok((socket, peer))) => {
                failing = false;
                let (place, turn) = match service.places.take(turn, front.metrics.as_ref()) {
                    Ok(place) => (Some(place), None),
                    Err(turn) => (None, Some(turn)),
                };
                // The drain waits for connections, not only for what answers on them: an answer has
                // ended when its last byte has left. One that comes during the drain only hears of it.
                let guard = (!drain.draining()).then(|| drain.enter());
                let served = front.clone().serve(socket, peer, place, service.clone(), drain.clone());
                tokio::spawn(async move {
                    served.await;
                    drop((turn, guard));
                });
            }
            (_, Err(error)) => {
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

/// What stands between a socket and HTTP.
#[derive(Clone, Default)]
pub(crate) struct Front {
    pub(crate) tls: Option<Arc<Tls>>,
    /// Where connections are counted, if they are.
    pub(crate) metrics: Option<Metrics>,
}

/// Where a request's connection came from; in every request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    pub(crate) peer: Peer,
    pub(crate) tls: bool,
}

/// A bound socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// One accepted connection below TLS.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> std::io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (socket, address) = listener.accept().await?;
                Ok((Stream::Tcp(socket), Peer::Address(address)))
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept().await?;
                Ok((Stream::Unix(socket), Peer::Unix))
            }
        }
    }
}

/// Binds a socket file. A file that a process before us left is replaced; any other is left alone.
pub(crate) fn bind_unix(path: &Path) -> Result<UnixListener, ListenError> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let failed = |source| ListenError::Unix { path: path.to_owned(), source };
    if let Ok(about) = std::fs::symlink_metadata(path) {
        if !about.file_type().is_socket() {
            return Err(failed(std::io::Error::other("a file that is no socket is there")));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(failed(std::io::ErrorKind::AddrInUse.into()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // The owner and the group: a proxy is put into the group.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

impl Front {
    /// Serves a connection with a place to its end, one without for one answer.
    async fn serve(self, socket: Stream, peer: Peer, place: Option<Place>, service: Service, drain: Drain) {
        let timeout = service.handshake_timeout;
        let has_place = place.is_some();
        let serving = async {
            let tls = match socket {
                Stream::Unix(socket) => {
                    return self.http(Placed::new(socket, place), peer, service, has_place, drain).await;
                }
                Stream::Tcp(socket) => {
                    // Packets are small and must leave at once.
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%error, "TCP_NODELAY");
                    }
                    let socket = Placed::new(socket, place);
                    let Some(tls) = &self.tls else {
                        return self.http(socket, peer, service, has_place, drain).await;
                    };
                    tokio::time::timeout(timeout, tls.acceptor().accept(socket)).await
                }
            };
            match tls {
                Ok(Ok(socket)) => self.http(socket, peer, service, has_place, drain).await,
                Ok(Err(error)) => {
                    self.tls_failed();
                    tracing::debug!(%error, "TLS");
                }
                Err(_) => self.tls_failed(),
            }
        };
        if has_place {
            return serving.await;
        }
        if let Some(metrics) = &self.metrics {
            metrics.connection_refused();
        }
        // Whoever does not take the answer is let go of: others wait to be told.
        let _told = tokio::time::timeout(timeout, serving).await;
    }

    /// `socket` is below HTTP, TLS or none: which is told to requests by where it came from.
    async fn http<I>(&self, socket: I, peer: Peer, service: Service, has_place: bool, drain: Drain)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let from = Connected { peer, tls: self.tls.is_some() && peer != Peer::Unix };
        let timeout = service.handshake_timeout;
        let inflow = Inflow::new(&service.bodies);
        let socket = Counted::new(socket, inflow.clone());
        let router = if has_place { service.router } else { service.full };
        let answers = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let (router, inflow) = (router.clone(), inflow.clone());
            async move {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(from);
                request.extensions_mut().insert(inflow);
                let answer: Result<_, Infallible> = router.oneshot(request).await;
                answer
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(timeout).max_buf_size(32 * 1_024);
        let late = drain.draining();
        builder.keep_alive(!late && has_place);
        let connection = builder.serve_connection(TokioIo::new(socket), answers).with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = drain.started(), if !late => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
            if let (Some(metrics), Some(fault)) = (&self.metrics, fault(&error)) {
                metrics.head_refused(fault);
            }
        }
    }

    fn tls_failed(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.tls_failed();
        }
    }
}

/// What was wrong with a head that the HTTP library would not read: it answers with a bare status, or not at all.
fn fault(error: &hyper::Error) -> Option<&'static str> {
    if error.is_parse_too_large() {
        return Some("too_large");
    }
    if error.is_parse() {
        return Some("malformed");
    }
    error.is_timeout().then_some("timeout")
}
