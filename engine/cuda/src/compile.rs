//! Kernel text to machine code: NVRTC compiles for the card found, and a file named by a hash of everything
//! that decides the outcome keeps the result.

use std::ffi::{CStr, CString};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::nvrtc::sys;
use device::DeviceError;

/// Shared by every kernel file, so that no toolkit's headers are needed.
const PRELUDE: &str = concat!(
    include_str!("../kernels/prelude.cuh"),
    include_str!("../kernels/tile.cuh"),
    include_str!("../kernels/wgmma.cuh"),
    include_str!("../kernels/product.cuh"),
    include_str!("../kernels/heads.cuh"),
);

/// Kernel files by name.
pub const SOURCES: [(&str, &str); 10] = [
    ("attention", include_str!("../kernels/attention.cu")),
    ("conv", include_str!("../kernels/conv.cu")),
    ("dense", include_str!("../kernels/dense.cu")),
    ("dense_hopper", include_str!("../kernels/dense_hopper.cu")),
    ("encode", include_str!("../kernels/encode.cu")),
    ("pair", include_str!("../kernels/pair.cu")),
    ("rows", include_str!("../kernels/rows.cu")),
    ("rows_hopper", include_str!("../kernels/rows_hopper.cu")),
    ("sample", include_str!("../kernels/sample.cu")),
    ("window", include_str!("../kernels/window.cu")),
];

/// What the compiler is asked for on a card of this compute capability. Hopper's matrix instructions are compiled for
/// Hopper alone.
pub(crate) fn architecture((major, minor): (i32, i32)) -> String {
    let only = if is_hopper((major, minor)) { "a" } else { "" };
    format!("sm_{major}{minor}{only}")
}

/// Whether a card has the matrix instructions of `dense_hopper.cu`.
pub(crate) const fn is_hopper(capability: (i32, i32)) -> bool {
    matches!(capability, (9, 0))
}

/// Machine code of every kernel file, in the order of [`SOURCES`], compiled in parallel or read from `cache`.
///
/// # Errors
/// [`DeviceError::BadSetting`] without NVRTC, [`DeviceError::BadProgram`] with the compiler's words.
pub fn compile_all(architecture: &str, cache: Option<&Path>) -> Result<Vec<Vec<u8>>, DeviceError> {
    let mut list: Vec<Result<Vec<u8>, DeviceError>> = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = SOURCES
            .iter()
            .map(|&(name, text)| scope.spawn(move || cached(name, text, architecture, cache)))
            .collect();
        for (worker, (name, _)) in workers.into_iter().zip(SOURCES) {
            let failed = || Err(bad(name, "the compiler's thread panicked".to_owned()));
            list.push(worker.join().unwrap_or_else(|_| failed()));
        }
    });
    list.into_iter().collect()
}

fn cached(name: &str, text: &str, architecture: &str, cache: Option<&Path>) -> Result<Vec<u8>, DeviceError> {
    let file = cache.map(|folder| folder.join(key(name, text, architecture)));
    if let Some(kept) =
        file.as_deref().and_then(|file| std::fs::read(file).ok()).filter(|kept| !kept.is_empty())
    {
        return Ok(kept);
    }
    let code = compile(name, text, architecture)?;
    if let Some(file) = file {
        keep(&file, &code);
    }
    Ok(code)
}

/// A cache that cannot be written costs the next start its compile time and nothing else.
pub(crate) fn keep(file: &Path, code: &[u8]) {
    let Some(folder) = file.parent() else { return };
    // Engines of one process may keep the same file at the same time.
    static KEPT: AtomicU32 = AtomicU32::new(0);
    let count = KEPT.fetch_add(1, Ordering::Relaxed);
    let half = PathBuf::from(format!("{}.{}.{count}", file.display(), std::process::id()));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&half, code));
    if written.and_then(|()| std::fs::rename(&half, file)).is_err() {
        let _ = std::fs::remove_file(&half);
    }
}

fn key(name: &str, text: &str, architecture: &str) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    (PRELUDE, text, architecture, version()).hash(&mut hasher);
    format!("{name}-{architecture}-{:016x}.cubin", hasher.finish())
}

fn is_present() -> bool {
    // SAFETY: looks for a library and calls nothing in it.
    unsafe { sys::is_culib_present() }
}

/// NVRTC's version, or (0, 0) without it.
fn version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    if is_present() {
        // SAFETY: pointers to locals.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    }
    (major, minor)
}

/// NVRTC's version, for people.
pub(crate) fn release() -> String {
    let (major, minor) = version();
    format!("{major}.{minor}")
}

fn bad(name: &str, what: String) -> DeviceError {
    DeviceError::BadProgram { program: format!("{name}.cu"), op: 0, what }
}

/// One kernel file for one architecture (`sm_90`).
///
/// # Errors
/// As [`compile_all`].
pub fn compile(name: &str, text: &str, architecture: &str) -> Result<Vec<u8>, DeviceError> {
    if !is_present() {
        return Err(DeviceError::BadSetting {
            setting: "engine.device",
            what: "libnvrtc was not found: install CUDA's run-time compiler (PyPI: nvidia-cuda-nvrtc) and put its \
                   folder into LD_LIBRARY_PATH"
                .to_owned(),
        });
    }
    let whole = format!("{PRELUDE}\n#line 1 \"{name}.cu\"\n{text}");
    let zero = |_| bad(name, "the text holds a zero".to_owned());
    let (source, file) =
        (CString::new(whole).map_err(zero)?, CString::new(format!("{name}.cu")).map_err(zero)?);
    let options = [
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
    ];
    let options: Vec<CString> =
        options.into_iter().map(CString::new).collect::<Result<_, _>>().map_err(zero)?;
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: strings end in zero and outlive the calls; buffers are as long as the library asks.
    unsafe {
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        let made = sys::nvrtcCreateProgram(&raw mut program, source.as_ptr(), file.as_ptr(), 0, none, none);
        if made != sys::nvrtcResult::NVRTC_SUCCESS {
            return Err(bad(name, format!("{made:?}")));
        }
        let count = i32::try_from(pointers.len()).unwrap_or(0);
        let compiled = sys::nvrtcCompileProgram(program, count, pointers.as_ptr());
        let result = if compiled == sys::nvrtcResult::NVRTC_SUCCESS {
            let mut bytes = 0;
            sys::nvrtcGetCUBINSize(program, &raw mut bytes);
            let mut code = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast());
            Ok(code)
        } else {
            let mut bytes = 0;
            sys::nvrtcGetProgramLogSize(program, &raw mut bytes);
            let mut log = vec![0u8; bytes.max(1)];
            sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
            Err(bad(name, format!("{compiled:?}: {log}")))
        };
        sys::nvrtcDestroyProgram(&raw mut program);
        result
    }
}
