//! The executables an engine serves with: built once, looked up by stage, length and partition.

use std::collections::BTreeMap;

use contract::{ModelId, Partition, ShapeKey, Stage};
use device::{Backend, ExecutableId};
use models::{EncodeProgram, PlacedModel};

use crate::OpenError;

/// The one model of this device.
const MODEL: ModelId = ModelId(0);

/// Encode programs are made per clip length; this many stay built.
const ENCODE_KEPT: usize = 8;

pub(crate) struct Executables {
    built: BTreeMap<(Stage, u32, Partition), ExecutableId>,
    encode: Vec<(EncodeProgram, ExecutableId)>,
}

/// Rows each stage is built for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets {
    pub(crate) decode: u32,
    pub(crate) prefill: u32,
    /// Rows of a prefill beside which running contexts' steps ride; 0 where none do.
    pub(crate) ride: u32,
    pub(crate) prefill_tokens: u32,
    pub(crate) codec: u32,
}

impl Executables {
    /// Builds the serving set: a CPU replays a recording with the live row count, so one executable for
    /// the largest bucket of each shape serves them all.
    pub(crate) fn build(
        backend: &mut dyn Backend,
        model: &dyn PlacedModel,
        codec_lengths: &[u32],
        buckets: Buckets,
    ) -> Result<Self, OpenError> {
        let mut shapes = vec![
            (Stage::Decode, 1, buckets.decode, Partition::Lm),
            (Stage::Prefill, buckets.prefill_tokens, buckets.prefill, Partition::Whole),
            (Stage::Prefill, buckets.prefill_tokens, buckets.prefill.max(buckets.ride), Partition::Lm),
        ];
        for &length in codec_lengths {
            shapes.push((Stage::Codec, length, buckets.codec, Partition::Whole));
            shapes.push((Stage::Codec, length, buckets.codec, Partition::Background));
        }
        let mut executables = Self { built: BTreeMap::new(), encode: Vec::new() };
        for shape in shapes {
            executables.add(backend, model, shape)?;
        }
        Ok(executables)
    }

    /// Builds one more: stage, length, bucket, partition.
    pub(crate) fn add(
        &mut self,
        backend: &mut dyn Backend,
        model: &dyn PlacedModel,
        (stage, length, bucket, partition): (Stage, u32, u32, Partition),
    ) -> Result<(), OpenError> {
        let program = model.program(stage, length)?;
        let key = ShapeKey { model: MODEL, stage, bucket, length, partition };
        let id = backend.build(key, &program)?;
        let length = if stage == Stage::Codec { length } else { 0 };
        self.built.insert((stage, length, partition), id);
        Ok(())
    }

    /// `length` is a captured codec length, and ignored by the other stages.
    pub(crate) fn find(&self, stage: Stage, length: u32, partition: Partition) -> Option<ExecutableId> {
        let length = if stage == Stage::Codec { length } else { 0 };
        self.built.get(&(stage, length, partition)).copied()
    }

    /// The executable of an encode part, built now unless kept; the one unused for longest makes room.
    pub(crate) fn encode(
        &mut self,
        backend: &mut dyn Backend,
        model: &dyn PlacedModel,
        program: EncodeProgram,
    ) -> Result<ExecutableId, OpenError> {
        if let Some(index) = self.encode.iter().position(|(kept, _)| *kept == program) {
            let kept = self.encode.remove(index);
            self.encode.push(kept);
            return Ok(kept.1);
        }
        if self.encode.len() >= ENCODE_KEPT {
            backend.release(self.encode.remove(0).1);
        }
        let recording = model.encode_program(program)?;
        let key = ShapeKey {
            model: MODEL,
            stage: Stage::Encode,
            bucket: 1,
            length: program.length,
            partition: Partition::Whole,
        };
        let id = backend.build(key, &recording)?;
        self.encode.push((program, id));
        Ok(id)
    }
}
