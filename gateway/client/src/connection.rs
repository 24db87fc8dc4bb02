//! One WebSocket to a server.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use proto::wire::{
    Cancel, ClientMessage, ContextRef, Header, Open, PlaybackReport, Ready, SUBPROTOCOL, ServerMessage, Text,
    TextAppend, WireError,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};

/// Bytes read at once: a burst of packets fits, and thousands of sessions fit into one process.
const READ_BUFFER: usize = 16 * 1_024;
/// RFC 6455, section 7.1.5: a Close frame without a code, and no Close frame.
const NO_CODE: u16 = 1005;
const NO_CLOSE: u16 = 1006;

/// What ends a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("connecting failed: {0}")]
    Connect(#[from] std::io::Error),
    #[error("the server refused the upgrade with status {status}: {body}")]
    Refused { status: u16, body: String },
    #[error("the socket failed: {0}")]
    Socket(Box<tungstenite::Error>),
    #[error("the server sent what this client cannot read: {0}")]
    Unreadable(String),
    #[error("the server closed before it was ready ({code})")]
    Closed { code: u16 },
}

/// What a server sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The end of the connection; 1006 stands for a socket that ended without a Close frame.
    Closed {
        code: u16,
        reason: String,
    },
    Message(ServerMessage),
    Packet {
        header: Header,
        payload: Bytes,
    },
}

/// The sending half, over a stream of bytes.
#[derive(Debug)]
pub struct Sender<S = TcpStream> {
    sink: SplitSink<WebSocketStream<S>, Message>,
    /// Last `text.append` of each context's epoch.
    sequences: BTreeMap<u16, u32>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver<S = TcpStream> {
    stream: SplitStream<WebSocketStream<S>>,
    /// What the server's Close frame said.
    close: Option<(u16, String)>,
    /// Nothing comes any more.
    over: bool,
}

/// Connects to `address` ("127.0.0.1:8080") and waits for `ready`.
///
/// # Errors
/// [`ClientError`] when the connection, the upgrade or the first message fails.
pub async fn connect(address: &str) -> Result<(Sender, Receiver, Box<Ready>), ClientError> {
    dial(address, None, &[]).await
}

/// As [`connect`], with a token as a program names it (docs/protocol.md section 1).
///
/// # Errors
/// As [`connect`].
pub async fn connect_as(
    address: &str,
    token: Option<&str>,
) -> Result<(Sender, Receiver, Box<Ready>), ClientError> {
    dial(address, None, &bearer(token)).await
}

/// As [`connect_as`], over a stream that is connected to `address` already.
///
/// # Errors
/// As [`connect`].
pub async fn connect_over<S>(
    stream: S,
    address: &str,
    token: Option<&str>,
) -> Result<(Sender<S>, Receiver<S>, Box<Ready>), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    upgrade(stream, address, &bearer(token)).await
}

