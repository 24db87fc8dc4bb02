//! The compiled kernels, by name.

use std::collections::BTreeMap;
use std::path::Path;

use cudarc::driver::sys;
use device::DeviceError;

use crate::blas::Blas;
use crate::compile::SOURCES;
use crate::driver::Driver;

/// Bytes of dynamic shared memory kernels that hold a little statically may ask for.
const SHARED_SMALL: u32 = 36 << 10;

/// Bytes of dynamic shared memory a block may ask for on a card of this compute capability (163 KiB from sm_80 on, 227
/// on Hopper), less what its kernel holds statically.
pub(crate) const fn shared_max((major, _): (i32, i32)) -> u32 {
    if major >= 9 { 220 << 10 } else { 96 << 10 }
}

/// Bytes of dynamic shared memory a kernel may ask for on a card of this compute capability.
pub(crate) fn shared_limit(name: &str, capability: (i32, i32)) -> u32 {
    let large = [
        "product_tensor",
        "product_hopper",
        "product_rows",
        "conv_window",
        "conv_hopper",
        "unit_hopper",
        "attend_held",
        "attend_pair_pages",
        "sample",
    ];
    if large.iter().any(|family| name.starts_with(family)) { shared_max(capability) } else { SHARED_SMALL }
}

/// Kernels found so far, and the libraries they come from.
pub(crate) struct Kernels {
    libraries: Vec<(&'static str, sys::CUlibrary)>,
    found: BTreeMap<String, sys::CUkernel>,
    /// cuBLASLt, where it is installed.
    pub(crate) library: Option<Blas>,
}

impl Kernels {
    /// `cache` keeps what the library was found to do best.
    pub(crate) fn load(
        driver: &Driver,
        images: &[Vec<u8>],
        cache: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        let libraries = SOURCES
            .iter()
            .zip(images)
            .map(|(&(name, _), image)| Ok((name, driver.load(image)?)))
            .collect::<Result<_, DeviceError>>()?;
        Ok(Self { libraries, found: BTreeMap::new(), library: Blas::open(driver, cache) })
    }

    pub(crate) fn get(&mut self, driver: &Driver, name: &str) -> Result<sys::CUkernel, DeviceError> {
        if let Some(&kernel) = self.found.get(name) {
            return Ok(kernel);
        }
        let file = file_of(name);
        let missing = || DeviceError::BadProgram {
            program: format!("{file}.cu"),
            op: 0,
            what: format!("there is no kernel {name}"),
        };
        let &(_, library) = self.libraries.iter().find(|(known, _)| *known == file).ok_or_else(missing)?;
        let kernel = driver.kernel(library, name, shared_limit(name, driver.capability))?;
        self.found.insert(name.to_owned(), kernel);
        Ok(kernel)
    }
}

/// The file in `kernels` that has the kernel.
pub(crate) fn file_of(name: &str) -> &'static str {
    match name {
        _ if name.starts_with("attend_pair") || matches!(name, "append_pair_pages" | "attend_frame") => {
            "pair"
        }
        _ if name.starts_with("product_hopper") => "dense_hopper",
        _ if name.starts_with("product_rows") => "rows_hopper",
        _ if name.starts_with("attend") || name.starts_with("append") => "attention",
        _ if name.starts_with("product") => "dense",
        _ if name.starts_with("conv_window") || name.contains("_hopper_") || name == "conv_one" => "window",
        "sample" => "sample",
        "statistics" | "softmax_over_time" | "spectrum" | "log_floor" | "quantize_residual" => "encode",
        _ if name.starts_with("carry")
            || name.starts_with("depthwise")
            || matches!(name, "pad_rows" | "conv_weights" | "transposed_weights" | "repeat_vector") =>
        {
            "conv"
        }
        _ => "rows",
    }
}
