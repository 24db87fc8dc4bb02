//! The audio codecs of the native wire (docs/protocol.md section 5).

use codecs::pcm::RawEncoding;
use serde::Serialize;
use utoipa::ToSchema;

use super::{CLOCK_HZ, PacketKind};

/// Telephony's rate, which G.711 has where none is named.
const G711_HZ: u32 = 8_000;

/// What the packets of a context hold, and how a clip comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireCodec {
    #[default]
    Opus,
    /// Signed 16-bit little-endian mono.
    Pcm,
    /// G.711 mu-law, mono.
    MuLaw,
    /// G.711 A-law, mono.
    ALaw,
}

impl WireCodec {
    /// Every codec, by its name on the wire.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("opus", Self::Opus), ("pcm", Self::Pcm), ("mulaw", Self::MuLaw), ("alaw", Self::ALaw)];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opus => "opus",
            Self::Pcm => "pcm",
            Self::MuLaw => "mulaw",
            Self::ALaw => "alaw",
        }
    }

    /// The kind of the packets that carry it.
    #[must_use]
    pub const fn packet_kind(self) -> PacketKind {
        match self {
            Self::Opus => PacketKind::Opus,
            Self::Pcm => PacketKind::Pcm,
            Self::MuLaw => PacketKind::MuLaw,
            Self::ALaw => PacketKind::ALaw,
        }
    }

    /// How samples lie in packets; `None` for Opus.
    #[must_use]
    pub const fn encoding(self) -> Option<RawEncoding> {
        match self {
            Self::Opus => None,
            Self::Pcm => Some(RawEncoding::S16Le),
            Self::MuLaw => Some(RawEncoding::MuLaw),
            Self::ALaw => Some(RawEncoding::ALaw),
        }
    }

    /// Hertz of what a model of `model_hz` speaks, where no rate is asked for: Opus takes only its own rates.
    #[must_use]
    pub const fn rate_hz(self, model_hz: u32) -> u32 {
        match self {
            Self::Opus if !matches!(model_hz, 8_000 | 12_000 | 16_000 | 24_000 | 48_000) => CLOCK_HZ,
            Self::Opus | Self::Pcm => model_hz,
            Self::MuLaw | Self::ALaw => G711_HZ,
        }
    }

    /// Hertz of a clip that comes without saying any: Opus is decoded at the wire's clock. `None` for PCM,
    /// which must say.
    #[must_use]
    pub const fn clip_rate_hz(self) -> Option<u32> {
        match self {
            Self::Opus => Some(CLOCK_HZ),
            Self::Pcm => None,
            Self::MuLaw | Self::ALaw => Some(G711_HZ),
        }
    }
}
