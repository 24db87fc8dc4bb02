//! Weight files: safetensors, whole or sharded, on disk or embedded in the binary.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype as Stored;
use safetensors::tensor::TensorInfo as Described;

use crate::{DeviceError, open_regular, read_regular};

/// The file a single-file checkpoint has in its folder.
const SINGLE: &str = "model.safetensors";
/// The shard list of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";
/// The one entry of a header that is no tensor.
const METADATA: &str = "__metadata__";
/// Longest header accepted; the format's own bound.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Longest shard list accepted.
const INDEX_BYTES_MAX: u64 = 100_000_000;
/// Bytes read from a file at a time while widening.
const READ_BYTES: usize = 1 << 20;

/// A read-only set of named tensors. Nothing but headers is held in memory for files on disk.
#[derive(Debug)]
pub struct Checkpoint {
    /// What errors call the whole.
    label: PathBuf,
    sources: Vec<Source>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Set for a checkpoint without files, whose values come from a seed.
    seed: Option<u64>,
}

/// Where one tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub shape: Vec<usize>,
    stored: Stored,
    source: usize,
    /// Offset in the source, header included.
    start: u64,
}

#[derive(Debug)]
struct Source {
    label: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Memory(Cow<'static, [u8]>),
    Disk { file: File, len: u64 },
}

impl Checkpoint {
    /// Opens a folder that holds `model.safetensors`, or the shards named by
    /// `model.safetensors.index.json`; or one safetensors file.
    ///
    /// # Errors
    /// A file that is missing, truncated, foreign, or whose header contradicts itself.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        if !path.is_dir() {
            return Self::from_sources(path.to_owned(), vec![Source::disk(path.to_owned())?]);
        }
        let single = path.join(SINGLE);
        if single.exists() {
            return Self::from_sources(single.clone(), vec![Source::disk(single)?]);
        }
        let index = path.join(INDEX);
        if !index.exists() {
            return Err(bad(
                path,
                format!("holds neither {SINGLE} nor {INDEX}; is this a checkpoint folder?"),
            ));
        }
        let shards = shards_of(&index)?;
        let sources =
            shards.iter().map(|shard| Source::disk(path.join(shard))).collect::<Result<Vec<_>, _>>()?;
        Self::from_sources(index, sources)
    }

    /// Reads a safetensors file held in memory; `label` names it in errors.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_bytes(
        label: impl Into<PathBuf>,
        bytes: impl Into<Cow<'static, [u8]>>,
    ) -> Result<Self, DeviceError> {
        let label = label.into();
        let source = Source { label: label.clone(), bytes: Bytes::Memory(bytes.into()) };
        Self::from_sources(label, vec![source])
    }

    fn from_sources(label: PathBuf, sources: Vec<Source>) -> Result<Self, DeviceError> {
        let mut tensors = BTreeMap::new();
        for (index, source) in sources.iter().enumerate() {
            for (name, info) in source.header(index)? {
                if tensors.insert(name.clone(), info).is_some() {
                    return Err(bad(&source.label, format!("tensor {name} is in an earlier shard as well")));
                }
            }
        }
        Ok(Self { label, sources, tensors, seed: None })
    }

    /// A checkpoint of any tensor one asks for, its values drawn from `seed` and the tensor's name: for
    /// measuring sizes nobody has downloaded.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        Self {
            label: PathBuf::from("random weights"),
            sources: Vec::new(),
            tensors: BTreeMap::new(),
            seed: Some(seed),
        }
    }

    /// Whether values are drawn rather than read.
    #[must_use]
    pub const fn is_random(&self) -> bool {
        self.seed.is_some()
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// # Errors
    /// No such tensor.
    pub fn shape(&self, name: &str) -> Result<&[usize], DeviceError> {
        Ok(&self.info(name)?.shape)
    }

    /// All values of a tensor, widened to `f32` (exact for bf16 and f16), with its shape.
    ///
    /// # Errors
    /// No such tensor, a type that is not a float of at most 32 bits, or a file that cannot be read.
    pub fn tensor(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), DeviceError> {
        let info = self.info(name)?;
        let count: usize = info.shape.iter().product();
        let width = float_bytes(info.stored).ok_or_else(|| DeviceError::BadTensor {
            name: name.to_owned(),
            what: format!("is stored as {:?}; bf16, f16 or f32 is needed", info.stored),
        })?;
        let source = &self.sources[info.source];
        let mut values = Vec::with_capacity(count);
        match &source.bytes {
            Bytes::Memory(bytes) => {
                let start = info.start as usize;
                widen(info.stored, &bytes[start..start + count * width], &mut values);
            }
            Bytes::Disk { file, .. } => {
                let total = count * width;
                let mut buffer = vec![0u8; READ_BYTES.min(total)];
                let mut done = 0;
                while done < total {
                    let part = &mut buffer[..READ_BYTES.min(total - done)];
                    file.read_exact_at(part, info.start + done as u64).map_err(|error| {
                        bad(&source.label, format!("tensor {name} cannot be read: {error}"))
                    })?;
                    widen(info.stored, part, &mut values);
                    done += part.len();
                }
            }
        }
        Ok((info.shape.clone(), values))
    }

    /// As [`Checkpoint::tensor`], for a tensor whose shape the caller knows.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`], or another shape.
    pub fn expect_shape(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, DeviceError> {
        if let Some(seed) = self.seed {
            return Ok(random_values(seed, name, shape));
        }
        let found = self.shape(name)?;
        if found != shape {
            return Err(DeviceError::BadTensor {
                name: name.to_owned(),
                what: format!("has shape {found:?}, but the config asks for {shape:?}"),
            });
        }
        Ok(self.tensor(name)?.1)
    }

    /// Bytes all tensors take in the files.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.tensors.values().map(|info| stored_bytes(info.stored, &info.shape).unwrap_or(0)).sum()
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, DeviceError> {
        self.tensors
            .get(name)
            .ok_or_else(|| DeviceError::MissingTensor { name: name.to_owned(), file: self.label.clone() })
    }
}

impl Source {
    fn disk(label: PathBuf) -> Result<Self, DeviceError> {
        let (file, len) = open_regular(&label)?;
        Ok(Self { label, bytes: Bytes::Disk { file, len } })
    }

    fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.len() as u64,
            Bytes::Disk { len, .. } => *len,
        }
    }

    fn read(&self, start: u64, count: usize) -> Result<Vec<u8>, DeviceError> {
        match &self.bytes {
            Bytes::Memory(bytes) => Ok(bytes[start as usize..start as usize + count].to_vec()),
            Bytes::Disk { file, .. } => {
                let mut read = vec![0; count];
                file.read_exact_at(&mut read, start).map_err(|error| bad(&self.label, error.to_string()))?;
                Ok(read)
            }
        }
    }

    /// Reads and checks the header: every tensor lies inside the file and has the bytes its shape needs.
    fn header(&self, source: usize) -> Result<Vec<(String, TensorInfo)>, DeviceError> {
        let fail = |what: String| bad(&self.label, what);
        let total = self.len();
        if total < 8 {
            return Err(fail(format!("is {total} bytes long; not a safetensors file")));
        }
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&self.read(0, 8)?);
        let header = u64::from_le_bytes(prefix);
        if header > HEADER_BYTES_MAX {
            return Err(fail(format!("claims a header of {header} bytes; not a safetensors file")));
        }
        if header + 8 > total {
            return Err(fail(format!(
                "is cut short: {total} bytes, but its header alone takes {}",
                header + 8
            )));
        }
        let text = self.read(8, header as usize)?;
        let data = header + 8;
        let mut tensors = Vec::new();
        let mut end_max = 0;
        for (name, info) in entries(&text).map_err(&fail)? {
            let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            let needed = stored_bytes(info.dtype, &info.shape);
            if end.checked_sub(start) != needed {
                return Err(fail(format!(
                    "the header gives tensor {name} bytes {start}..{end}, but shape {:?} of {:?} needs {}",
                    info.shape,
                    info.dtype,
                    needed.map_or_else(|| "more than fit in memory".to_owned(), |bytes| bytes.to_string()),
                )));
            }
            if start != end_max {
                return Err(fail(format!(
                    "tensor {name} begins at byte {start} of the data, but the one before it ends at {end_max}"
                )));
            }
            if end > total - data {
                return Err(fail(format!(
                    "is cut short: tensor {name} ends at byte {}, but the file has {total}",
                    end + data
                )));
            }
            end_max = end;
            let info = TensorInfo { shape: info.shape, stored: info.dtype, source, start: data + start };
            tensors.push((name, info));
        }
        if end_max != total - data {
            return Err(fail(format!("has {} bytes no tensor owns", total - data - end_max)));
        }
        Ok(tensors)
    }
}

