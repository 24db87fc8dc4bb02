//! Reading goldens and comparing with them.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

/// The workspace's root: where the tests were built, or `VOXLANE_TEST_ROOT` on another machine.
pub(crate) fn root() -> PathBuf {
    match std::env::var_os("VOXLANE_TEST_ROOT") {
        Some(root) => root.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    }
}

pub(crate) fn tiny() -> PathBuf {
    root().join("config/models/tiny")
}

pub(crate) fn golden() -> PathBuf {
    root().join("tests/golden")
}

/// One safetensors file of plain values.
pub(crate) struct Fixture {
    pub(crate) name: String,
    bytes: Vec<u8>,
}

impl Fixture {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("fixture {}: {error}", path.display()));
        Self { name: path.display().to_string(), bytes }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    fn tensor(&self, name: &str, dtypes: &[Dtype]) -> (Dtype, Vec<usize>, Vec<u8>) {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap_or_else(|error| panic!("{} {name}: {error}", self.name));
        assert!(dtypes.contains(&view.dtype()), "{} {name} is {:?}", self.name, view.dtype());
        (view.dtype(), view.shape().to_vec(), view.data().to_vec())
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors()
            .tensor(name)
            .unwrap_or_else(|error| panic!("{} {name}: {error}", self.name))
            .shape()
            .to_vec()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let (_, _, data) = self.tensor(name, &[Dtype::F32]);
        data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub(crate) fn ints(&self, name: &str) -> Vec<i32> {
        let (dtype, _, data) = self.tensor(name, &[Dtype::I32, Dtype::I64]);
        let width = if dtype == Dtype::I32 { 4 } else { 8 };
        data.chunks_exact(width)
            .map(|b| {
                let low = i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                assert!(b[4..].iter().all(|&byte| byte == 0), "{name} exceeds 31 bits");
                low
            })
            .collect()
    }

    /// Rows of `name` that the fixture keeps: all, or those `name.frames` lists.
    pub(crate) fn kept_rows(&self, name: &str) -> Vec<usize> {
        let listed = format!("{name}.frames");
        if self.has(&listed) {
            self.ints(&listed).into_iter().map(|row| row as usize).collect()
        } else {
            (0..self.shape(name)[0]).collect()
        }
    }
}

/// Largest difference relative to the largest magnitude expected.
pub(crate) fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "lengths differ");
    let scale = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs())).max(1e-6);
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, nan_max);
    worst / scale
}

/// A difference that is not a number must not hide.
fn nan_max(most: f32, value: f32) -> f32 {
    if value.is_nan() { f32::INFINITY } else { most.max(value) }
}

/// Asserts closeness and prints the figure.
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f32], bound: f32) {
    let error = relative_error(found, expected);
    println!("{what}: relative error {error:.2e}");
    assert!(error <= bound, "{what}: relative error {error:e} is above {bound:e}");
}
