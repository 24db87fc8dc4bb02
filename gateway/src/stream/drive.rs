//! The drive: one task that owns a session and does what it says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use contract::{EngineError, EngineHandle, FinishReason, Output as EngineOutput, Span, Tick, Usage};
use proto::dialect::Dialect;
use proto::session::{
    Config, EncodeJob, Encoded as WireEncoded, EngineCommand, EpochKey, JUDGED_MAX, Message, Output, Session,
    TimeoutReason,
};
use proto::wire::{CloseCode, Received};
use tokio::runtime::RuntimeFlavor;
use tokio::sync::oneshot;

use super::accounts::Accounts;
use super::encoders::{Encoders, Made};
use super::engine_side::{EngineSide, Reply};
use super::late_queue::LateQueue;
use super::references::Judged;
use super::registry::{Attach, Place, Visit};
use super::socket::{Activity, Came, Event, Outgoing, Socket};
use super::watch::Watch;
use crate::app::App;
use crate::auth::TokenEnd;
use crate::bodies::Room;
use crate::drain::Guard;
use crate::encode::Encoded;
use crate::metrics::Metrics;
use crate::output::Tagged;
use crate::usage::Account;

/// When to offer work again that the encoding pool had no room for.
const POOL_RETRY: Duration = Duration::from_millis(5);

/// Epochs that may hold an engine context at once beside the live ones: cut, and not yet let go of.
const LETTING_GO_MAX: usize = 64;

/// What the drive wakes for.
enum Wake {
    Drain(Tick),
    Encoded(Box<Encoded>),
    Engine(Box<Tagged>),
    Reference(Box<Judged>),
    Retry,
    Socket(Came),
    Timeout(TimeoutReason),
    TokenEnd,
    Visit(Visit),
    Written(u64),
}

/// What a session is started with.
pub(super) struct Start {
    pub(super) engine: Arc<dyn EngineHandle>,
    pub(super) config: Config,
    pub(super) dialect: Box<dyn Dialect>,
    pub(super) place: Place,
    pub(super) owner: TokenEnd,
    pub(super) account: Account,
}

struct Drive {
    app: Arc<App>,
    session: Session,
    engine: EngineSide,
    encoders: Encoders,
    socket: Option<Socket>,
    judged: LateQueue<Judged>,
    /// What the clip that is coming takes.
    coming: Room,
    /// Whoever comes by the present token; nobody twice.
    visit: Option<oneshot::Receiver<Visit>>,
    token: String,
    place: Place,
    /// Whose token opened it, and when that ends.
    owner: TokenEnd,
    token_over: bool,
    accounts: Accounts,
    replies: VecDeque<Reply>,
    watch: Watch,
    /// The session had no socket, and its place was needed.
    evicted: bool,
    /// Set when the session is over, with the name of the close.
    over: Option<&'static str>,
}

/// Runs a session from its first socket to its end; `guard` keeps the process from ending before it. What the
/// task holds is made before it: an `async fn` would keep room for its arguments beside it.
pub(super) fn run(
    app: Arc<App>,
    start: Start,
    socket: Socket,
    guard: Arc<Guard>,
) -> impl Future<Output = ()> + Send + use<> {
    let counted = Counted::new(&app.metrics);
    let mut drive = Drive::new(app, start, socket);
    drive.settle();
    async move {
        drive.follow(counted).await;
        drop(guard);
    }
}

/// Counts a session in and out, whatever way its task ends.
struct Counted {
    metrics: Metrics,
    close: &'static str,
}

impl Counted {
    fn new(metrics: &Metrics) -> Self {
        metrics.session_opened();
        // What stands here when the task ends by a fault of ours.
        Self { metrics: metrics.clone(), close: "internal" }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.session_closed(self.close);
    }
}

/// The socket's next event, or what it has written; never, without a socket.
async fn next_event(socket: &mut Option<Socket>) -> Wake {
    let Some(socket) = socket else { return std::future::pending().await };
    match socket.next().await {
        Activity::Event(came) => Wake::Socket(came),
        Activity::Written(bytes) => Wake::Written(bytes),
    }
}

