//! One step, launched.

use device::DeviceError;

use crate::blas::Operands;
use crate::driver::{Driver, Geometry, Stream};
use crate::kernels::Kernels;
use crate::lower::{Place, Step};

/// Launches `step` on `stream`, now or into the graph being recorded there.
pub(crate) fn launch_step(
    driver: &Driver,
    kernels: &mut Kernels,
    stream: Stream,
    step: &Step,
    resolve: &mut impl FnMut(&Place) -> u64,
) -> Result<(), DeviceError> {
    if let Some(matmul) = step.library {
        let mut address = |index: usize| step.args[index].words(resolve).first().copied().unwrap_or(0);
        let [left, weight, out, workspace] = [0, 1, 2, 3].map(&mut address);
        let operands = Operands { left, weight, out, workspace };
        return match &mut kernels.library {
            // SAFETY: as below.
            Some(blas) => unsafe { blas.launch(driver, stream, matmul, operands) },
            None => Err(DeviceError::LaneLost { lane: "cuda", what: "cuBLASLt is not there".to_owned() }),
        };
    }
    let kernel = kernels.get(driver, &step.kernel)?;
    let &Step { grid, block, shared, cluster, .. } = step;
    let geometry = Geometry { grid, block, shared, cluster };
    let mut words: Vec<Vec<u64>> = step.args.iter().map(|arg| arg.words(resolve)).collect();
    let mut pointers: Vec<_> = words.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
    // SAFETY: lowering lays arguments out as the kernel declares them (held by the tests that run every kernel
    // against its reference), and resolves names to memory this backend took.
    unsafe { driver.launch(stream, kernel, geometry, &mut pointers) }
        .map_err(|error| DeviceError::LaneLost { lane: "cuda", what: format!("{}: {error}", step.kernel) })
}
