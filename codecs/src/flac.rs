//! FLAC streamed out (RFC 9639), by crate `flacenc`: 16-bit mono, its length not known before its end.

use flacenc::component::{BitRepr, MetadataBlockData, Stream, StreamInfo};
use flacenc::config::Encoder;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Fill, FrameBuf};

use crate::CodecError;

/// Samples a second over samples a block: 40 ms, so that a stream is heard soon.
const BLOCKS_PER_SECOND: u32 = 25;
/// Samples of the shortest block.
const BLOCK_MIN: usize = 32;
/// Type of a block of comments.
const VORBIS_COMMENT: u8 = 4;

/// Writes one file.
pub struct FlacWriter {
    config: Verified<Encoder>,
    info: StreamInfo,
    block: usize,
    pending: Vec<i32>,
    frames: usize,
}

impl FlacWriter {
    /// A writer, and the bytes before the first sample. `comments` are names and values.
    ///
    /// # Errors
    /// [`CodecError::Library`] for a rate that the format has no place for.
    pub fn new(rate_hz: u32, comments: &[(String, String)]) -> Result<(Self, Vec<u8>), CodecError> {
        let config = Encoder::default().into_verified().map_err(|(_, error)| refused(&error))?;
        let block = (rate_hz / BLOCKS_PER_SECOND) as usize;
        let mut info = StreamInfo::new(rate_hz as usize, 1, 16).map_err(|error| refused(&error))?;
        info.set_block_sizes(block, block).map_err(|error| refused(&error))?;
        let mut head = Stream::with_stream_info(info.clone());
        let comments = MetadataBlockData::new_unknown(VORBIS_COMMENT, &vorbis(comments));
        head.add_metadata_block(comments.map_err(|error| refused(&error))?);
        let bytes = written(&head)?;
        Ok((Self { config, info, block, pending: Vec::new(), frames: 0 }, bytes))
    }

    /// Takes 16-bit little-endian samples and appends every block that is whole.
    ///
    /// # Errors
    /// [`CodecError::Library`]; the file is then of no use.
    pub fn write(&mut self, s16le: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        let (pairs, _) = s16le.as_chunks::<2>();
        self.pending.extend(pairs.iter().map(|pair| i32::from(i16::from_le_bytes(*pair))));
        while self.pending.len() >= self.block {
            let rest = self.pending.split_off(self.block);
            let block = std::mem::replace(&mut self.pending, rest);
            self.encode(&block, out)?;
        }
        Ok(())
    }

    /// The last, shorter block. One of a millisecond or less is filled up with silence: the library writes
    /// none that is shorter.
    ///
    /// # Errors
    /// As [`FlacWriter::write`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let mut block = std::mem::take(&mut self.pending);
        if block.is_empty() {
            return Ok(());
        }
        block.resize(block.len().max(BLOCK_MIN), 0);
        self.encode(&block, out)
    }

    fn encode(&mut self, block: &[i32], out: &mut Vec<u8>) -> Result<(), CodecError> {
        let mut samples = FrameBuf::with_size(1, block.len()).map_err(|error| refused(&error))?;
        samples.fill_interleaved(block).map_err(|error| refused(&error))?;
        let frame = flacenc::encode_fixed_size_frame(&self.config, &samples, self.frames, &self.info);
        out.extend(written(&frame.map_err(|error| refused(&error))?)?);
        self.frames += 1;
        Ok(())
    }
}

fn written(part: &impl BitRepr) -> Result<Vec<u8>, CodecError> {
    let mut sink = flacenc::bitsink::ByteSink::new();
    part.write(&mut sink).map_err(|error| refused(&error))?;
    Ok(sink.as_slice().to_vec())
}

/// A block of comments (Vorbis I specification, section 5).
fn vorbis(comments: &[(String, String)]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut put = |text: &str| {
        block.extend_from_slice(&(text.len() as u32).to_le_bytes());
        block.extend_from_slice(text.as_bytes());
    };
    put("Voxlane");
    block.extend_from_slice(&(comments.len() as u32).to_le_bytes());
    for (name, value) in comments {
        let comment = format!("{name}={value}");
        block.extend_from_slice(&(comment.len() as u32).to_le_bytes());
        block.extend_from_slice(comment.as_bytes());
    }
    block
}

fn refused(error: &dyn std::fmt::Debug) -> CodecError {
    CodecError::Library { operation: "writing FLAC", reason: format!("{error:?}") }
}
