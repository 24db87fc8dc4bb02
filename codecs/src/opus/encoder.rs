//! Samples to packets.

use super::settings::{check_bitrate, check_complexity};
use super::{OpusApplication, OpusSettings, OpusSignal, library};
use crate::error::check_finite;
use crate::{CodecError, OPUS_CLOCK_HZ};

/// Room libopus gets for one packet; its documentation recommends this for any duration up to 120 ms.
const PACKET_ROOM_BYTES: usize = 4_000;

/// Longest piece one push takes, in seconds: bounds the batch buffer.
const PUSH_SECONDS_MAX: usize = 10;

/// Encodes one mono sample stream. A packet is made as soon as its samples exist.
pub struct OpusEncoder {
    inner: ::opus::Encoder,
    settings: OpusSettings,
    frame_samples: usize,
    /// Delay of the codec, in input samples.
    lookahead_samples: usize,
    /// Clamped samples of the packet being filled; shorter than `frame_samples` between calls.
    pending: Vec<f32>,
    /// Reused by every call.
    batch: PacketBatch,
    samples_in: u64,
    packets_made: u64,
    finished: bool,
}

/// One packet, borrowed from its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpusPacket<'a> {
    pub data: &'a [u8],
    /// 48 kHz samples this packet decodes to.
    pub duration_48k: u32,
    /// Position of its first decoded sample, pre-skip included, from 0.
    pub timestamp_48k: u64,
}

impl OpusPacket<'_> {
    /// Whether this is a silence marker of discontinuous transmission (at most two bytes).
    #[must_use]
    pub fn is_dtx(&self) -> bool {
        self.data.len() <= 2
    }
}

/// The packets of one call, in one reused buffer.
#[derive(Clone, Debug, Default)]
pub struct PacketBatch {
    bytes: Vec<u8>,
    /// End of each packet in `bytes`.
    ends: Vec<usize>,
    first_timestamp_48k: u64,
    duration_48k: u32,
}

impl PacketBatch {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = OpusPacket<'_>> {
        self.ends.iter().enumerate().map(|(index, end)| OpusPacket {
            data: &self.bytes[index.checked_sub(1).map_or(0, |before| self.ends[before])..*end],
            duration_48k: self.duration_48k,
            timestamp_48k: self.first_timestamp_48k + index as u64 * u64::from(self.duration_48k),
        })
    }

    fn start(&mut self, first_timestamp_48k: u64, duration_48k: u32) {
        self.bytes.clear();
        self.ends.clear();
        self.first_timestamp_48k = first_timestamp_48k;
        self.duration_48k = duration_48k;
    }
}

/// The last packets of a stream, and how it ends.
#[derive(Clone, Copy, Debug)]
pub struct OpusTail<'a> {
    /// At least one packet, so that an end mark always has something to ride on.
    pub packets: &'a PacketBatch,
    /// Decoded 48 kHz samples to drop at the very end; less than one packet.
    pub end_trim_48k: u32,
    /// 48 kHz samples of sound: decoded samples less pre-skip and end trim.
    pub total_48k: u64,
}

impl OpusEncoder {
    /// # Errors
    /// [`CodecError::InvalidSetting`] for settings outside their range.
    pub fn new(settings: OpusSettings) -> Result<Self, CodecError> {
        settings.check()?;
        let application = match settings.application {
            OpusApplication::Audio => ::opus::Application::Audio,
            OpusApplication::LowDelay => ::opus::Application::LowDelay,
            OpusApplication::Voip => ::opus::Application::Voip,
        };
        let mut inner = ::opus::Encoder::new(settings.rate_hz, ::opus::Channels::Mono, application)
            .map_err(|error| library("making an Opus encoder", &error))?;
        let lookahead = configure(&mut inner, &settings).map_err(|error| library("Opus set-up", &error))?;
        let frame_samples = settings.frame_samples();
        Ok(Self {
            inner,
            settings,
            frame_samples,
            lookahead_samples: usize::try_from(lookahead).unwrap_or(0),
            pending: Vec::with_capacity(frame_samples),
            batch: PacketBatch::default(),
            samples_in: 0,
            packets_made: 0,
            finished: false,
        })
    }

    #[must_use]
    pub fn settings(&self) -> &OpusSettings {
        &self.settings
    }

    /// Decoded 48 kHz samples a receiver drops at the start: the codec's delay, asked of libopus.
    #[must_use]
    pub fn pre_skip_48k(&self) -> u32 {
        self.lookahead_samples as u32 * self.clock_ratio()
    }

    /// Most samples one push takes.
    #[must_use]
    pub fn push_samples_max(&self) -> usize {
        self.settings.rate_hz as usize * PUSH_SECONDS_MAX
    }

    /// Changes the cost of the packets to come, for instance by load.
    ///
    /// # Errors
    /// [`CodecError::InvalidSetting`] above 10.
    pub fn set_complexity(&mut self, complexity: u8) -> Result<(), CodecError> {
        check_complexity(complexity)?;
        self.inner
            .set_complexity(i32::from(complexity))
            .map_err(|error| library("Opus complexity", &error))?;
        self.settings.complexity = complexity;
        Ok(())
    }