/// Name and description of each tensor of a header, in the order of their bytes. The library's own reading
/// does not say which tensor is at fault.
fn entries(header: &[u8]) -> Result<Vec<(String, Described)>, String> {
    let parsed: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)
        .map_err(|error| format!("has no valid safetensors header: {error}"))?;
    let mut entries = Vec::with_capacity(parsed.len());
    for (name, value) in parsed {
        if name != METADATA {
            let described: Described = serde_json::from_value(value)
                .map_err(|error| format!("the header describes tensor {name} wrongly: {error}"))?;
            entries.push((name, described));
        }
    }
    entries.sort_by_key(|(_, described)| described.data_offsets);
    Ok(entries)
}

/// File names of all shards, each once, in order.
fn shards_of(index: &Path) -> Result<Vec<String>, DeviceError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_regular(index, INDEX_BYTES_MAX)?;
    let parsed: Index = serde_json::from_slice(&text)
        .map_err(|error| bad(index, format!("is not a safetensors shard list: {error}")))?;
    let mut shards: Vec<String> = parsed.weight_map.into_values().collect();
    shards.sort();
    shards.dedup();
    if let Some(outside) = shards.iter().find(|shard| Path::new(shard).components().count() != 1) {
        return Err(bad(index, format!("names the shard {outside}, which is not a file beside it")));
    }
    Ok(shards)
}

