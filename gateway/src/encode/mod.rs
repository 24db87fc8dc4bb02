//! Samples to packets: one encoder a stream, run on a small pool of threads away from the async workers.

use bytes::Bytes;
use codecs::CodecError;
use codecs::loudness::Leveller;
use codecs::opus::{OpusEncoder, OpusSettings, PacketBatch};
use codecs::pcm::RawEncoding;
use codecs::resample::Resampler;
use codecs::stretch::Stretch;
use proto::wire::Speed;

use crate::config::OpusConfig;

mod pool;

pub(crate) use pool::{EncodePool, Encoded, Job, REPLIES_PER_JOB};

/// Wire form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Opus,
    /// Samples in this encoding, mono.
    Raw(RawEncoding),
}

/// One encoded piece of 20 ms or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedPacket {
    pub(crate) data: Bytes,
    /// Samples it decodes to, at 48 kHz.
    pub(crate) duration_48k: u32,
    /// Of these, the samples at its end that are not sound.
    pub(crate) trim_48k: u32,
    pub(crate) dtx: bool,
}

/// Stretching, levelling, resampling and encoding of one sample stream, from the model's rate to the wire.
pub(crate) struct StreamEncoder {
    /// Boxed: few streams have one.
    stretch: Option<Box<Stretch>>,
    leveller: Option<Box<Leveller>>,
    resampler: Option<Resampler>,
    coder: Coder,
    rate_hz: u32,
    scratch: Vec<f32>,
    started: bool,
}

enum Coder {
    // libopus' state is some 20 KB; the box keeps moves cheap.
    Opus(Box<OpusEncoder>),
    Raw { encoding: RawEncoding, pending: Vec<f32> },
}

impl StreamEncoder {
    /// An encoder of samples at `model_hz` whose wire rate is `wire_hz`.
    ///
    /// # Errors
    /// [`CodecError::InvalidSetting`] for a rate that the form cannot carry.
    pub(crate) fn new(form: Form, model_hz: u32, wire_hz: u32, opus: OpusConfig) -> Result<Self, CodecError> {
        let resampler = if model_hz == wire_hz { None } else { Some(Resampler::new(model_hz, wire_hz)?) };
        let coder = match form {
            Form::Opus => Coder::Opus(Box::new(OpusEncoder::new(OpusSettings {
                bitrate_bps: opus.bitrate_bps,
                complexity: opus.complexity,
                rate_hz: wire_hz,
                ..OpusSettings::default()
            })?)),
            Form::Raw(encoding) => Coder::Raw { encoding, pending: Vec::new() },
        };
        Ok(Self {
            stretch: None,
            leveller: None,
            resampler,
            coder,
            rate_hz: wire_hz,
            scratch: Vec::new(),
            started: false,
        })
    }

    /// The same, at another speed and the same pitch: 2 is twice as fast.
    ///
    /// # Errors
    /// [`CodecError::InvalidSetting`] for a speed outside the stretch's bounds.
    pub(crate) fn at_speed(self, speed: Speed) -> Result<Self, CodecError> {
        if speed.is_own() {
            return Ok(self);
        }
        Ok(Self { stretch: Some(Box::new(Stretch::new(self.model_hz(), speed.get())?)), ..self })
    }

    /// Brings what comes near to a loudness while it streams; `None` leaves it as it is.
    ///
    /// # Errors
    /// A rate whose loudness cannot be measured.
    pub(crate) fn levelled(self, lufs: Option<i8>) -> Result<Self, CodecError> {
        let leveller = lufs.map(|lufs| Leveller::new(self.model_hz(), f64::from(lufs))).transpose()?;
        Ok(Self { leveller: leveller.map(Box::new), ..self })
    }

    /// Whether samples are only written in another form: some 7 ns each, where Opus takes 150.
    fn only_rewrites(&self) -> bool {
        let as_they_are = self.stretch.is_none() && self.leveller.is_none() && self.resampler.is_none();
        as_they_are && matches!(self.coder, Coder::Raw { .. })
    }

    fn model_hz(&self) -> u32 {
        self.resampler.as_ref().map_or(self.rate_hz, Resampler::from_hz)
    }

    /// Decoded 48 kHz samples a receiver drops at the start.
    pub(crate) fn pre_skip_48k(&self) -> u32 {
        match &self.coder {
            Coder::Opus(encoder) => encoder.pre_skip_48k(),
            Coder::Raw { .. } => 0,
        }
    }

    /// Takes samples at the model's rate and appends every packet that is complete by them.
    pub(crate) fn push(&mut self, samples: &[f32], out: &mut Vec<EncodedPacket>) -> Result<(), CodecError> {
        self.started = true;
        let Some(stretch) = &mut self.stretch else { return self.level(samples, out) };
        let mut stretched = Vec::new();
        stretch.push(samples, &mut stretched)?;
        self.level(&stretched, out)
    }

    /// After the stretch, which moves peaks.
    fn level(&mut self, samples: &[f32], out: &mut Vec<EncodedPacket>) -> Result<(), CodecError> {
        let Some(leveller) = &mut self.leveller else { return self.resample(samples, out) };
        let mut levelled = samples.to_vec();
        leveller.push(&mut levelled)?;
        self.resample(&levelled, out)
    }