/// As [`connect`], with headers on top: `authorization`, `origin`, or a `sec-websocket-protocol` in place of
/// the usual one.
///
/// # Errors
/// As [`connect`]; [`ClientError::Closed`] or [`ClientError::Unreadable`] when the server closes or sends an
/// error in place of `ready`.
pub async fn connect_with_headers(
    address: &str,
    headers: &[(&'static str, String)],
) -> Result<(Sender, Receiver, Box<Ready>), ClientError> {
    dial(address, None, headers).await
}

/// As [`connect`], with a bound on the kernel's receive buffer: how a slow reader is played.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with_buffer(
    address: &str,
    receive_buffer_bytes: Option<u32>,
) -> Result<(Sender, Receiver, Box<Ready>), ClientError> {
    dial(address, receive_buffer_bytes, &[]).await
}

async fn dial(
    address: &str,
    receive_buffer_bytes: Option<u32>,
    headers: &[(&'static str, String)],
) -> Result<(Sender, Receiver, Box<Ready>), ClientError> {
    let target = tokio::net::lookup_host(address)
        .await?
        .next()
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "the address names no host"))?;
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(bytes) = receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    let socket = socket.connect(target).await?;
    socket.set_nodelay(true)?;
    upgrade(socket, address, headers).await
}

fn bearer(token: Option<&str>) -> Vec<(&'static str, String)> {
    token.map(|token| ("authorization", format!("Bearer {token}"))).into_iter().collect()
}

async fn upgrade<S>(
    socket: S,
    address: &str,
    headers: &[(&'static str, String)],
) -> Result<(Sender<S>, Receiver<S>, Box<Ready>), ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = format!("ws://{address}/v1/stream").into_client_request().map_err(refused)?;
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
    for (name, value) in headers {
        let value = HeaderValue::from_str(value)
            .map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidInput, "a header cannot be sent"))?;
        request.headers_mut().insert(*name, value);
    }
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER);
    let connected = tokio_tungstenite::client_async_with_config(request, socket, Some(config)).await;
    let (stream, _) = connected.map_err(refused)?;
    let (sink, stream) = stream.split();
    let mut receiver = Receiver { stream, close: None, over: false };
    match receiver.next().await? {
        Event::Message(ServerMessage::Ready(ready)) => {
            Ok((Sender { sink, sequences: BTreeMap::new() }, receiver, ready))
        }
        Event::Closed { code, .. } => Err(ClientError::Closed { code }),
        other => Err(ClientError::Unreadable(format!("the first message is no ready: {other:?}"))),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sender<S> {
    /// # Errors
    /// [`ClientError::Socket`], as all methods here.
    pub async fn send(&mut self, message: &ClientMessage) -> Result<(), ClientError> {
        self.raw(Message::text(message.to_json())).await
    }

    /// Sends any WebSocket message, for tests of what a server makes of it.
    pub async fn raw(&mut self, message: Message) -> Result<(), ClientError> {
        self.sink.send(message).await.map_err(socket)
    }

    pub async fn open(&mut self, open: Open) -> Result<(), ClientError> {
        self.sequences.insert(open.context, 0);
        self.send(&ClientMessage::Open(Box::new(open))).await
    }

    /// Appends text under the next sequence number.
    pub async fn append(&mut self, context: u16, text: &str) -> Result<(), ClientError> {
        let sequence = self.sequences.entry(context).or_insert(0);
        *sequence += 1;
        let append = TextAppend { context, epoch: None, sequence: *sequence, text: Text::from(text) };
        self.send(&ClientMessage::TextAppend(append)).await
    }

    pub async fn flush(&mut self, context: u16) -> Result<(), ClientError> {
        self.send(&ClientMessage::TextFlush(ContextRef { context, epoch: None })).await
    }

    pub async fn end(&mut self, context: u16) -> Result<(), ClientError> {
        self.send(&ClientMessage::TextEnd(ContextRef { context, epoch: None })).await
    }

    /// Interrupts; text after it belongs to the next epoch.
    pub async fn cancel(&mut self, context: u16, played: Option<u64>) -> Result<(), ClientError> {
        self.sequences.insert(context, 0);
        self.send(&ClientMessage::Cancel(Cancel { context, epoch: None, played })).await
    }

    pub async fn report(&mut self, report: PlaybackReport) -> Result<(), ClientError> {
        self.send(&ClientMessage::Playback(report)).await
    }

    /// Sends a Close frame.
    pub async fn close(&mut self) -> Result<(), ClientError> {
        self.sink.close().await.map_err(socket)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Receiver<S> {
    /// Code and reason of the server's Close frame, once it has come: before [`Event::Closed`], which tells the connection's
    /// own end.
    #[must_use]
    pub fn close_frame(&self) -> Option<(u16, &str)> {
        self.close.as_ref().map(|(code, reason)| (*code, reason.as_str()))
    }

    /// The next event; after [`Event::Closed`] the same again. One that is given up before it is ready loses nothing.
    ///
    /// # Errors
    /// [`ClientError::Unreadable`] for a message that is not this protocol's.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        while !self.over {
            match self.stream.next().await {
                Some(Ok(Message::Close(frame))) => {
                    let said = frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                    // Polling on lets the library answer it.
                    self.close = Some(said.unwrap_or((NO_CODE, String::new())));
                }
                Some(Ok(_)) if self.close.is_some() => {}
                Some(Ok(Message::Text(text))) => {
                    let message = ServerMessage::from_json(&text);
                    return message.map(Event::Message).map_err(|e| ClientError::Unreadable(e.to_string()));
                }
                Some(Ok(Message::Binary(bytes))) => return packet(&bytes).map_err(unreadable),
                // Pings are answered by the library.
                Some(Ok(_)) => {}
                Some(Err(_)) | None => self.over = true,
            }
        }
        let (code, reason) = self.close.clone().unwrap_or((NO_CLOSE, String::new()));
        Ok(Event::Closed { code, reason })
    }
}

fn packet(message: &Bytes) -> Result<Event, WireError> {
    let (header, payload) = Header::decode(message)?;
    Ok(Event::Packet { header, payload: message.slice_ref(payload) })
}

fn unreadable(error: WireError) -> ClientError {
    ClientError::Unreadable(error.to_string())
}

fn socket(error: tungstenite::Error) -> ClientError {
    ClientError::Socket(Box::new(error))
}

fn refused(error: tungstenite::Error) -> ClientError {
    match error {
        tungstenite::Error::Http(response) => {
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            ClientError::Refused { status: response.status().as_u16(), body: body.into_owned() }
        }
        other => socket(other),
    }
}
