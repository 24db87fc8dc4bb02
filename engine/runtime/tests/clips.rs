//! A clip is encoded once: not again for another context, not again by the next process, and again once it
//! has been forgotten.

mod support;

use std::path::Path;
use std::sync::Arc;

use contract::{CloneMode, EngineHandle, Layout, OpenContext, VoiceChoice};
use runtime::OpenOptions;

fn open(folder: &Path) -> Arc<dyn EngineHandle> {
    runtime::open(OpenOptions { features: Some(folder.to_owned()), ..support::options() }).expect("opens")
}

fn speak(engine: &Arc<dyn EngineHandle>, mode: CloneMode) -> Vec<f32> {
    let voice = VoiceChoice::Reference { clip: support::clip(), mode };
    let request = OpenContext { voice, ..support::request("clara", Layout::Whole, 7) };
    let heard = support::speak(engine, request, "Good morning.");
    assert!(heard.error.is_none(), "{:?}", heard.error);
    heard.samples()
}

#[test]
fn a_clip_is_encoded_once_in_all_processes_until_it_is_forgotten() {
    let folder = std::env::temp_dir().join(format!("voxlane-features-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    let modes = [CloneMode::Speaker, CloneMode::InContext];
    let engine = open(&folder);
    let first: Vec<Vec<f32>> = modes.iter().map(|mode| speak(&engine, *mode)).collect();
    assert_eq!(engine.stats().encodes, 2);
    for mode in modes {
        speak(&engine, mode);
    }
    assert_eq!(engine.stats().encodes, 2, "another context");
    let written = || std::fs::read_dir(&folder).expect("a folder").count();
    for _ in 0..200 {
        if written() == 2 {
            break;
        }
        #[expect(clippy::disallowed_methods, reason = "the folder is written by a thread of the engine's")]
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(written(), 2);
    drop(engine);

    let engine = open(&folder);
    let second: Vec<Vec<f32>> = modes.iter().map(|mode| speak(&engine, *mode)).collect();
    let stats = engine.stats();
    assert_eq!((stats.encodes, stats.encode_hits), (0, 2), "another process");
    assert!(first == second, "to the sample");

    engine.forget_clip([42; 16]);
    assert_eq!(written(), 0);
    speak(&engine, CloneMode::Speaker);
    assert_eq!(engine.stats().encodes, 1, "forgotten in memory, too");
    drop(engine);
    drop(std::fs::remove_dir_all(&folder));
}

#[test]
fn a_clip_that_is_forgotten_while_it_is_encoded_speaks_and_leaves_nothing() {
    let folder = std::env::temp_dir().join(format!("voxlane-forgotten-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    let engine = open(&folder);
    let request = || {
        let voice = VoiceChoice::Reference { clip: support::clip(), mode: CloneMode::InContext };
        OpenContext { voice, ..support::request("clara", Layout::Whole, 7) }
    };
    let (_, ear) = support::begin(&engine, request(), "Good morning.");
    engine.forget_clip([42; 16]);
    let heard = ear.to_the_end();
    assert!(heard.error.is_none() && !heard.samples().is_empty(), "{:?}", heard.error);
    assert_eq!(engine.stats().encodes, 1);
    // Another that is kept passes through the same thread: had the first been kept, it would be there.
    speak(&engine, CloneMode::Speaker);
    let written = || -> Vec<String> {
        let files =
            std::fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").file_name());
        files.map(|name| name.to_string_lossy().into_owned()).collect()
    };
    for _ in 0..200 {
        if written().iter().any(|name| name.ends_with(".features")) {
            break;
        }
        #[expect(clippy::disallowed_methods, reason = "the folder is written by a thread of the engine's")]
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(written().iter().all(|name| name.contains("speaker")), "{:?}", written());
    speak(&engine, CloneMode::InContext);
    assert_eq!(engine.stats().encodes, 3, "not kept in memory either");
    drop(engine);
    drop(std::fs::remove_dir_all(&folder));
}

#[test]
fn features_of_another_checkpoint_are_not_taken() {
    let source = support::options().source;
    let same = source.fingerprint().expect("readable");
    assert_eq!(source.fingerprint().expect("readable"), same);
    let folder = std::env::temp_dir().join(format!("voxlane-checkpoint-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(support::checkpoint().join(name), folder.join(name)).expect("copied");
    }
    let copy = runtime::ModelSource::Dir(folder.clone());
    let before = copy.fingerprint().expect("readable");
    // A weight changes somewhere.
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 500_000] {
        *byte = byte.wrapping_add(1);
    }
    std::fs::write(&path, bytes).expect("written");
    assert_ne!(copy.fingerprint().expect("readable"), before);
    drop(std::fs::remove_dir_all(&folder));
}
