//! Kernels without a card: NVRTC makes machine code of all of them for every architecture that is served.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cuda::compile::{SOURCES, compile_all};
use device::DeviceError;

/// Ampere, Hopper, Hopper with its matrix instructions, Blackwell.
const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90", "sm_90a", "sm_100"];

#[test]
fn every_kernel_compiles_for_every_architecture_and_a_cache_gives_the_same_code() {
    let cache = std::env::temp_dir().join(format!("voxlane-kernels-{}", std::process::id()));
    for architecture in ARCHITECTURES {
        let made =
            compile_all(architecture, Some(&cache)).unwrap_or_else(|error| panic!("{architecture}: {error}"));
        assert_eq!(made.len(), SOURCES.len());
        for (code, (name, _)) in made.iter().zip(SOURCES) {
            assert!(code.starts_with(b"\x7fELF"), "{name} for {architecture} is not machine code");
        }
        assert_eq!(compile_all(architecture, Some(&cache)).unwrap(), made, "{architecture}: from the cache");
    }
    std::fs::remove_dir_all(cache).unwrap();
}

#[test]
fn a_kernel_that_does_not_compile_is_named_with_the_compilers_words() {
    let error =
        cuda::compile::compile("broken", "extern \"C\" __global__ void f() { wrong; }", "sm_90").unwrap_err();
    let DeviceError::BadProgram { program, what, .. } = error else { panic!("{error}") };
    assert_eq!(program, "broken.cu");
    assert!(what.contains("wrong"), "{what}");
}
