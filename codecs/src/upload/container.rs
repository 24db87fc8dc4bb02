//! Containers and codecs that a library reads (crate `symphonia`); Opus packets within go to our decoder.

use std::io::Cursor;

use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

use super::OPUS_RATE_HZ;
use crate::opus::{OpusDecoder, packet_duration_48k};
use crate::{AudioLimits, CodecError, MonoAudio};

/// Packets of one file: 30 s of the shortest Opus packets, and as much of what we do not read.
const PACKETS_MAX: usize = 24_000;

/// Look-ahead that an Opus encoder has when a WebM file does not say (RFC 7845 section 5.1's advice).
const PRE_SKIP_48K: u16 = 312;

pub(super) fn decode(bytes: &[u8], limits: &AudioLimits) -> Result<MonoAudio, CodecError> {
    // The library keeps what it is given for as long as it reads.
    let source = MediaSourceStream::new(Box::new(Cursor::new(bytes.to_vec())), Default::default());
    let mut file = symphonia::default::get_probe()
        .probe(&Hint::new(), source, FormatOptions::default(), MetadataOptions::default())
        .map_err(|_| malformed("the file's head cannot be read"))?;
    let track = file.default_track(TrackType::Audio).ok_or(malformed("there is no sound in it"))?;
    let id = track.id;
    let params = track
        .codec_params
        .as_ref()
        .and_then(|params| params.audio())
        .ok_or(malformed("it does not say how its sound is coded"))?
        .clone();
    if let Some(channels) = &params.channels {
        limits.check_channels(u16::try_from(channels.count()).unwrap_or(u16::MAX))?;
    }
    if params.codec == CODEC_ID_OPUS {
        return opus(file.as_mut(), id, &params, limits);
    }
    if let Some(rate) = params.sample_rate {
        limits.check_rate(rate)?;
    }
    samples(file.as_mut(), id, &params, limits)
}

fn samples(
    file: &mut dyn FormatReader,
    track: u32,
    params: &AudioCodecParameters,
    limits: &AudioLimits,
) -> Result<MonoAudio, CodecError> {
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(params, &AudioDecoderOptions::default())
        .map_err(|_| malformed("its codec is none of FLAC, MP3, Vorbis or PCM"))?;
    let mut mono = MonoAudio { rate_hz: 0, samples: Vec::new() };
    let mut interleaved: Vec<f32> = Vec::new();
    for _ in 0..PACKETS_MAX {
        let Some(packet) = next(file)? else { return finished(mono) };
        if packet.track_id != track {
            continue;
        }
        let decoded = match decoder.decode(&packet) {
            Ok(decoded) => decoded,
            // MP3 files often begin with a frame that leans on one before it.
            Err(Error::DecodeError(_)) if mono.samples.is_empty() => continue,
            Err(_) => return Err(malformed("a packet cannot be decoded")),
        };
        let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
        limits.check_rate(rate)?;
        limits.check_channels(u16::try_from(channels).unwrap_or(u16::MAX))?;
        if mono.rate_hz != 0 && mono.rate_hz != rate {
            return Err(malformed("its sample rate changes halfway"));
        }
        mono.rate_hz = rate;
        let frames = decoded.frames();
        limits.check_duration((mono.samples.len() + frames) as u64, rate)?;
        if channels == 0 || frames == 0 {
            continue;
        }
        interleaved.clear();
        decoded.copy_to_vec_interleaved(&mut interleaved);
        mono.samples.extend(interleaved.chunks_exact(channels).map(|frame| {
            let sum: f32 = frame.iter().sum();
            (sum / channels as f32).clamp(-1.0, 1.0)
        }));
    }
    Err(malformed("it has more packets than sound"))
}

fn opus(
    file: &mut dyn FormatReader,
    track: u32,
    params: &AudioCodecParameters,
    limits: &AudioLimits,
) -> Result<MonoAudio, CodecError> {
    let pre_skip = pre_skip(params.extra_data.as_deref());
    let mut decoder = OpusDecoder::new(OPUS_RATE_HZ, u32::from(pre_skip))?;
    let mut mono = MonoAudio { rate_hz: OPUS_RATE_HZ, samples: Vec::new() };
    let mut duration_48k = 0_u64;
    for _ in 0..PACKETS_MAX {
        let Some(packet) = next(file)? else { return finished(mono) };
        if packet.track_id == track {
            duration_48k += u64::from(packet_duration_48k(&packet.data)?);
            limits.check_duration(duration_48k, OPUS_RATE_HZ)?;
            mono.samples.extend_from_slice(decoder.decode(&packet.data)?);
        }
    }
    Err(malformed("it has more packets than sound"))
}

/// The pre-skip of an `OpusHead` (RFC 7845 section 5.1), as WebM carries it.
fn pre_skip(head: Option<&[u8]>) -> u16 {
    match head {
        Some([b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', _, _, low, high, ..]) => {
            u16::from_le_bytes([*low, *high])
        }
        _ => PRE_SKIP_48K,
    }
}

fn next(file: &mut dyn FormatReader) -> Result<Option<symphonia::core::packet::Packet>, CodecError> {
    match file.next_packet() {
        Ok(packet) => Ok(packet),
        Err(Error::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(_) => Err(malformed("it breaks off, or its parts do not follow each other")),
    }
}

fn finished(mut mono: MonoAudio) -> Result<MonoAudio, CodecError> {
    if mono.samples.is_empty() {
        return Err(malformed("there is no sound in it"));
    }
    for sample in &mut mono.samples {
        if !sample.is_finite() {
            return Err(malformed("it holds a sample that is not a number"));
        }
        *sample = sample.clamp(-1.0, 1.0);
    }
    Ok(mono)
}

const fn malformed(reason: &'static str) -> CodecError {
    CodecError::Malformed { format: "audio", reason }
}
