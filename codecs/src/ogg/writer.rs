//! Packets to pages, released as early as asked.

use ogg::{PacketWriteEndInfo, PacketWriter};

use super::{OpusHead, OpusTags};
use crate::CodecError;
use crate::opus::OpusPacket;

/// What a stream's headers say and how its pages are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OggOpusSettings {
    /// Name and value of further comments; our vendor string is always there.
    pub comments: Vec<(String, String)>,
    /// Rate of the samples that were encoded.
    pub input_rate_hz: u32,
    /// Audio packets on one page, 1 to 5: fewer leave earlier, more cost less (28 bytes a page). The first
    /// page always holds one packet, because nothing may delay the first sound.
    pub packets_per_page: u8,
    /// From [`crate::opus::OpusEncoder::pre_skip_48k`].
    pub pre_skip_48k: u32,
    /// Any number; two streams joined in one file must differ in it.
    pub serial: u32,
}

/// Writes one mono Ogg Opus stream. Both header pages are ready at once.
pub struct OggOpusWriter {
    pages: PacketWriter<'static, Vec<u8>>,
    packets_per_page: u8,
    serial: u32,
    /// Packets since the last finished page.
    on_page: u8,
    /// 48 kHz samples decoded from everything written, pre-skip included: the granule position.
    position_48k: u64,
    packets: u64,
    finished: bool,
}

impl OggOpusWriter {
    /// # Errors
    /// [`CodecError::InvalidSetting`] for 0 or more than 5 packets a page or a pre-skip above 65,535,
    /// [`CodecError::Malformed`] or [`CodecError::TooLarge`] for comments that do not fit.
    pub fn new(settings: &OggOpusSettings) -> Result<Self, CodecError> {
        if !(1..=5).contains(&settings.packets_per_page) {
            return Err(CodecError::InvalidSetting {
                setting: "Ogg packets per page",
                value: i64::from(settings.packets_per_page),
                allowed: "1 to 5",
            });
        }
        let pre_skip_48k = u16::try_from(settings.pre_skip_48k).map_err(|_| CodecError::InvalidSetting {
            setting: "Opus pre-skip in 48 kHz samples",
            value: i64::from(settings.pre_skip_48k),
            allowed: "0 to 65535",
        })?;
        let head =
            OpusHead { channels: 1, input_rate_hz: settings.input_rate_hz, output_gain_q8: 0, pre_skip_48k };
        let tags = OpusTags::of(&settings.comments)?;
        let mut writer = Self {
            pages: PacketWriter::new(Vec::new()),
            packets_per_page: settings.packets_per_page,
            serial: settings.serial,
            on_page: 0,
            position_48k: 0,
            packets: 0,
            finished: false,
        };
        writer.put(head.to_packet(), PacketWriteEndInfo::EndPage, 0)?;
        writer.put(tags.to_packet(), PacketWriteEndInfo::EndPage, 0)?;
        Ok(writer)
    }

    /// Takes a packet that is not the stream's last.
    ///
    /// # Errors
    /// [`CodecError::Finished`] after [`Self::write_last`].
    pub fn write(&mut self, packet: OpusPacket<'_>) -> Result<(), CodecError> {
        self.position_48k += u64::from(packet.duration_48k);
        self.on_page += 1;
        let full = self.packets == 0 || self.on_page == self.packets_per_page;
        let end = if full { PacketWriteEndInfo::EndPage } else { PacketWriteEndInfo::NormalPacket };
        self.put(packet.data.to_vec(), end, self.position_48k)?;
        if full {
            self.on_page = 0;
        }
        self.packets += 1;
        Ok(())
    }

    /// Takes the stream's last packet and closes the stream: its page carries the end mark and a position
    /// that tells decoders to drop `end_trim_48k` samples ([`crate::opus::OpusTail`]).
    ///
    /// # Errors
    /// [`CodecError::Finished`] if called twice.
    pub fn write_last(&mut self, packet: OpusPacket<'_>, end_trim_48k: u32) -> Result<(), CodecError> {
        let position = self.position_48k + u64::from(packet.duration_48k);
        self.put(
            packet.data.to_vec(),
            PacketWriteEndInfo::EndStream,
            position.saturating_sub(u64::from(end_trim_48k)),
        )?;
        self.finished = true;
        Ok(())
    }

    /// The pages finished since the last call; empty if none are.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(self.pages.inner_mut())
    }

    fn put(&mut self, data: Vec<u8>, end: PacketWriteEndInfo, granule: u64) -> Result<(), CodecError> {
        if self.finished {
            return Err(CodecError::Finished { what: "this Ogg stream" });
        }
        self.pages.write_packet(data, self.serial, end, granule).map_err(|error| CodecError::Library {
            operation: "writing an Ogg page",
            reason: error.to_string(),
        })
    }
}
