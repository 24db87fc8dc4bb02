//! Why a session wants to wake.

/// Why a session wants to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeoutReason {
    /// A context without `text.end` has been silent.
    ContextIdle,
    /// The client's protocol has something due.
    Dialect,
    /// The drain's time is over.
    Drain,
    /// The engine's mailbox was full.
    EngineRetry,
    /// The session has been silent.
    Idle,
    /// An engine did not let go of a cancelled epoch.
    LettingGo,
    /// Nothing to wait for.
    None,
    /// The next packet may leave.
    Pacing,
    Ping,
    /// Playback reports are missing.
    Reports,
    /// The lost connection was not taken up.
    ResumeWindow,
    /// The socket or the peer takes nothing.
    SlowReader,
    /// The text has run dry.
    TailWait,
    /// The token is over, and so is the time to finish in.
    Token,
}

impl TimeoutReason {
    /// For metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContextIdle => "context_idle",
            Self::Dialect => "dialect",
            Self::Drain => "drain",
            Self::EngineRetry => "engine_retry",
            Self::Idle => "idle",
            Self::LettingGo => "letting_go",
            Self::None => "none",
            Self::Pacing => "pacing",
            Self::Ping => "ping",
            Self::Reports => "reports",
            Self::ResumeWindow => "resume_window",
            Self::SlowReader => "slow_reader",
            Self::TailWait => "tail_wait",
            Self::Token => "token",
        }
    }
}
