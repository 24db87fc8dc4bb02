//! Weight files: whole, sharded, embedded, and broken in every way a copy can break.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use device::{Checkpoint, DeviceError};
use proptest::prelude::*;

/// A safetensors file of the given header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn good() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "half":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},
        "full":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},
        "ids":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},
        "small":{"dtype":"F16","shape":[1,1,2],"data_offsets":[24,28]}}"#;
    let mut data = Vec::new();
    for value in [1.0f32, -2.0, 0.5, 3.0] {
        data.extend(&value.to_le_bytes()[2..]);
    }
    data.extend([0.1f32, -7.25].iter().flat_map(|x| x.to_le_bytes()));
    data.extend(9i64.to_le_bytes());
    data.extend([0x00, 0x3c, 0x00, 0xc0]);
    file(header, &data)
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, DeviceError> {
    Checkpoint::from_bytes("given.safetensors", bytes)
}

fn refused(bytes: Vec<u8>) -> String {
    open(bytes).unwrap_err().to_string()
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("voxlane-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> &Path {
        std::fs::write(self.0.join(name), bytes).unwrap();
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn check_values(checkpoint: &Checkpoint) {
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["full", "half", "ids", "small"]);
    assert_eq!(checkpoint.tensor("half").unwrap(), (vec![2, 2], vec![1.0, -2.0, 0.5, 3.0]));
    assert_eq!(checkpoint.tensor("small").unwrap(), (vec![1, 1, 2], vec![1.0, -2.0]));
    assert_eq!(checkpoint.expect_shape("full", &[2]).unwrap(), [0.1, -7.25]);
}

#[test]
fn tensors_are_widened_exactly_from_memory_and_from_disk() {
    let checkpoint = open(good()).unwrap();
    check_values(&checkpoint);
    assert_eq!(checkpoint.stored_bytes(), 28);
    assert!(checkpoint.contains("ids") && !checkpoint.contains("id"));
    let folder = Folder::new("whole");
    let path = folder.write("model.safetensors", &good());
    check_values(&Checkpoint::open(path).unwrap());
    check_values(&Checkpoint::open(&path.join("model.safetensors")).unwrap());
}

#[test]
fn a_tensor_longer_than_one_read_comes_whole() {
    let values: Vec<f32> = (0..700_000).map(|i| i as f32).collect();
    let header =
        format!(r#"{{"long":{{"dtype":"F32","shape":[700,1000],"data_offsets":[0,{}]}}}}"#, 4 * values.len());
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let folder = Folder::new("long");
    let path = folder.write("model.safetensors", &file(&header, &data));
    assert_eq!(Checkpoint::open(path).unwrap().expect_shape("long", &[700, 1_000]).unwrap(), values);
}

#[test]
fn shards_are_found_through_their_index() {
    let folder = Folder::new("shards");
    let shard = |name: &str, value: f32| {
        let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
        file(&header, &value.to_le_bytes())
    };
    folder.write("model-00001-of-00002.safetensors", &shard("a", 1.0));
    folder.write("model-00002-of-00002.safetensors", &shard("b", 2.0));
    let index =
        r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let path = folder.write("model.safetensors.index.json", index.as_bytes());
    let checkpoint = Checkpoint::open(path).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().1, [1.0]);
    assert_eq!(checkpoint.tensor("b").unwrap().1, [2.0]);

    folder.write("model-00002-of-00002.safetensors", &shard("a", 2.0));
    let error = Checkpoint::open(path).unwrap_err().to_string();
    assert!(error.contains("tensor a is in an earlier shard as well"), "{error}");
    folder.write("model.safetensors.index.json", br#"{"weight_map":{"a":"../../etc/passwd"}}"#);
    let error = Checkpoint::open(path).unwrap_err().to_string();
    assert!(error.contains("not a file beside it"), "{error}");
    folder.write("model.safetensors.index.json", br#"{"weight_map":{"a":"gone.safetensors"}}"#);
    let error = Checkpoint::open(path).unwrap_err().to_string();
    assert!(error.contains("gone.safetensors: "), "{error}");
}

#[test]
fn what_is_no_regular_file_or_too_long_is_refused_before_it_is_opened() {
    let folder = Folder::new("pipe");
    let pipe = folder.0.join("model.safetensors");
    // Opening a pipe to read waits for a writer: a refusal that came late would hang this test.
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&folder.0, &pipe] {
        let error = Checkpoint::open(path).unwrap_err().to_string();
        assert!(error.contains("model.safetensors: is not a regular file"), "{error}");
    }
    let error = Checkpoint::open(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(error, "/dev/zero: is not a regular file");
    std::fs::remove_file(&pipe).unwrap();
    std::fs::create_dir(&pipe).unwrap();
    let error = Checkpoint::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains("is not a regular file"), "{error}");
    // A length alone refuses: nothing of a sparse terabyte is read.
    let index = folder.0.join("model.safetensors.index.json");
    std::fs::remove_dir(&pipe).unwrap();
    std::fs::File::create(&index).unwrap().set_len(1 << 40).unwrap();
    let error = Checkpoint::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains("is 1099511627776 bytes long; at most 100000000 are read"), "{error}");
}

#[test]
fn errors_name_the_tensor_and_what_was_wanted() {
    let checkpoint = open(good()).unwrap();
    let text = |result: Result<Vec<f32>, DeviceError>| result.unwrap_err().to_string();
    assert!(
        text(checkpoint.expect_shape("gone", &[1])).contains("tensor gone is missing from given.safetensors")
    );
    let shape = text(checkpoint.expect_shape("half", &[4]));
    assert_eq!(shape, "tensor half: has shape [2, 2], but the config asks for [4]");
    assert!(text(checkpoint.expect_shape("ids", &[1])).contains("is stored as I64"));
}

#[test]
fn broken_files_are_refused_with_what_is_wrong() {
    assert!(refused(vec![1, 2, 3]).contains("is 3 bytes long; not a safetensors file"));
    assert!(refused(b"#!/bin/sh\necho no\n".to_vec()).contains("not a safetensors file"));
    let whole = good();
    assert!(refused(whole[..40].to_vec()).contains("is cut short"));
    assert!(refused(whole[..whole.len() - 1].to_vec()).contains("is cut short: tensor small"));
    let mut long = whole.clone();
    long.push(0);
    assert!(refused(long).contains("has 1 bytes no tensor owns"));
    assert!(refused(file("{not json", &[])).contains("no valid safetensors header"));
    let lies = [
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"shape":[1],"data_offsets":[0,4]}}"#,
    ];
    for header in lies {
        let error = refused(file(header, &[0; 4]));
        assert!(error.starts_with("given.safetensors: ") && error.contains("tensor a"), "{error}");
    }
    let two = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#;
    assert!(refused(file(two, &[0; 6])).contains("tensor b begins at byte 2"));
    let empty = Folder::new("empty");
    let error = Checkpoint::open(&empty.0).unwrap_err().to_string();
    assert!(error.contains("holds neither model.safetensors nor"), "{error}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(flips in prop::collection::vec((0usize..400, any::<u8>()), 1..6), cut in 0usize..420) {
        let mut bytes = good();
        for (at, value) in flips {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        bytes.truncate(cut.max(1));
        if let Ok(checkpoint) = open(bytes) {
            for name in checkpoint.names() {
                let _ = checkpoint.tensor(name);
            }
        }
    }
}
