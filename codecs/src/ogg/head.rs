//! The two header packets (RFC 7845 section 5).

use super::malformed;
use crate::CodecError;

/// Most bytes of comments the writer takes: they fit one page, so the headers are always two pages.
const COMMENT_BYTES_MAX: usize = 32 << 10;

const VENDOR: &str = "voxlane";

/// The identification header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpusHead {
    pub channels: u8,
    /// Rate of the original input, for information only; decoding may use any Opus rate.
    pub input_rate_hz: u32,
    /// Gain to apply after decoding, in 1/256 dB.
    pub output_gain_q8: i16,
    /// Decoded 48 kHz samples to drop at the start.
    pub pre_skip_48k: u16,
}

impl OpusHead {
    pub(super) fn to_packet(self) -> Vec<u8> {
        let mut packet = b"OpusHead".to_vec();
        packet.extend([1, self.channels]);
        packet.extend(self.pre_skip_48k.to_le_bytes());
        packet.extend(self.input_rate_hz.to_le_bytes());
        packet.extend(self.output_gain_q8.to_le_bytes());
        packet.push(0);
        packet
    }

    pub(super) fn parse(packet: &[u8]) -> Result<Self, CodecError> {
        let Some(body) = packet.strip_prefix(b"OpusHead") else {
            return Err(malformed("the first packet is no OpusHead"));
        };
        let [version, channels, skip0, skip1, rate0, rate1, rate2, rate3, gain0, gain1, family, ..] = *body
        else {
            return Err(malformed("OpusHead is shorter than 19 bytes"));
        };
        // The upper half of the version names incompatible revisions.
        if version >> 4 != 0 {
            return Err(malformed("an OpusHead version from the future"));
        }
        if family != 0 {
            return Err(CodecError::Unsupported {
                what: "Opus channel mapping family",
                found: u64::from(family),
                supported: "mono or stereo (family 0)",
            });
        }
        if !(1..=2).contains(&channels) {
            return Err(malformed("mapping family 0 has one or two channels"));
        }
        Ok(Self {
            channels,
            input_rate_hz: u32::from_le_bytes([rate0, rate1, rate2, rate3]),
            output_gain_q8: i16::from_le_bytes([gain0, gain1]),
            pre_skip_48k: u16::from_le_bytes([skip0, skip1]),
        })
    }
}

/// The comment header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpusTags {
    pub vendor: String,
    /// Name and value, in file order.
    pub comments: Vec<(String, String)>,
}

impl OpusTags {
    /// Our tags with these comments. Names are ASCII without `=`, as Vorbis comments have them.
    pub(super) fn of(comments: &[(String, String)]) -> Result<Self, CodecError> {
        let bytes: usize = comments.iter().map(|(name, value)| name.len() + value.len() + 5).sum();
        if bytes > COMMENT_BYTES_MAX {
            return Err(CodecError::TooLarge {
                what: "size of the Ogg comments in bytes",
                found: bytes as u64,
                limit: COMMENT_BYTES_MAX as u64,
            });
        }
        let valid = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| matches!(byte, 0x20..=0x7D) && byte != b'=')
        };
        if !comments.iter().all(|(name, _)| valid(name)) {
            return Err(malformed("a comment name must be printable ASCII without '='"));
        }
        Ok(Self { vendor: VENDOR.to_owned(), comments: comments.to_vec() })
    }

    pub(super) fn to_packet(&self) -> Vec<u8> {
        let mut packet = b"OpusTags".to_vec();
        // Lengths fit, because `of` bounds them far below 4 GiB.
        let put_len = |packet: &mut Vec<u8>, len: usize| packet.extend((len as u32).to_le_bytes());
        put_len(&mut packet, self.vendor.len());
        packet.extend(self.vendor.as_bytes());
        put_len(&mut packet, self.comments.len());
        for (name, value) in &self.comments {
            put_len(&mut packet, name.len() + 1 + value.len());
            packet.extend(name.as_bytes());
            packet.push(b'=');
            packet.extend(value.as_bytes());
        }
        packet
    }

    pub(super) fn parse(packet: &[u8]) -> Result<Self, CodecError> {
        let Some(mut rest) = packet.strip_prefix(b"OpusTags") else {
            return Err(malformed("the second packet is no OpusTags"));
        };
        let vendor = take_text(&mut rest)?;
        let count = take_u32(&mut rest)?;
        let mut comments = Vec::new();
        // Each round takes at least four bytes, so a lying count ends with the packet.
        for _ in 0..count {
            let comment = take_text(&mut rest)?;
            let (name, value) = comment.split_once('=').unwrap_or((&comment, ""));
            comments.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self { vendor, comments })
    }
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, CodecError> {
    let (bytes, tail) = rest.split_first_chunk::<4>().ok_or(malformed("OpusTags ends early"))?;
    *rest = tail;
    Ok(u32::from_le_bytes(*bytes))
}

fn take_text(rest: &mut &[u8]) -> Result<String, CodecError> {
    let len = take_u32(rest)? as usize;
    let (bytes, tail) = rest.split_at_checked(len).ok_or(malformed("OpusTags ends early"))?;
    *rest = tail;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
