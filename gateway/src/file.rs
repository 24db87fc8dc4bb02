//! One utterance as a stream of bytes: engine outputs in, a file's bytes out, while it is being made.

use bytes::Bytes;
use codecs::flac::FlacWriter;
use codecs::mp3::Mp3Writer;
use codecs::ogg::{OggOpusSettings, OggOpusWriter};
use codecs::opus::OpusPacket;
use codecs::pcm::RawEncoding;
use codecs::{CodecError, OPUS_CLOCK_HZ};
use contract::Span;
use proto::body::{SOURCE_TYPE, SPOKEN_BY, comments};
use proto::speech::SpeechFormat;

use crate::config::OpusConfig;
use crate::encode::{EncodedPacket, Form, StreamEncoder};

/// The encoder whose packets a [`FileWriter`] of this format takes.
pub(crate) fn encoder(
    format: SpeechFormat,
    model_hz: u32,
    file_hz: u32,
    opus: OpusConfig,
) -> Result<StreamEncoder, CodecError> {
    let form = if format == SpeechFormat::Opus { Form::Opus } else { Form::Raw(RawEncoding::S16Le) };
    StreamEncoder::new(form, model_hz, file_hz, opus)
}

/// Packets to a file's bytes.
pub(crate) struct FileWriter {
    inner: Inner,
    timestamp_48k: u64,
}

enum Inner {
    Flac {
        head: Option<Vec<u8>>,
        writer: Box<FlacWriter>,
    },
    Mp3 {
        head: Option<Vec<u8>>,
        writer: Box<Mp3Writer>,
    },
    /// The last packet waits for the next one, because only the last may carry the end mark.
    Ogg {
        writer: OggOpusWriter,
        held: Option<EncodedPacket>,
    },
    Raw {
        header: Option<Bytes>,
        encoding: RawEncoding,
    },
}

impl FileWriter {
    /// `serial` tells two Ogg streams of one file apart: any number.
    pub(crate) fn new(
        format: SpeechFormat,
        file_hz: u32,
        pre_skip_48k: u32,
        serial: u32,
    ) -> Result<Self, CodecError> {
        let inner = match (format, format.encoding()) {
            (SpeechFormat::Mp3 { kbps }, _) => {
                let (writer, head) = Mp3Writer::new(file_hz, kbps, &comments())?;
                Inner::Mp3 { head: Some(head), writer: Box::new(writer) }
            }
            (SpeechFormat::Flac, _) => {
                let (writer, head) = FlacWriter::new(file_hz, &comments())?;
                Inner::Flac { head: Some(head), writer: Box::new(writer) }
            }
            (_, None) => Inner::Ogg {
                writer: OggOpusWriter::new(&OggOpusSettings {
                    comments: comments(),
                    input_rate_hz: file_hz,
                    packets_per_page: 1,
                    pre_skip_48k,
                    serial,
                })?,
                held: None,
            },
            (_, Some(encoding)) => {
                let header = matches!(format, SpeechFormat::Wav | SpeechFormat::WavF32)
                    .then(|| codecs::wav::streaming_header(file_hz, encoding, WAV_ORIGIN))
                    .transpose()?;
                Inner::Raw { header: header.map(Bytes::from), encoding }
            }
        };
        Ok(Self { inner, timestamp_48k: 0 })
    }

    /// Takes packets in and returns the bytes that may leave.
    pub(crate) fn write(&mut self, packets: Vec<EncodedPacket>) -> Result<Bytes, CodecError> {
        match &mut self.inner {
            Inner::Flac { head, writer } => {
                let mut out = head.take().unwrap_or_default();
                for packet in packets {
                    self.timestamp_48k += u64::from(packet.duration_48k);
                    writer.write(&packet.data, &mut out)?;
                }
                Ok(out.into())
            }
            Inner::Mp3 { head, writer } => {
                let mut out = head.take().unwrap_or_default();
                for packet in packets {
                    self.timestamp_48k += u64::from(packet.duration_48k);
                    writer.write(&packet.data, &mut out)?;
                }
                Ok(out.into())
            }
            Inner::Raw { header, encoding } => {
                let mut out = header.take().map(|bytes| bytes.to_vec()).unwrap_or_default();
                for packet in packets {
                    self.timestamp_48k += u64::from(packet.duration_48k);
                    encoding.extend_from_s16le(&packet.data, &mut out);
                }
                Ok(out.into())
            }
            Inner::Ogg { writer, held } => {
                for packet in packets {
                    if let Some(earlier) = held.replace(packet) {
                        writer.write(ogg_packet(&earlier, self.timestamp_48k))?;
                        self.timestamp_48k += u64::from(earlier.duration_48k);
                    }
                }
                // A full page does not wait: only the packet that may be the last is held.
                Ok(writer.take_bytes().into())
            }
        }
    }

    /// The bytes after the last packet.
    pub(crate) fn finish(&mut self) -> Result<Bytes, CodecError> {
        match &mut self.inner {
            Inner::Flac { head, writer } => {
                let mut out = head.take().unwrap_or_default();
                writer.finish(&mut out)?;
                Ok(out.into())
            }
            Inner::Mp3 { head, writer } => {
                let mut out = head.take().unwrap_or_default();
                writer.finish(&mut out)?;
                Ok(out.into())
            }
            Inner::Raw { header, .. } => Ok(header.take().unwrap_or_default()),
            Inner::Ogg { writer, held } => {
                if let Some(last) = held.take() {
                    writer.write_last(ogg_packet(&last, self.timestamp_48k), last.trim_48k)?;
                }
                Ok(writer.take_bytes().into())
            }
        }
    }
}

/// What every WAV says of itself: comment, software, and keywords, the nearest that RIFF has to a source type.
pub(crate) const WAV_ORIGIN: &codecs::wav::Info<'static> =
    &[(b"ICMT", SPOKEN_BY), (b"ISFT", "Voxlane"), (b"IKEY", SOURCE_TYPE)];

fn ogg_packet(packet: &EncodedPacket, timestamp_48k: u64) -> OpusPacket<'_> {
    OpusPacket { data: &packet.data, duration_48k: packet.duration_48k, timestamp_48k }
}

/// Puts the true sizes into a whole file that was written as a stream; only a WAV's header says any.
pub(crate) fn tell_sizes(format: SpeechFormat, file_hz: u32, file: &mut [u8]) -> Result<(), CodecError> {
    let (SpeechFormat::Wav | SpeechFormat::WavF32, Some(encoding)) = (format, format.encoding()) else {
        return Ok(());
    };
    let header_bytes = codecs::wav::streaming_header(file_hz, encoding, WAV_ORIGIN)?.len();
    let samples = file.len().saturating_sub(header_bytes) as u64 / u64::from(encoding.bytes_per_sample());
    let header = codecs::wav::header(file_hz, encoding, samples, WAV_ORIGIN)?;
    if let Some(place) = file.get_mut(..header.len()) {
        place.copy_from_slice(&header);
    }
    Ok(())
}

/// Playing time of packets, for pacing.
pub(crate) fn playing_time(packets: &[EncodedPacket]) -> Span {
    let samples: u64 = packets.iter().map(|packet| u64::from(packet.duration_48k)).sum();
    Span::of_samples(samples, OPUS_CLOCK_HZ)
}
