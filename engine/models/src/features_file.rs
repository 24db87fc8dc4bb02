//! Voice features as bytes, so that a clip is encoded once and not once a process.
//!
//! Little-endian: magic, version, then each part with its length, at the end a 64-bit FNV-1a of all before.
//! The bytes are for the very checkpoint they came from: callers keep them under its
//! [`crate::ModelSource::fingerprint`].

use std::sync::Arc;

use device::{HostTensor, StateId};

use crate::VoiceFeatures;
use crate::program::Reference;

const MAGIC: [u8; 8] = *b"vxfeatur";
const VERSION: u32 = 1;

impl VoiceFeatures {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes() + 256);
        out.extend_from_slice(&MAGIC);
        number(&mut out, VERSION);
        match &self.speaker {
            None => number(&mut out, 0),
            Some(speaker) => {
                number(&mut out, 1);
                floats(&mut out, speaker);
            }
        }
        match &self.reference {
            None => number(&mut out, 0),
            Some(reference) => {
                number(&mut out, 1);
                number(&mut out, reference.frames);
                integers(&mut out, reference.codes.iter().map(|code| code.to_le_bytes()));
                integers(&mut out, reference.text_ids.iter().map(|id| id.to_le_bytes()));
                number(&mut out, u32::try_from(reference.image.len()).unwrap_or(u32::MAX));
                for (state, row) in reference.image.iter() {
                    number(&mut out, state.0);
                    match row {
                        HostTensor::F32(values) => {
                            number(&mut out, 0);
                            floats(&mut out, values);
                        }
                        HostTensor::I32(values) => {
                            number(&mut out, 1);
                            integers(&mut out, values.iter().map(|value| value.to_le_bytes()));
                        }
                    }
                }
            }
        }
        let sum = fnv(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// `None` for bytes that [`VoiceFeatures::to_bytes`] of this version did not write whole.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if fnv(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = Rest(body.strip_prefix(&MAGIC)?);
        if rest.number()? != VERSION {
            return None;
        }
        let speaker = match rest.number()? {
            0 => None,
            _ => Some(rest.floats()?.into()),
        };
        let reference = match rest.number()? {
            0 => None,
            _ => Some(rest.reference()?),
        };
        rest.0.is_empty().then_some(Self { speaker, reference })
    }
}

/// What of the body has not been read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn reference(&mut self) -> Option<Reference> {
        let frames = self.number()?;
        let codes: Vec<i32> = self.words()?.into_iter().map(i32::from_le_bytes).collect();
        let text_ids: Vec<u32> = self.words()?.into_iter().map(u32::from_le_bytes).collect();
        let count = self.number()?;
        let mut image = Vec::new();
        for _ in 0..count {
            let state = StateId(self.number()?);
            let row = match self.number()? {
                0 => HostTensor::F32(self.floats()?),
                _ => HostTensor::I32(self.words()?.into_iter().map(i32::from_le_bytes).collect()),
            };
            image.push((state, row));
        }
        Some(Reference { codes: codes.into(), frames, text_ids: text_ids.into(), image: Arc::from(image) })
    }

    fn number(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    fn words(&mut self) -> Option<Vec<[u8; 4]>> {
        let bytes = (self.number()? as usize).checked_mul(4)?;
        let (words, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(words.as_chunks::<4>().0.to_vec())
    }

    fn floats(&mut self) -> Option<Vec<f32>> {
        let values: Vec<f32> = self.words()?.into_iter().map(f32::from_le_bytes).collect();
        values.iter().all(|value| value.is_finite()).then_some(values)
    }
}

fn number(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn floats(out: &mut Vec<u8>, values: &[f32]) {
    integers(out, values.iter().map(|value| value.to_le_bytes()));
}

fn integers(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = [u8; 4]>) {
    number(out, u32::try_from(words.len()).unwrap_or(u32::MAX));
    for word in words {
        out.extend_from_slice(&word);
    }
}

/// 64-bit FNV-1a over words of eight bytes: fast enough for megabytes, and it only guards against rot.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> VoiceFeatures {
        VoiceFeatures {
            speaker: Some(vec![0.25, -1.5].into()),
            reference: Some(Reference {
                codes: vec![1, 2, 3, 4].into(),
                frames: 2,
                text_ids: vec![7, 8, 9].into(),
                image: Arc::from(vec![
                    (StateId(3), HostTensor::F32(vec![0.5; 9])),
                    (StateId(4), HostTensor::I32(vec![-1, 2])),
                ]),
            }),
        }
    }

    #[test]
    fn features_come_back_as_they_went_in() {
        for whole in [
            features(),
            VoiceFeatures { speaker: None, ..features() },
            VoiceFeatures { reference: None, ..features() },
        ] {
            assert_eq!(VoiceFeatures::from_bytes(&whole.to_bytes()), Some(whole));
        }
    }

    #[test]
    fn bytes_that_are_cut_or_changed_anywhere_are_no_features() {
        let whole = features().to_bytes();
        for at in 0..whole.len() {
            assert_eq!(VoiceFeatures::from_bytes(&whole[..at]), None, "cut at {at}");
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            assert_eq!(VoiceFeatures::from_bytes(&changed), None, "changed at {at}");
        }
    }
}
