//! The 16-byte header of binary messages (docs/protocol.md section 5). Network byte order.

use contract::Epoch;

use super::WireError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Longest packet Opus allows: 120 ms at 48 kHz.
pub const DURATION_MAX: u16 = 5_760;

const VERSION: u8 = 1;

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketKind {
    /// Nothing: time passes in silence, or only a flag is carried.
    Gap,
    /// One Opus packet.
    Opus,
    /// Signed 16-bit little-endian mono.
    Pcm,
    /// G.711 mu-law, mono.
    MuLaw,
    /// G.711 A-law, mono.
    ALaw,
}

/// Flag bits of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

/// Describes one packet. Times and positions count 48 kHz samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: PacketKind,
    pub flags: Flags,
    pub context: u16,
    /// +1 per packet of the context, over all epochs, from 1.
    pub sequence: u32,
    /// Decoder position of the packet's first sample; 0 at each epoch's start. Wraps after 24 hours.
    pub timestamp: u32,
    /// Samples of the packet that are to be kept.
    pub duration: u16,
    pub epoch: Epoch,
}

impl Flags {
    pub const NONE: Self = Self(0);
    /// First packet of an epoch, or first after a loss: reset the decoder.
    pub const START: Self = Self(1);
    /// Last packet of the epoch.
    pub const END: Self = Self(2);
    /// Silence.
    pub const DTX: Self = Self(4);
    /// Reserved: u16-length-prefixed packets follow.
    pub const BUNDLE: Self = Self(8);

    const KNOWN: u8 = 0b1111;

    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flag byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Header {
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            PacketKind::Opus => 0,
            PacketKind::Pcm => 1,
            PacketKind::Gap => 2,
            PacketKind::MuLaw => 3,
            PacketKind::ALaw => 4,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = VERSION << 4 | kind;
        bytes[1] = self.flags.0;
        bytes[2..4].copy_from_slice(&self.context.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.timestamp.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.duration.to_be_bytes());
        bytes[14..16].copy_from_slice(&self.epoch.0.to_be_bytes());
        bytes
    }

    /// Splits a binary message into header and payload.
    ///
    /// # Errors
    /// [`WireError::BadHeader`]: too short, another version, unknown kind or flags, a duration over
    /// [`DURATION_MAX`], or a gap marker with a payload.
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::BadHeader { what: "it is shorter than 16 bytes" });
        };
        if head[0] >> 4 != VERSION {
            return Err(WireError::BadHeader { what: "its version is not 1" });
        }
        let kind = match head[0] & 0x0F {
            0 => PacketKind::Opus,
            1 => PacketKind::Pcm,
            2 => PacketKind::Gap,
            3 => PacketKind::MuLaw,
            4 => PacketKind::ALaw,
            _ => return Err(WireError::BadHeader { what: "its kind is none of 0 to 4" }),
        };
        if head[1] & !Flags::KNOWN != 0 {
            return Err(WireError::BadHeader { what: "it sets flag bits that are not defined" });
        }
        let header = Self {
            kind,
            flags: Flags(head[1]),
            context: u16::from_be_bytes([head[2], head[3]]),
            sequence: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            timestamp: u32::from_be_bytes([head[8], head[9], head[10], head[11]]),
            duration: u16::from_be_bytes([head[12], head[13]]),
            epoch: Epoch(u16::from_be_bytes([head[14], head[15]])),
        };
        if header.duration > DURATION_MAX {
            return Err(WireError::BadHeader { what: "its duration is over 5760" });
        }
        if kind == PacketKind::Gap && !payload.is_empty() {
            return Err(WireError::BadHeader { what: "a gap marker has no payload" });
        }
        Ok((header, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Header = Header {
        kind: PacketKind::Pcm,
        flags: Flags::START,
        context: 0x0102,
        sequence: 0x0304_0506,
        timestamp: 0x0708_090A,
        duration: 960,
        epoch: Epoch(0x0B0C),
    };

    #[test]
    fn a_header_lies_on_the_wire_as_the_page_says() {
        assert_eq!(EXAMPLE.encode(), [0x11, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0x03, 0xC0, 0x0B, 0x0C]);
        let mut message = EXAMPLE.encode().to_vec();
        message.extend_from_slice(b"xy");
        assert_eq!(Header::decode(&message), Ok((EXAMPLE, &b"xy"[..])));
    }

    #[test]
    fn every_kind_has_its_number_and_comes_back_as_it_was() {
        use PacketKind::{ALaw, Gap, MuLaw, Opus, Pcm};
        for (number, kind) in (0..).zip([Opus, Pcm, Gap, MuLaw, ALaw]) {
            let header = Header { kind, ..EXAMPLE };
            assert_eq!(header.encode()[0], 0x10 | number);
            assert_eq!(Header::decode(&header.encode()), Ok((header, &[][..])));
        }
    }

    #[test]
    fn each_wrong_header_is_refused() {
        let good = EXAMPLE.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            bytes
        };
        assert!(Header::decode(&good[..15]).is_err());
        assert!(Header::decode(&with(0, 0x21)).is_err());
        assert!(Header::decode(&with(0, 0x15)).is_err());
        assert!(Header::decode(&with(1, 0x10)).is_err());
        assert!(Header::decode(&with(12, 0xFF)).is_err());
        let mut gap = with(0, 0x12).to_vec();
        assert!(Header::decode(&gap).is_ok());
        gap.push(0);
        assert!(Header::decode(&gap).is_err());
    }
}
