//! The compiled kernels, by name.

use std::collections::BTreeMap;

use cudarc::driver::sys;
use device::DeviceError;

use crate::compile::SOURCES;
use crate::driver::Driver;

/// Bytes of shared memory a block may ask for on every card the kernels run on (sm_80: 163 KiB).
const SHARED_MAX: u32 = 163 << 10;
/// Kernels with static shared memory beside the dynamic get this much.
const SHARED_SMALL: u32 = 48 << 10;

/// Kernels found so far, and the libraries they come from.
pub(crate) struct Kernels {
    libraries: Vec<(&'static str, sys::CUlibrary)>,
    found: BTreeMap<String, sys::CUkernel>,
}

impl Kernels {
    pub(crate) fn load(driver: &Driver, images: &[Vec<u8>]) -> Result<Self, DeviceError> {
        let libraries = SOURCES
            .iter()
            .zip(images)
            .map(|(&(name, _), image)| Ok((name, driver.load(image)?)))
            .collect::<Result<_, DeviceError>>()?;
        Ok(Self { libraries, found: BTreeMap::new() })
    }

    pub(crate) fn get(&mut self, driver: &Driver, name: &str) -> Result<sys::CUkernel, DeviceError> {
        if let Some(&kernel) = self.found.get(name) {
            return Ok(kernel);
        }
        let file = match name {
            _ if name.starts_with("attend") || name.starts_with("append") => "attention",
            _ if name.starts_with("product") => "dense",
            "sample" => "sample",
            "statistics" | "softmax_over_time" | "spectrum" | "log_floor" | "quantize_residual" => "encode",
            _ if name.starts_with("carry")
                || name.starts_with("depthwise")
                || matches!(name, "pad_rows" | "conv_weights" | "transposed_weights" | "repeat_vector") =>
            {
                "conv"
            }
            _ => "rows",
        };
        let missing = || DeviceError::BadProgram {
            program: format!("{file}.cu"),
            op: 0,
            what: format!("there is no kernel {name}"),
        };
        let &(_, library) = self.libraries.iter().find(|(known, _)| *known == file).ok_or_else(missing)?;
        let large = name.starts_with("product_tensor") || name == "sample";
        let kernel =
            driver.kernel(library, name, if large { SHARED_MAX - 4096 } else { SHARED_SMALL - 12 * 1024 })?;
        self.found.insert(name.to_owned(), kernel);
        Ok(kernel)
    }
}
