//! cuBLASLt: products of many rows in bf16. Loaded at run time where it is installed; nothing needs it.

mod ways;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use cudarc::cublaslt::{result, sys};
use device::DeviceError;

use crate::compile;
use crate::driver::{Driver, Stream};
use crate::lower::Matmul;
use ways::{Way, Ways};

/// What NVIDIA recommends for Hopper (cuBLAS documentation, "Tensor Core Usage").
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Ways asked for, and times each is run to see how long it takes.
const WAYS: usize = 12;
const TRIES: usize = 6;
/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;

/// The library, and how it multiplies each shape asked for so far.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    /// By shape and SMs of the partition.
    plans: BTreeMap<(Matmul, u32), Plan>,
    ways: Ways,
    /// Where ways are kept, and whether there are new ones.
    file: Option<PathBuf>,
    found_new: bool,
}

/// How one shape is multiplied.
struct Plan {
    descriptions: Descriptions,
    way: sys::cublasLtMatmulAlgo_t,
}

/// Where a product's operands lie.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) left: u64,
    pub(crate) weight: u64,
    pub(crate) out: u64,
    /// [`WORKSPACE_BYTES`].
    pub(crate) workspace: u64,
}

impl Blas {
    /// `None` where the library is not installed, or does not start. Ways found before are read from `cache`.
    pub(crate) fn open(driver: &Driver, cache: Option<&Path>) -> Option<Self> {
        // SAFETY: looks for a library and calls nothing in it.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let handle = result::create_handle().ok()?;
        // SAFETY: takes nothing.
        let release = unsafe { sys::cublasLtGetVersion() };
        let kind = compile::architecture(driver.capability);
        let file = cache.map(|folder| folder.join(format!("ways-{release}-{kind}-{}.txt", driver.sms)));
        let kept = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let ways = Ways::parse(&kept.unwrap_or_default());
        Some(Self { handle, plans: BTreeMap::new(), ways, file, found_new: false })
    }

    /// Keeps what was found for the next start.
    pub(crate) fn keep(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| self.found_new) {
            compile::keep(file, self.ways.print().as_bytes());
        }
        self.found_new = false;
    }

    /// Multiplies on `stream`, now or into the graph being recorded there. At the first use of a shape on a partition
    /// the ways to multiply it are tried there, which must not be inside a recording.
    ///
    /// # Errors
    /// A shape that the library has no way for, and what the library refuses.
    ///
    /// # Safety
    /// Each operand holds as many values as `matmul` says, and nothing else uses them meanwhile.
    pub(crate) unsafe fn launch(
        &mut self,
        driver: &Driver,
        stream: Stream,
        matmul: Matmul,
        operands: Operands,
    ) -> Result<(), DeviceError> {
        let sms = driver.stream_sms(stream);
        if !self.plans.contains_key(&(matmul, sms)) {
            // SAFETY: the caller's word.
            let plan = driver.within(stream, || unsafe {
                match self.known(stream, matmul, sms, operands) {
                    Some(plan) => Ok(plan),
                    None => self.choose(driver, stream, matmul, sms, operands),
                }
            })?;
            self.plans.insert((matmul, sms), plan);
        }
        let Some(Plan { descriptions, way }) = self.plans.get(&(matmul, sms)) else { return Ok(()) };
        // SAFETY: the caller's word.
        driver.within(stream, || unsafe { self.multiply(stream, matmul, descriptions, way, operands) })
    }

    /// The way kept from an earlier start, if the library still takes it. Using it once also loads its kernel.
    unsafe fn known(&self, stream: Stream, matmul: Matmul, sms: u32, operands: Operands) -> Option<Plan> {
        let Way { told, algorithm } = self.ways.get(matmul, sms)?;
        let descriptions = Descriptions::new(matmul, told).ok()?;
        let way = sys::cublasLtMatmulAlgo_t { data: algorithm };
        // SAFETY: the caller's word; the library checks a way before it takes it.
        unsafe { self.multiply(stream, matmul, &descriptions, &way, operands) }.ok()?;
        Some(Plan { descriptions, way })
    }

    /// The quickest way to multiply a shape on a partition. What the library thinks best is for a card all its own: on
    /// fewer SMs others are quicker.
    unsafe fn choose(
        &mut self,
        driver: &Driver,
        stream: Stream,
        matmul: Matmul,
        sms: u32,
        operands: Operands,
    ) -> Result<Plan, DeviceError> {
        let refused = |error| failed("choosing", matmul, &error);
        let events = driver.events()?;
        let mut best: Option<(f32, u32, Plan)> = None;
        // Persistent kernels take as many blocks as they are told there are SMs.
        for told in [sms, 0] {
            let mut quickest: Option<(f32, sys::cublasLtMatmulAlgo_t)> = None;
            let descriptions = Descriptions::new(matmul, told).map_err(refused)?;
            for way in descriptions.ways(self.handle).map_err(refused)? {
                // SAFETY: the caller's word.
                let run = || unsafe { self.multiply(stream, matmul, &descriptions, &way, operands) };
                run()?;
                driver.mark(events.before, stream)?;
                for _ in 0..TRIES {
                    run()?;
                }
                driver.mark(events.after, stream)?;
                while !driver.has_come(events.after)? {}
                let took = driver.between(events)?;
                if quickest.is_none_or(|(least, _)| took < least) {
                    quickest = Some((took, way));
                }
            }
            if let Some((took, way)) = quickest
                && best.as_ref().is_none_or(|(least, ..)| took < *least)
            {
                best = Some((took, told, Plan { descriptions, way }));
            }
        }
        driver.discard_events(events);
        let none = || refused(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        let (_, told, plan) = best.ok_or_else(none)?;
        self.ways.insert(matmul, sms, Way { told, algorithm: plan.way.data });
        self.found_new = true;
        Ok(plan)
    }

    unsafe fn multiply(
        &self,
        stream: Stream,
        matmul: Matmul,
        descriptions: &Descriptions,
        way: &sys::cublasLtMatmulAlgo_t,
        operands: Operands,
    ) -> Result<(), DeviceError> {
        let (one, beta) = (1.0f32, f32::from(u8::from(matmul.add)));
        let pointer = |at: u64| at as *mut c_void;
        let Operands { left, weight, out, workspace } = operands;
        // SAFETY: descriptions are alive; the rest is the caller's word.
        let launched = unsafe {
            result::matmul(
                self.handle,
                descriptions.operation,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                pointer(weight),
                descriptions.weight,
                pointer(left),
                descriptions.left,
                pointer(out),
                descriptions.out,
                pointer(out),
                descriptions.out,
                way,
                pointer(workspace),
                WORKSPACE_BYTES,
                stream.raw.cast(),
            )
        };
        launched.map_err(|error| failed("launching", matmul, &error))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made here, and nothing uses it any more.
        unsafe {
            let _ = result::destroy_handle(self.handle);
        }
    }
}