fn bad(file: &Path, what: String) -> DeviceError {
    DeviceError::BadFile { file: file.to_owned(), what }
}

/// Bytes of a tensor in a file; `None` when the product overflows or is not whole.
fn stored_bytes(stored: Stored, shape: &[usize]) -> Option<u64> {
    let count = shape.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis as u64))?;
    let bits = count.checked_mul(stored.bitsize() as u64)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

fn float_bytes(stored: Stored) -> Option<usize> {
    match stored {
        Stored::BF16 | Stored::F16 => Some(2),
        Stored::F32 => Some(4),
        _ => None,
    }
}

fn widen(stored: Stored, bytes: &[u8], values: &mut Vec<f32>) {
    match stored {
        Stored::BF16 => {
            values.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()));
        }
        Stored::F16 => {
            values.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()))
        }
        _ => values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
    }
}

/// Values a trained tensor of this name and shape might have, so far as sizes and scales go: matrices keep
/// the scale of what they multiply, norms pass, biases and the logs of snakes are nothing.
fn random_values(seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
    let count = shape.iter().product();
    if shape.len() == 1 {
        let value = match name.rsplit('.').next() {
            Some("bias" | "alpha" | "beta") => 0.0,
            Some("gamma" | "scale") => 0.1,
            _ => 1.0,
        };
        return vec![value; count];
    }
    let fan_in: usize = shape[1..].iter().product();
    let scale = (3.0 / fan_in.max(1) as f32).sqrt();
    // FNV-1a of the name: tensors differ, and none depends on the order they are asked for.
    let named = name.bytes().fold(0xCBF2_9CE4_8422_2325 ^ seed, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let value = |place: usize| {
        let mut x = named.wrapping_add((place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        scale * (((x >> 40) as f32) * (2.0 / 16_777_216.0) - 1.0)
    };
    (0..count).map(value).collect()
}
