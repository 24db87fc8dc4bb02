//! cuBLASLt: products of many rows in bf16. Loaded at run time where it is installed; nothing needs it.

mod cold;
mod ways;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use cudarc::cublaslt::{result, sys};
use device::DeviceError;

use crate::compile;
use crate::driver::{Driver, Events, Stream};
use crate::lower::Matmul;
use cold::Cold;
use ways::{Way, Ways};

/// What NVIDIA recommends for Hopper (cuBLAS documentation, "Tensor Core Usage").
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// The oldest release that is told of SMs (CUDA 12.0).
const RELEASE_MIN: usize = 120_000;
/// Ways asked for, and times each is run to see how long it takes: the median counts.
const WAYS: usize = 12;
const TRIES: usize = 5;
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
    /// Taken at the first trial.
    cold: Option<Cold>,
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
        // SAFETY: takes nothing.
        let release = unsafe { sys::cublasLtGetVersion() };
        if release < RELEASE_MIN {
            return None;
        }
        let handle = result::create_handle().ok()?;
        // One that knows no way for a product such as ours is as good as none.
        let common = Matmul { rows: 128, cols: 1024, depth: 1024, out_bf16: false, add: true };
        if Descriptions::new(common, driver.sms).and_then(|it| it.ways(handle)).is_err() {
            // SAFETY: made above, and used no more.
            let _ = unsafe { result::destroy_handle(handle) };
            return None;
        }
        let kind = compile::architecture(driver.capability);
        let file = cache.map(|folder| folder.join(format!("ways-cold-{release}-{kind}-{}.txt", driver.sms)));
        let kept = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let ways = Ways::parse(&kept.unwrap_or_default());
        Some(Self { handle, plans: BTreeMap::new(), ways, file, found_new: false, cold: None })
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
        descriptions.takes(self.handle, &way).then_some(())?;
        // SAFETY: the caller's word.
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
        let events = driver.events()?;
        if self.cold.is_none() {
            self.cold = Cold::take(driver);
        }
        // SAFETY: the caller's word.
        let best = unsafe { self.quickest(driver, stream, matmul, sms, operands, events) };
        driver.discard_events(events);
        let none = || {
            failed("choosing", matmul, &result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))
        };
        let (told, plan) = best?.ok_or_else(none)?;
        self.ways.insert(matmul, sms, Way { told, algorithm: plan.way.data });
        self.found_new = true;
        Ok(plan)
    }

    /// Of all ways that work.
    unsafe fn quickest(
        &self,
        driver: &Driver,
        stream: Stream,
        matmul: Matmul,
        sms: u32,
        operands: Operands,
        events: Events,
    ) -> Result<Option<(u32, Plan)>, DeviceError> {
        let mut best: Option<(f32, u32, Plan)> = None;
        // Persistent kernels take as many blocks as they are told there are SMs.
        for told in [sms, 0] {
            let Ok(descriptions) = Descriptions::new(matmul, told) else { continue };
            let Ok(ways) = descriptions.ways(self.handle) else { continue };
            let mut quickest: Option<(f32, sys::cublasLtMatmulAlgo_t)> = None;
            for way in ways {
                // SAFETY: the caller's word.
                let run = || unsafe { self.multiply(stream, matmul, &descriptions, &way, operands) };
                if run().is_err() {
                    continue;
                }
                let mut times = [0.0; TRIES];
                for time in &mut times {
                    self.cold.as_ref().map_or(Ok(()), |cold| cold.chill(stream))?;
                    driver.mark(events.before, stream)?;
                    run()?;
                    driver.mark(events.after, stream)?;
                    while !driver.has_come(events.after)? {}
                    *time = driver.between(events)?;
                }
                times.sort_by(f32::total_cmp);
                let took = times[TRIES / 2];
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
        Ok(best.map(|(_, told, plan)| (told, plan)))
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
        // Whole from the first on, so that what a later one refuses gives back those before it.
        let mut made = Self {
            operation: result::create_matmul_desc(compute, Type::CUDA_R_32F)?,
            weight: std::ptr::null_mut(),
            left: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
        };
        let operation = made.operation;
        let set = |attribute, value: i32| {
            let at = (&raw const value).cast();
            // SAFETY: both attributes are 32 bits wide.
            unsafe { result::set_matmul_desc_attribute(operation, attribute, at, size_of::<i32>()) }
        };
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED)?;
        set(Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, i32::try_from(sms).unwrap_or(0))?;
        made.weight = layout(Type::CUDA_R_16BF, depth, cols)?;
        made.left = layout(Type::CUDA_R_16BF, depth, rows)?;
        made.out = layout(stored, cols, rows)?;
        Ok(made)
    }

    /// Whether the library would multiply so, in the memory it is given.
    fn takes(&self, handle: sys::cublasLtHandle_t, way: &sys::cublasLtMatmulAlgo_t) -> bool {
        let Self { operation, weight, left, out } = *self;
        // SAFETY: zeros are such a result; all descriptions were made above.
        unsafe {
            let mut found: sys::cublasLtMatmulHeuristicResult_t = MaybeUninit::zeroed().assume_init();
            let at = &raw mut found;
            let checked = sys::cublasLtMatmulAlgoCheck(handle, operation, weight, left, out, out, way, at);
            checked.result().is_ok() && found.state.result().is_ok() && found.workspaceSize <= WORKSPACE_BYTES
        }
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
            for layout in [self.weight, self.left, self.out].into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

fn failed(what: &str, matmul: Matmul, error: &result::CublasError) -> DeviceError {
    DeviceError::LaneLost { lane: "cuda", what: format!("cuBLASLt, {what} {matmul:?}: {error}") }
}