/// How one shape could be multiplied.
struct Descriptions {
    operation: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    left: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Descriptions {
    /// The library's matrices have their columns one after the other, ours their rows: it is told of the transposed
    /// product, `out^T = weight @ left^T`.
    fn new(matmul: Matmul, sms: u32) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        use sys::cudaDataType as Type;
        let Matmul { rows, cols, depth, out_bf16, .. } = matmul;
        let [rows, cols, depth] = [rows, cols, depth].map(|n| n as u64);
        let stored = if out_bf16 { Type::CUDA_R_16BF } else { Type::CUDA_R_32F };
        let layout = |kind, rows: u64, cols: u64| {
            result::create_matrix_layout(kind, rows, cols, i64::try_from(rows).unwrap_or(i64::MAX))
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let operation = result::create_matmul_desc(compute, Type::CUDA_R_32F)?;
        let set = |attribute, value: i32| {
            let at = (&raw const value).cast();
            // SAFETY: both attributes are 32 bits wide.
            unsafe { result::set_matmul_desc_attribute(operation, attribute, at, size_of::<i32>()) }
        };
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED)?;
        set(Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, i32::try_from(sms).unwrap_or(0))?;
        Ok(Self {
            operation,
            weight: layout(Type::CUDA_R_16BF, depth, cols)?,
            left: layout(Type::CUDA_R_16BF, depth, rows)?,
            out: layout(stored, cols, rows)?,
        })
    }

    /// The ways the library thinks quickest, best first; at least one.
    fn ways(
        &self,
        handle: sys::cublasLtHandle_t,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, result::CublasError> {
        let Self { operation, weight, left, out } = *self;
        let preference = result::create_matmul_pref()?;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: zeros are such results: empty ones, of success.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; WAYS] =
            unsafe { MaybeUninit::zeroed().assume_init() };
        let mut count = 0;
        let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: that attribute is a size; all descriptions were made above; there is room for so many results.
        let asked = unsafe {
            let set = (&raw const bytes).cast();
            result::set_matmul_pref_attribute(preference, most, set, size_of::<usize>()).and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    operation,
                    weight,
                    left,
                    out,
                    out,
                    preference,
                    WAYS as i32,
                    found.as_mut_ptr(),
                    &raw mut count,
                )
                .result()
            })
        };
        // SAFETY: made above, and used no more.
        let _ = unsafe { result::destroy_matmul_pref(preference) };
        asked?;
        let good = |it: &&sys::cublasLtMatmulHeuristicResult_t| it.state.result().is_ok();
        let ways: Vec<_> = found.iter().take(count as usize).filter(good).map(|it| it.algo).collect();
        if ways.is_empty() {
            return Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        }
        Ok(ways)
    }
}

impl Drop for Descriptions {
    fn drop(&mut self) {
        // SAFETY: each was made here and nothing uses it any more.
        unsafe {
            for layout in [self.weight, self.left, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

fn failed(what: &str, matmul: Matmul, error: &result::CublasError) -> DeviceError {
    DeviceError::LaneLost { lane: "cuda", what: format!("cuBLASLt, {what} {matmul:?}: {error}") }
}