/// Who comes to the door; never, once somebody has.
async fn next_visit(door: &mut Option<oneshot::Receiver<Visit>>) -> Visit {
    let Some(visit) = door else { return std::future::pending().await };
    let visit = visit.await;
    *door = None;
    match visit {
        Ok(visit) => visit,
        Err(_) => std::future::pending().await,
    }
}

impl Drive {
    fn new(app: Arc<App>, start: Start, socket: Socket) -> Self {
        let Start { engine, config, dialect, place, owner, account } = start;
        let rate = config.engine.models.first().map_or(0, |model| model.sample_rate);
        let epochs = config.limits.contexts_open + LETTING_GO_MAX;
        let token = config.resume.clone();
        Self {
            engine: EngineSide::new(engine, epochs),
            encoders: Encoders::new(Arc::clone(&app), epochs),
            socket: Some(socket),
            judged: LateQueue::new(JUDGED_MAX),
            coming: app.bodies.room(),
            visit: Some(app.sessions.announce(owner.resume_key(&token), &place)),
            session: Session::with_dialect(app.clock.now(), config, dialect),
            token,
            place,
            owner,
            token_over: false,
            watch: Watch::new(account.door, app.metrics.clone()),
            accounts: Accounts::new(account, rate),
            replies: VecDeque::new(),
            evicted: false,
            over: None,
            app,
        }
    }

    /// Does whatever comes until the session is over.
    async fn follow(&mut self, mut counted: Counted) {
        let app = Arc::clone(&self.app);
        let mut drain = std::pin::pin!(app.drain.started());
        let mut draining = false;
        while self.over.is_none() {
            let (due, reason) = self.session.poll_timeout();
            let timer = async {
                match due {
                    Tick::NEVER => std::future::pending().await,
                    due => tokio::time::sleep_until(app.clock.deadline(due)).await,
                }
            };
            let token_end = self.token_end();
            let stuck = self.encoders.stuck();
            let wake = tokio::select! {
                // The client first, so that a cancel overtakes the audio it cancels.
                biased;
                event = next_event(&mut self.socket) => event,
                encoded = self.encoders.next() => Wake::Encoded(encoded),
                output = self.engine.next() => Wake::Engine(output),
                judged = self.judged.next() => Wake::Reference(judged),
                visit = next_visit(&mut self.visit) => Wake::Visit(visit),
                until = &mut drain, if !draining => Wake::Drain(until),
                () = tokio::time::sleep(POOL_RETRY), if stuck => Wake::Retry,
                () = token_end => Wake::TokenEnd,
                () = timer => Wake::Timeout(reason),
            };
            draining |= matches!(wake, Wake::Drain(_));
            self.wake(wake);
            if self.coming.set(self.session.coming_bytes()).is_err() {
                self.session.handle_close(self.app.clock.now(), CloseCode::Overload, None);
            }
            self.settle();
        }
        let Drive { accounts, session, .. } = self;
        accounts.close(|key| session.characters(key), &app.usage);
        app.sessions.withdraw(&self.owner.resume_key(&self.token));
        self.watch.counters(self.session.counters());
        app.paces().absorb(self.session.paces());
        counted.close = self.over.unwrap_or("peer");
        tracing::info!(session = self.accounts.account.request, close = counted.close, "session ended");
    }