    fn resample(&mut self, samples: &[f32], out: &mut Vec<EncodedPacket>) -> Result<(), CodecError> {
        let Some(resampler) = &mut self.resampler else { return self.code(samples, out) };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        resampler.push(samples, &mut scratch)?;
        let coded = self.code(&scratch, out);
        self.scratch = scratch;
        coded
    }

    /// Ends the stream. A stream without a sample makes no packet.
    pub(crate) fn finish(&mut self, out: &mut Vec<EncodedPacket>) -> Result<(), CodecError> {
        if !self.started {
            return Ok(());
        }
        if let Some(stretch) = &mut self.stretch {
            let mut rest = Vec::new();
            stretch.finish(&mut rest);
            self.level(&rest, out)?;
        }
        if let Some(resampler) = &mut self.resampler {
            let mut rest = Vec::new();
            resampler.finish(&mut rest)?;
            self.code(&rest, out)?;
        }
        match &mut self.coder {
            Coder::Opus(encoder) => {
                let tail = encoder.finish()?;
                copy(tail.packets, out);
                if let Some(last) = out.last_mut() {
                    last.trim_48k = tail.end_trim_48k;
                }
            }
            Coder::Raw { encoding, pending } => {
                if !pending.is_empty() {
                    out.push(raw_packet(*encoding, pending, self.rate_hz));
                    pending.clear();
                }
            }
        }
        Ok(())
    }

    fn code(&mut self, samples: &[f32], out: &mut Vec<EncodedPacket>) -> Result<(), CodecError> {
        match &mut self.coder {
            Coder::Opus(encoder) => {
                for piece in samples.chunks(encoder.push_samples_max()) {
                    copy(encoder.push(piece)?, out);
                }
            }
            Coder::Raw { encoding, pending } => {
                pending.extend_from_slice(samples);
                let packet = packet_samples(self.rate_hz);
                let whole = pending.len() - pending.len() % packet;
                let pieces = pending[..whole].chunks(packet);
                out.extend(pieces.map(|piece| raw_packet(*encoding, piece, self.rate_hz)));
                pending.drain(..whole);
            }
        }
        Ok(())
    }

    /// Model samples that surely complete the first packet.
    fn first_piece(&self) -> usize {
        let piece = match &self.resampler {
            None => packet_samples(self.rate_hz),
            Some(resampler) => packet_samples(resampler.from_hz()) + resampler.hold_back_samples(),
        };
        self.stretch.as_ref().map_or(piece, |stretch| stretch.needed_for(piece))
    }
}

fn copy(batch: &PacketBatch, out: &mut Vec<EncodedPacket>) {
    out.extend(batch.iter().map(|packet| EncodedPacket {
        data: Bytes::copy_from_slice(packet.data),
        duration_48k: packet.duration_48k,
        trim_48k: 0,
        dtx: packet.is_dtx(),
    }));
}

fn raw_packet(encoding: RawEncoding, samples: &[f32], rate_hz: u32) -> EncodedPacket {
    let mut data = Vec::with_capacity(samples.len() * encoding.bytes_per_sample() as usize);
    encoding.encode(samples, &mut data);
    // Whole packets are 20 ms at every rate, so only a stream's last one can be rounded.
    let duration = samples.len() as u64 * u64::from(codecs::OPUS_CLOCK_HZ) / u64::from(rate_hz);
    EncodedPacket { data: Bytes::from(data), duration_48k: duration as u32, trim_48k: 0, dtx: false }
}

/// Samples of 20 ms.
fn packet_samples(rate_hz: u32) -> usize {
    rate_hz as usize / 50
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPUS: OpusConfig = OpusConfig { threads: 1, bitrate_bps: 32_000, complexity: 0 };

    fn total_48k(packets: &[EncodedPacket]) -> u32 {
        packets.iter().map(|p| p.duration_48k - p.trim_48k).sum()
    }

    #[test]
    fn durations_add_up_to_the_samples_given_whatever_the_form_and_rate() {
        let forms = [
            (Form::Opus, 24_000),
            (Form::Opus, 48_000),
            (Form::Raw(RawEncoding::S16Le), 16_000),
            (Form::Raw(RawEncoding::S16Le), 22_050),
            (Form::Raw(RawEncoding::S16Le), 44_100),
            (Form::Raw(RawEncoding::MuLaw), 8_000),
            (Form::Raw(RawEncoding::ALaw), 48_000),
        ];
        for (form, wire_hz) in forms {
            let mut encoder = StreamEncoder::new(form, 24_000, wire_hz, OPUS).expect("valid rates");
            let mut packets = Vec::new();
            for length in [1_920, 7, 13_001] {
                encoder.push(&vec![0.1; length], &mut packets).expect("finite");
            }
            encoder.finish(&mut packets).expect("open");
            let sound = total_48k(&packets) - encoder.pre_skip_48k();
            assert!(sound.abs_diff(14_928 * 2) <= 3, "{form:?} {wire_hz}: {sound}");
        }
    }

    #[test]
    fn a_stream_without_samples_makes_no_packet() {
        let mut encoder = StreamEncoder::new(Form::Opus, 24_000, 24_000, OPUS).expect("valid");
        let mut packets = Vec::new();
        encoder.finish(&mut packets).expect("open");
        assert!(packets.is_empty());
    }
}
