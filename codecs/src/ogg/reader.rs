//! Pages to packets, and whole files to samples.

use std::io::{Cursor, ErrorKind};

use ogg::{OggReadError, PacketReader};

use super::{OpusHead, OpusTags, malformed};
use crate::opus::{OpusDecoder, packet_duration_48k};
use crate::{AudioLimits, CodecError, MonoAudio, OPUS_CLOCK_HZ};

/// One audio packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OggOpusPacket {
    pub data: Vec<u8>,
    pub duration_48k: u32,
    /// The page's granule position, on the last packet that ends on it: 48 kHz samples up to the last one
    /// to keep, pre-skip included.
    pub granule_48k: Option<u64>,
    /// The stream ends with this packet.
    pub last: bool,
}

/// Reads the first Opus stream of a file held in memory; other streams are passed over. Page checksums
/// are verified.
pub struct OggOpusReader<'a> {
    packets: PacketReader<Cursor<&'a [u8]>>,
    head: OpusHead,
    tags: OpusTags,
    serial: u32,
    limits: AudioLimits,
    duration_48k: u64,
    ended: bool,
}

impl<'a> OggOpusReader<'a> {
    /// Reads both headers.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`] beyond `limits`, [`CodecError::Truncated`], [`CodecError::Malformed`],
    /// [`CodecError::Unsupported`] for more than two channels.
    pub fn new(file: &'a [u8], limits: &AudioLimits) -> Result<Self, CodecError> {
        limits.check_bytes(file.len())?;
        let mut packets = PacketReader::new(Cursor::new(file));
        let first = first_opus_packet(&mut packets)?;
        let head = OpusHead::parse(&first.data)?;
        limits.check_channels(u16::from(head.channels))?;
        let serial = first.stream_serial();
        let tags = loop {
            let packet = read(&mut packets)?.ok_or(malformed("no OpusTags"))?;
            if packet.stream_serial() == serial {
                break OpusTags::parse(&packet.data)?;
            }
        };
        Ok(Self { packets, head, tags, serial, limits: *limits, duration_48k: 0, ended: false })
    }

    #[must_use]
    pub fn head(&self) -> &OpusHead {
        &self.head
    }

    #[must_use]
    pub fn tags(&self) -> &OpusTags {
        &self.tags
    }

    /// Whether the end mark has been read. A recording that was cut off lacks it.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The next audio packet, or None at the end of the stream or the file.
    ///
    /// # Errors
    /// As [`Self::new`]; after an error the rest of the file must not be read.
    pub fn next_packet(&mut self) -> Result<Option<OggOpusPacket>, CodecError> {
        while !self.ended {
            let Some(packet) = read(&mut self.packets)? else { return Ok(None) };
            if packet.stream_serial() != self.serial {
                continue;
            }
            self.ended = packet.last_in_stream();
            let granule = packet.absgp_page();
            // All ones marks a page on which no packet ends.
            if packet.last_in_page() && granule == u64::MAX {
                return Err(malformed("a page that ends a packet has no granule position"));
            }
            let duration_48k = packet_duration_48k(&packet.data)?;
            self.duration_48k += u64::from(duration_48k);
            self.limits.check_duration(self.duration_48k, OPUS_CLOCK_HZ)?;
            return Ok(Some(OggOpusPacket {
                duration_48k,
                granule_48k: packet.last_in_page().then_some(granule),
                last: self.ended,
                data: packet.data,
            }));
        }
        Ok(None)
    }
}

/// Decodes a whole file at `rate_hz` (8, 12, 16, 24 or 48 kHz), pre-skip and end trim applied, with the
/// gain its header asks for, clamped to [-1, 1]. Stereo is mixed to mono.
///
/// # Errors
/// As [`OggOpusReader::new`], and [`CodecError::InvalidSetting`] for another rate.
pub fn decode(file: &[u8], rate_hz: u32, limits: &AudioLimits) -> Result<MonoAudio, CodecError> {
    let mut reader = OggOpusReader::new(file, limits)?;
    let mut decoder = OpusDecoder::new(rate_hz, u32::from(reader.head.pre_skip_48k))?;
    let gain = 10f32.powf(f32::from(reader.head.output_gain_q8) / (20.0 * 256.0));
    let mut samples = Vec::new();
    let mut span = Span::default();
    while let Some(packet) = reader.next_packet()? {
        span.take(&packet)?;
        samples.extend(decoder.decode(&packet.data)?.iter().map(|sample| (sample * gain).clamp(-1.0, 1.0)));
    }
    let keep_48k = span.end_48k().saturating_sub(u64::from(reader.head.pre_skip_48k));
    let keep = keep_48k * u64::from(rate_hz) / u64::from(OPUS_CLOCK_HZ);
    samples.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    Ok(MonoAudio { rate_hz, samples })
}

/// Which part of the decoded samples belongs to the sound (RFC 7845 sections 4.3 to 4.5).
#[derive(Default)]
struct Span {
    decoded_48k: u64,
    /// Position of the first decoded sample: above 0 when a live stream was joined late.
    start_48k: Option<u64>,
    /// Position at which the end mark says to stop.
    stop_48k: Option<u64>,
}

impl Span {
    fn take(&mut self, packet: &OggOpusPacket) -> Result<(), CodecError> {
        self.decoded_48k += u64::from(packet.duration_48k);
        let Some(granule) = packet.granule_48k else { return Ok(()) };
        if self.start_48k.is_none() {
            self.start_48k = Some(match granule.checked_sub(self.decoded_48k) {
                Some(start) => start,
                // Only a page that is both first and last may hold more than its position says.
                None if packet.last => 0,
                None => return Err(malformed("the first audio page holds more than its granule position")),
            });
        }
        if packet.last {
            self.stop_48k = Some(granule);
        }
        Ok(())
    }

    /// Decoded samples up to the last one to keep, counted from the first decoded one.
    fn end_48k(&self) -> u64 {
        let start = self.start_48k.unwrap_or(0);
        self.stop_48k.map_or(self.decoded_48k, |stop| stop.saturating_sub(start).min(self.decoded_48k))
    }
}

/// Multiplexed files begin with the first packet of every stream; only one of them need be Opus.
fn first_opus_packet(packets: &mut PacketReader<Cursor<&[u8]>>) -> Result<ogg::Packet, CodecError> {
    while let Some(packet) = read(packets)? {
        if packet.data.starts_with(b"OpusHead") {
            return Ok(packet);
        }
        if !packet.first_in_stream() {
            break;
        }
    }
    Err(malformed("no Opus stream in it"))
}

fn read(packets: &mut PacketReader<Cursor<&[u8]>>) -> Result<Option<ogg::Packet>, CodecError> {
    packets.read_packet().map_err(|error| match error {
        OggReadError::HashMismatch(..) => malformed("a page's checksum is wrong"),
        OggReadError::InvalidStreamStructVer(_) => malformed("an unknown version of Ogg"),
        OggReadError::NoCapturePatternFound => malformed("no Ogg page where one should be"),
        OggReadError::ReadError(cause) if cause.kind() == ErrorKind::UnexpectedEof => {
            malformed("the file ends inside a page")
        }
        _ => malformed("pages that do not follow each other"),
    })
}