    fn wake(&mut self, wake: Wake) {
        let now = self.app.clock.now();
        match wake {
            Wake::Drain(until) => self.session.handle_drain(now, "drain", until.since(now)),
            Wake::Encoded(encoded) => {
                if let Some(made) = self.encoders.reply(*encoded) {
                    self.made(now, made);
                }
            }
            Wake::Engine(tagged) => {
                if let Some(key) = self.engine.output(&tagged) {
                    self.count(key, &tagged.output);
                    self.watch.engine(now, key, &tagged.output);
                    self.session.handle_engine(now, key, tagged.output);
                }
            }
            Wake::Reference(judged) => {
                let (context, clip) = *judged;
                self.session.handle_reference(now, context, clip);
            }
            Wake::Retry => self.encoders.retry(),
            Wake::Socket(Came { event, room }) => {
                self.event(now, event);
                drop(room);
            }
            Wake::Timeout(reason) => {
                self.app.metrics.session_woke(reason.name());
                self.session.handle_timeout(now);
            }
            Wake::Visit(Visit::Attach(attach)) => self.attach(now, *attach),
            Wake::Visit(Visit::Leave) => {
                self.session.handle_peer_close(now);
                self.evicted = true;
            }
            Wake::TokenEnd => self.end_token(now),
            Wake::Written(bytes) => {
                self.session.handle_written(now, usize::try_from(bytes).unwrap_or(usize::MAX));
            }
        }
    }