    /// Changes the bit rate of the packets to come.
    ///
    /// # Errors
    /// [`CodecError::InvalidSetting`] outside 6,000 to 510,000.
    pub fn set_bitrate(&mut self, bitrate_bps: u32) -> Result<(), CodecError> {
        check_bitrate(bitrate_bps)?;
        self.inner
            .set_bitrate(::opus::Bitrate::Bits(bitrate_bps.cast_signed()))
            .map_err(|error| library("Opus bit rate", &error))?;
        self.settings.bitrate_bps = bitrate_bps;
        Ok(())
    }

    /// Takes samples (clamped to [-1, 1]) and returns every packet that is complete by them. The batch is
    /// overwritten by the next call.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`] and [`CodecError::TooLarge`] leave the stream as it was;
    /// [`CodecError::Finished`] after `finish`.
    pub fn push(&mut self, samples: &[f32]) -> Result<&PacketBatch, CodecError> {
        self.check_open()?;
        let limit = self.push_samples_max();
        if samples.len() > limit {
            return Err(CodecError::TooLarge {
                what: "samples in one push",
                found: samples.len() as u64,
                limit: limit as u64,
            });
        }
        check_finite(samples, self.samples_in)?;
        self.start_batch();
        self.samples_in += samples.len() as u64;
        let mut rest = samples;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(self.frame_samples - self.pending.len()));
            self.pending.extend(head.iter().map(|sample| sample.clamp(-1.0, 1.0)));
            rest = tail;
            if self.pending.len() == self.frame_samples {
                self.encode_pending()?;
            }
        }
        Ok(&self.batch)
    }

    /// Ends the stream: fills the last packet with silence and pushes the codec's delay out, so that every
    /// input sample can be decoded. An empty stream still makes one packet, all of it trimmed.
    ///
    /// # Errors
    /// [`CodecError::Finished`] if called twice.
    pub fn finish(&mut self) -> Result<OpusTail<'_>, CodecError> {
        self.check_open()?;
        self.start_batch();
        let wanted = self.samples_in + self.lookahead_samples as u64;
        let packets_total = wanted.div_ceil(self.frame_samples as u64).max(1);
        while self.packets_made < packets_total {
            self.pending.resize(self.frame_samples, 0.0);
            self.encode_pending()?;
        }
        self.finished = true;
        let ratio = self.clock_ratio();
        // Less than one packet, because packets_total is the least that covers what is wanted.
        let trim_samples = (packets_total * self.frame_samples as u64 - wanted) as u32;
        Ok(OpusTail {
            packets: &self.batch,
            end_trim_48k: trim_samples * ratio,
            total_48k: self.samples_in * u64::from(ratio),
        })
    }

    /// Starts a new stream with the same settings, time stamps from 0, without allocating.
    ///
    /// # Errors
    /// [`CodecError::Library`] only if libopus breaks its own contract.
    pub fn reset(&mut self) -> Result<(), CodecError> {
        self.inner.reset_state().map_err(|error| library("Opus reset", &error))?;
        self.pending.clear();
        self.samples_in = 0;
        self.packets_made = 0;
        self.finished = false;
        Ok(())
    }

    fn check_open(&self) -> Result<(), CodecError> {
        if self.finished {
            return Err(CodecError::Finished { what: "this Opus encoder" });
        }
        Ok(())
    }

    fn clock_ratio(&self) -> u32 {
        OPUS_CLOCK_HZ / self.settings.rate_hz
    }

    fn start_batch(&mut self) {
        let duration_48k = self.settings.frame.duration_48k();
        self.batch.start(self.packets_made * u64::from(duration_48k), duration_48k);
    }

    fn encode_pending(&mut self) -> Result<(), CodecError> {
        let start = self.batch.bytes.len();
        self.batch.bytes.resize(start + PACKET_ROOM_BYTES, 0);
        match self.inner.encode_float(&self.pending, &mut self.batch.bytes[start..]) {
            Ok(written) => {
                self.batch.bytes.truncate(start + written);
                self.batch.ends.push(start + written);
                self.pending.clear();
                self.packets_made += 1;
                Ok(())
            }
            Err(error) => {
                // The time line has a hole from here on, so nothing more may be encoded.
                self.finished = true;
                Err(library("Opus encoding", &error))
            }
        }
    }
}

/// Applies everything but rate and application; returns the look-ahead in samples at the encoder's rate.
fn configure(inner: &mut ::opus::Encoder, settings: &OpusSettings) -> Result<i32, ::opus::Error> {
    inner.set_bitrate(::opus::Bitrate::Bits(settings.bitrate_bps.cast_signed()))?;
    inner.set_complexity(i32::from(settings.complexity))?;
    inner.set_dtx(settings.dtx)?;
    inner.set_inband_fec(false)?;
    inner.set_signal(match settings.signal {
        OpusSignal::Auto => ::opus::Signal::Auto,
        OpusSignal::Music => ::opus::Signal::Music,
        OpusSignal::Voice => ::opus::Signal::Voice,
    })?;
    inner.set_vbr(settings.vbr)?;
    inner.get_lookahead()
}
