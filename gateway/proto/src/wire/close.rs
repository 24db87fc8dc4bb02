//! Close codes (docs/protocol.md section 10).

/// Why the server closes a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseCode {
    /// All is done.
    Done,
    /// Drain, and its time is over.
    GoingAway,
    /// Nothing came for longer than the idle limit.
    Idle,
    /// A fault of ours that ends this session only.
    Internal,
    /// No room after the upgrade.
    Overload,
    /// A violation of the protocol.
    Policy,
    /// The tenant's quota is used up.
    Quota,
    /// Another connection has taken the session over.
    Replaced,
    /// Drain, and nothing was running.
    Restart,
    /// Sent data was not taken away in time.
    SlowReader,
    /// The token is missing, wrong or over.
    Token,
    /// A message or frame over the limit.
    TooBig,
}

impl CloseCode {
    pub const ALL: [Self; 12] = [
        Self::Done,
        Self::GoingAway,
        Self::Idle,
        Self::Internal,
        Self::Overload,
        Self::Policy,
        Self::Quota,
        Self::Replaced,
        Self::Restart,
        Self::SlowReader,
        Self::Token,
        Self::TooBig,
    ];

    /// The number in the Close frame (RFC 6455 section 7.4; 4000 and up are ours).
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Done => 1000,
            Self::GoingAway => 1001,
            Self::Policy => 1008,
            Self::TooBig => 1009,
            Self::Internal => 1011,
            Self::Restart => 1012,
            Self::Overload => 1013,
            Self::Token => 4401,
            Self::Idle => 4408,
            Self::Replaced => 4409,
            Self::Quota => 4429,
            Self::SlowReader => 4499,
        }
    }

    /// Name in the Close frame's reason, in metrics and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::GoingAway => "going_away",
            Self::Idle => "idle",
            Self::Internal => "internal",
            Self::Overload => "overload",
            Self::Policy => "policy",
            Self::Quota => "quota",
            Self::Replaced => "replaced",
            Self::Restart => "restart",
            Self::SlowReader => "slow_reader",
            Self::Token => "token",
            Self::TooBig => "too_big",
        }
    }

    /// The close code with this number, if it is one of ours.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        let mut at = 0;
        while at < Self::ALL.len() {
            if Self::ALL[at].code() == code {
                return Some(Self::ALL[at]);
            }
            at += 1;
        }
        None
    }
}