    /// Resolves when the token ends; after that, never.
    fn token_end(&self) -> impl Future<Output = ()> + use<> {
        let due = (self.owner.at != Tick::NEVER && !self.token_over).then_some(self.owner.at);
        let clock = self.app.clock;
        async move {
            match due {
                // A far deadline is approached in steps that the clock allows.
                Some(due) => {
                    while clock.now() < due {
                        tokio::time::sleep_until(clock.deadline(due)).await;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    fn end_token(&mut self, now: Tick) {
        self.token_over = true;
        let grace = self.app.config.auth.token_grace;
        let grace = Span::from_micros(i64::try_from(grace.as_micros()).unwrap_or(i64::MAX));
        self.session.handle_token_end(now, grace);
    }

    fn event(&mut self, now: Tick, event: Event) {
        match event {
            Event::Binary(bytes) => self.session.handle_message(now, Message::Binary(&bytes)),
            Event::Closed => self.session.handle_peer_close(now),
            Event::Lost => {
                self.socket = None;
                self.app.sessions.lose(&self.owner.resume_key(&self.token));
                self.session.handle_detach(now);
            }
            Event::NoRoom => self.session.handle_close(now, CloseCode::Overload, None),
            Event::Ping => self.session.handle_ping(now),
            Event::Pong(payload) => {
                self.watch.pong(now, &payload);
                self.watch.counters(self.session.counters());
                self.app.metrics.queue_depth("socket", self.socket.as_ref().map_or(0, Socket::depth));
                self.app.metrics.queue_depth("pacer_samples", self.session.waiting_samples() as usize);
                self.session.handle_pong(now, &payload);
            }
            Event::Text(text) => unhurried(text.len(), || {
                self.session.handle_message(now, Message::Text(&text));
            }),
            Event::TooBig => self.session.handle_close(now, CloseCode::TooBig, None),
            Event::Violation => self.session.handle_close(now, CloseCode::Policy, None),
        }
    }

    /// Does all the session asks until it asks for nothing.
    fn settle(&mut self) {
        loop {
            while let Some(output) = self.session.poll_output() {
                let now = self.app.clock.now();
                self.output(now, output);
                if self.over.is_some() {
                    return;
                }
            }
            let now = self.app.clock.now();
            match self.replies.pop_front() {
                Some((key, reply)) => {
                    match &reply {
                        Ok(accepted) => self.accounts.ids(key, accepted.ids),
                        Err(_) if self.engine.is_open(key) => {}
                        // Refused, so its engine will not say that it has ended.
                        Err(_) => self.accounts.refused(key, self.session.characters(key), &self.app.usage),
                    }
                    self.session.handle_reply(now, key, reply);
                }
                None => break,
            }
        }
        if self.session.is_closed() {
            self.over = Some(if self.evicted { "evicted" } else { "peer" });
        }
    }

    fn output(&mut self, now: Tick, output: Output) {
        match output {
            Output::Close { code } => {
                if let Some(socket) = self.socket.take() {
                    socket.close(code);
                }
                self.over = Some(code.name());
            }
            Output::Encode(job) => self.encode(now, job),
            Output::Engine(command) => {
                match &command {
                    EngineCommand::Open { key, .. } => {
                        self.accounts.open(*key);
                        if let Some(refusal) = self.app.encode.refusal() {
                            self.replies.extend([(*key, Err(refusal))]);
                            return;
                        }
                    }
                    EngineCommand::PushText { key, .. } => self.watch.text(now, *key),
                    _ => {}
                }
                self.replies.extend(self.engine.command(command));
            }
            Output::Reference(job) => {
                super::references::judge(&self.app, *job, self.judged.sender());
            }
            Output::Resume { token, received } => self.resume(now, &token, received),
            Output::Said(said) => self.watch.said(now, said),
            Output::SendBinary(bytes) => self.send(now, Outgoing::Binary(bytes)),
            Output::SendPing(payload) => {
                self.watch.ping(now, payload);
                self.send(now, Outgoing::Ping(payload));
            }
            Output::SendText(text) => self.send(now, Outgoing::Text(text)),
        }
    }

    /// The queue onto the socket holds thousands of messages: one who lets it fill does not read.
    fn send(&mut self, now: Tick, message: Outgoing) {
        let Some(socket) = &self.socket else { return };
        if socket.send(message).is_err() && !socket.ended() {
            self.session.handle_close(now, CloseCode::SlowReader, None);
        }
    }

    fn encode(&mut self, now: Tick, job: EncodeJob) {
        let key = job.key;
        if let Err(error) = self.encoders.take(job) {
            self.made(now, Made { key, packets: Vec::new(), last: true, failed: Some(error) });
        }
    }

    fn made(&mut self, now: Tick, made: Made) {
        let Made { key, packets, last, failed } = made;
        if let Some(error) = failed {
            // The epoch fails as it would if its engine had: the engine is let go of, and says no more.
            self.engine.abandon(key);
            let error = Some(EngineError::Internal { what: format!("encoding failed: {error}") });
            let output =
                EngineOutput::Finished { reason: FinishReason::Failed, usage: Usage::default(), error };
            self.count(key, &output);
            self.watch.engine(now, key, &output);
            self.session.handle_engine(now, key, output);
            self.session.handle_encoded(now, key, WireEncoded { packets, last: true });
            return;
        }
        self.session.handle_encoded(now, key, WireEncoded { packets, last });
    }

    fn count(&mut self, key: EpochKey, output: &EngineOutput) {
        self.accounts.output(key, output, self.session.characters(key), &self.app.usage);
    }

    /// This session's client wants another session back: its socket moves there, and this one ends.
    fn resume(&mut self, now: Tick, token: &str, received: Vec<Received>) {
        let Some(socket) = self.socket.take() else { return };
        let attach = Attach { socket, received, token_end: self.owner.at };
        match self.app.sessions.attach(&self.owner.resume_key(token), attach) {
            Ok(()) => self.over = Some("resumed"),
            Err(attach) => {
                self.socket = Some(attach.socket);
                self.session.handle_resume_refused(now);
            }
        }
    }

    fn attach(&mut self, now: Tick, attach: Attach) {
        let Ok(token) = super::resume_token() else {
            // Without random bytes there can be no next token; the session ends as ours to blame.
            attach.socket.close(CloseCode::Internal);
            return;
        };
        // The newest connection is the client's; one that was not known to be dead is told.
        if let Some(earlier) = self.socket.replace(attach.socket) {
            earlier.close(CloseCode::Replaced);
        }
        self.visit = Some(self.app.sessions.announce(self.owner.resume_key(&token), &self.place));
        self.owner.at = attach.token_end;
        self.token_over = false;
        self.session.handle_token_renewed(now);
        self.token.clone_from(&token);
        self.session.handle_attach(now, token, &attach.received);
    }
}

/// Bytes of a message whose work may take so long that other sessions would hear it: half an hour of a
/// telephone's audio fits one, and is listened to for seconds.
const LONG_MESSAGE_BYTES: usize = 65_536;

/// Does the work of a long message without holding up what shares this thread.
fn unhurried(bytes: usize, work: impl FnOnce()) {
    let shared = || tokio::runtime::Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if bytes > LONG_MESSAGE_BYTES && shared() { tokio::task::block_in_place(work) } else { work() }
}
