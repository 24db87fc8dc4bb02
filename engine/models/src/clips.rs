//! Reference clips that a checkpoint brings as WAV files.

use contract::Clip;

use crate::{ModelError, ModelSource, guard};

/// Reads `path` of a checkpoint: mono, 16 bits, at the model's rate.
///
/// # Errors
/// [`ModelError::Voice`] naming the voice and what is wrong with its file.
pub(crate) fn read_wav(
    source: &ModelSource,
    voice: &str,
    path: &str,
    transcript: &str,
    sample_rate: usize,
) -> Result<Clip, ModelError> {
    let bad = |what: String| ModelError::Voice { voice: voice.to_owned(), what };
    let bytes = source.file(path)?;
    let reader = hound::WavReader::new(&bytes[..]).map_err(|error| bad(format!("{path}: {error}")))?;
    let spec = reader.spec();
    if spec.channels != 1 || spec.sample_format != hound::SampleFormat::Int || spec.bits_per_sample != 16 {
        return Err(bad(format!("{path} must be mono, 16 bits a sample")));
    }
    if spec.sample_rate as usize != sample_rate {
        return Err(bad(format!("{path} has {} Hz, but the model {sample_rate}", spec.sample_rate)));
    }
    let samples_max = guard::reference_samples_max(spec.sample_rate);
    if reader.len() as usize > samples_max {
        return Err(bad(format!("{path} has {} samples; at most {samples_max} are taken", reader.len())));
    }
    let samples = reader
        .into_samples::<i16>()
        .map(|sample| sample.map(|value| f32::from(value) / -f32::from(i16::MIN)))
        .collect::<Result<Vec<f32>, _>>()
        .map_err(|error| bad(format!("{path}: {error}")))?;
    let hash = content_hash(&bytes, transcript);
    Ok(Clip { samples, sample_rate: spec.sample_rate, transcript: Some(transcript.to_owned()), hash })
}

/// A stable key (FNV-1a of file and transcript, 128 bits). These clips are as trusted as the weights
/// beside them, so it need not resist forgery.
fn content_hash(file: &[u8], transcript: &str) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash = OFFSET;
    for &byte in file.iter().chain(transcript.as_bytes()) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    }
    hash.to_be_bytes()
}
