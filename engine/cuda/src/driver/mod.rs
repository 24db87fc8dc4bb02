//! The CUDA driver behind a few checked calls: one device, its partitions, memory and graphs.
//!
//! cudarc loads the driver at run time and panics on a missing library or symbol, so [`Driver::open`] looks
//! first. Nothing here is shared between threads: the engine thread owns it all.

mod open;
mod streams;

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;

use contract::Partition;
use cudarc::driver::sys;
use device::DeviceError;

/// The oldest compute capability whose kernels may start early (Hopper).
const EARLY_SINCE: i32 = 9;

/// One device, its context and its partitions. Released when dropped.
pub(crate) struct Driver {
    device: sys::CUdevice,
    primary: sys::CUcontext,
    pub(crate) name: String,
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    pub(crate) sms: u32,
    /// Of the second level.
    pub(crate) cache_bytes: usize,
    lm: Option<Green>,
    background: Option<Green>,
    /// Why the lanes share all SMs, if they do.
    pub(crate) unsplit: String,
    elapsed: Elapsed,
    /// Everything taken, to be given back.
    taken: Vec<Taken>,
    pinned: Vec<*mut c_void>,
    streams: Vec<sys::CUstream>,
}

/// Memory of the device that is ours.
struct Taken {
    at: u64,
    bytes: usize,
}

/// Milliseconds from one event to another.
type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

struct Green {
    handle: sys::CUgreenCtx,
    context: sys::CUcontext,
    sms: u32,
}

/// A stream and the context it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) raw: sys::CUstream,
    context: sys::CUcontext,
}

/// An executable graph.
pub(crate) struct Graph(sys::CUgraphExec);

/// A pair of events around a launch.
#[derive(Clone, Copy)]
pub(crate) struct Events {
    pub(crate) before: sys::CUevent,
    pub(crate) after: sys::CUevent,
}

/// Blocks of a launch, threads and bytes of shared memory of a block, and blocks along z that share a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) shared: u32,
    pub(crate) cluster: u32,
}

/// Page-locked host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) at: *mut u32,
    pub(crate) words: usize,
}

/// What a call was for, with what the driver said.
pub(crate) fn check(result: sys::CUresult, what: &str) -> Result<(), DeviceError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(lost(&format!("{what}: {}", describe(result))))
}

fn lost(what: &str) -> DeviceError {
    DeviceError::LaneLost { lane: "cuda", what: what.to_owned() }
}

fn describe(result: sys::CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver gives a static string, or leaves the pointer alone.
    unsafe {
        if sys::cuGetErrorString(result, &raw mut text) == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
            return CStr::from_ptr(text).to_string_lossy().into_owned();
        }
    }
    format!("{result:?}")
}

/// Whether the driver's library can be loaded here.
pub(crate) fn is_present() -> bool {
    // SAFETY: looks for a library and calls nothing in it.
    unsafe { sys::is_culib_present() }
}

impl Driver {
    /// Whether the lanes have SMs of their own.
    pub(crate) const fn is_split(&self) -> bool {
        self.lm.is_some()
    }

    pub(crate) fn partition_sms(&self, partition: Partition) -> u32 {
        match partition {
            Partition::Lm => self.lm.as_ref().map_or(self.sms, |green| green.sms),
            Partition::Background => self.background.as_ref().map_or(self.sms, |green| green.sms),
            Partition::Whole => self.sms,
        }
    }

    /// SMs of a partition, numbered with the background's first: the driver tells how many, not which.
    pub(crate) fn partition_range(&self, partition: Partition) -> std::ops::Range<u32> {
        let background = self.background.as_ref().map_or(0, |green| green.sms);
        match partition {
            Partition::Background if background > 0 => 0..background,
            Partition::Lm => background..background + self.partition_sms(partition),
            Partition::Background | Partition::Whole => 0..self.sms,
        }
    }

    fn enter(&self, context: sys::CUcontext) -> Result<(), DeviceError> {
        // SAFETY: a live context of this device.
        check(unsafe { sys::cuCtxSetCurrent(context) }, "entering a context")
    }

    /// Device memory, zeroed, never given back before the backend is.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with what was free and what helps.
    pub(crate) fn take(
        &mut self,
        bytes: usize,
        what: &str,
        remedy: &'static str,
    ) -> Result<u64, DeviceError> {
        let mut at = 0;
        let bytes = bytes.max(16);
        // SAFETY: a pointer to a local; the memory is only used through this address.
        unsafe {
            if sys::cuMemAlloc_v2(&raw mut at, bytes) != sys::CUresult::CUDA_SUCCESS {
                let (mut free, mut total) = (0, 0);
                let _ = sys::cuMemGetInfo_v2(&raw mut free, &raw mut total);
                let held: usize = self.taken.iter().map(|taken| taken.bytes).sum();
                let elsewhere = total.saturating_sub(free + held);
                return Err(DeviceError::OutOfMemory {
                    what: format!(
                        "{what} on {} ({free} of {total} bytes are free; {held} were taken here, {elsewhere} are held \
                         elsewhere)",
                        self.name
                    ),
                    asked: bytes as u64,
                    remedy,
                });
            }
            check(sys::cuMemsetD8_v2(at, 0, bytes), "clearing memory")?;
        }
        self.taken.push(Taken { at, bytes });
        Ok(at)
    }

    /// Gives back memory nothing on the device uses any more.
    pub(crate) fn give(&mut self, at: u64) {
        if let Some(index) = self.taken.iter().position(|taken| taken.at == at) {
            self.taken.swap_remove(index);
            // SAFETY: taken above and not yet given back.
            unsafe { sys::cuMemFree_v2(at) };
        }
    }

    pub(crate) fn pinned(&mut self, words: usize) -> Result<Pinned, DeviceError> {
        let mut at = std::ptr::null_mut();
        // SAFETY: a pointer to a local.
        check(unsafe { sys::cuMemHostAlloc(&raw mut at, 4 * words.max(4), 0) }, "page-locked memory")?;
        self.pinned.push(at);
        // SAFETY: as many bytes as were taken.
        unsafe { at.cast::<u8>().write_bytes(0, 4 * words.max(4)) };
        Ok(Pinned { at: at.cast(), words })
    }

    pub(crate) fn give_pinned(&mut self, pinned: Pinned) {
        if let Some(index) = self.pinned.iter().position(|&taken| taken == pinned.at.cast()) {
            self.pinned.swap_remove(index);
            // SAFETY: taken above; no launch in flight uses it.
            unsafe { sys::cuMemFreeHost(pinned.at.cast()) };
        }
    }

    /// Copies to the device and waits.
    pub(crate) fn write<T: Copy>(&self, to: u64, from: &[T]) -> Result<(), DeviceError> {
        // SAFETY: the caller's address has room for `from`; plain words.
        check(unsafe { sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), size_of_val(from)) }, "copying in")
    }

    /// Copies from the device and waits.
    pub(crate) fn read<T: Copy>(&self, from: u64, to: &mut [T]) -> Result<(), DeviceError> {
        // SAFETY: the caller's address holds as many plain words.
        check(unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, size_of_val(to)) }, "copying out")
    }

    pub(crate) fn copy_in(
        &self,
        stream: Stream,
        to: u64,
        from: Pinned,
        words: usize,
    ) -> Result<(), DeviceError> {
        debug_assert!(words <= from.words);
        // SAFETY: pinned memory of at least `words`, left alone until the launch has ended.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.at.cast(), 4 * words, stream.raw) }, "copying in")
    }

    pub(crate) fn copy_out(
        &self,
        stream: Stream,
        to: Pinned,
        offset: usize,
        from: u64,
        words: usize,
    ) -> Result<(), DeviceError> {
        debug_assert!(offset + words <= to.words);
        // SAFETY: pinned memory with room, read only once the launch has ended.
        check(
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.at.add(offset).cast(), from, 4 * words, stream.raw) },
            "copying out",
        )
    }

    /// Waits for everything on the device.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.enter(self.primary)?;
        // SAFETY: a plain call.
        check(unsafe { sys::cuCtxSynchronize() }, "waiting for the device")
    }

    /// Records what `body` launches on `stream` as a graph.
    pub(crate) fn capture(
        &self,
        stream: Stream,
        body: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Graph, DeviceError> {
        self.enter(stream.context)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is this driver's; capture is ended below whatever `body` says.
        unsafe {
            check(sys::cuStreamBeginCapture_v2(stream.raw, mode), "starting a graph")?;
            let recorded = body();
            let mut graph = std::ptr::null_mut();
            let ended = check(sys::cuStreamEndCapture(stream.raw, &raw mut graph), "ending a graph");
            recorded?;
            ended?;
            let mut exec = std::ptr::null_mut();
            let made = check(sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0), "building a graph");
            sys::cuGraphDestroy(graph);
            made?;
            let uploaded = check(sys::cuGraphUpload(exec, stream.raw), "placing a graph");
            self.enter(self.primary)?;
            uploaded?;
            Ok(Graph(exec))
        }
    }

    pub(crate) fn run(&self, graph: &Graph, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: a live graph and stream of this driver.
        check(unsafe { sys::cuGraphLaunch(graph.0, stream.raw) }, "launching a graph")
    }

    pub(crate) fn events(&self) -> Result<Events, DeviceError> {
        let (mut before, mut after) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: pointers to locals.
        unsafe {
            check(sys::cuEventCreate(&raw mut before, 0), "an event")?;
            check(sys::cuEventCreate(&raw mut after, 0), "an event")?;
        }
        Ok(Events { before, after })
    }

    pub(crate) fn discard_events(&self, events: Events) {
        for event in [events.before, events.after] {
            // SAFETY: made by `events`; nothing waits for it any more.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
    }

    pub(crate) fn mark(&self, event: sys::CUevent, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: a live event and stream.
        check(unsafe { sys::cuEventRecord(event, stream.raw) }, "recording an event")
    }

    /// Later work on `stream` waits for `event`.
    pub(crate) fn wait(&self, stream: Stream, event: sys::CUevent) -> Result<(), DeviceError> {
        // SAFETY: a live event and stream.
        check(unsafe { sys::cuStreamWaitEvent(stream.raw, event, 0) }, "waiting for an event")
    }

    /// Whether an event has come; an error when the device is lost.
    pub(crate) fn has_come(&self, event: sys::CUevent) -> Result<bool, DeviceError> {
        // SAFETY: a live event.
        match unsafe { sys::cuEventQuery(event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, "the device was lost").map(|()| true),
        }
    }

    /// Whether a stream has nothing left to do; an error when the device is lost.
    pub(crate) fn is_idle(&self, stream: Stream) -> Result<bool, DeviceError> {
        // SAFETY: a live stream.
        match unsafe { sys::cuStreamQuery(stream.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, "the device was lost").map(|()| true),
        }
    }

    /// Microseconds between two events that have come.
    pub(crate) fn between(&self, events: Events) -> Result<f32, DeviceError> {
        let mut millis = 0.0;
        // SAFETY: both have come.
        let result = unsafe { (self.elapsed)(&raw mut millis, events.before, events.after) };
        check(result, "reading a time")?;
        Ok(millis * 1000.0)
    }

    /// Calls `callback(data)` on a driver's thread once everything before it on `stream` has ended.
    ///
    /// # Safety
    /// `data` must outlive the call, and the callback must not use CUDA.
    pub(crate) unsafe fn then(
        &self,
        stream: Stream,
        callback: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's word.
        check(unsafe { sys::cuLaunchHostFunc(stream.raw, Some(callback), data) }, "asking for a call")
    }

    pub(crate) fn load(&self, image: &[u8]) -> Result<sys::CUlibrary, DeviceError> {
        let mut library = std::ptr::null_mut();
        use std::ptr::null_mut;
        // SAFETY: `image` is a whole cubin.
        let loaded = unsafe {
            let image = image.as_ptr().cast();
            sys::cuLibraryLoadData(
                &raw mut library,
                image,
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0,
            )
        };
        check(loaded, "loading kernels")?;
        Ok(library)
    }

    /// A kernel of a library, allowed `shared` bytes of dynamic shared memory.
    pub(crate) fn kernel(
        &self,
        library: sys::CUlibrary,
        name: &str,
        shared: u32,
    ) -> Result<sys::CUkernel, DeviceError> {
        let text = CString::new(name).map_err(|_| lost("a kernel's name holds a zero"))?;
        let mut kernel = std::ptr::null_mut();
        // SAFETY: a live library.
        unsafe {
            check(sys::cuLibraryGetKernel(&raw mut kernel, library, text.as_ptr()), name)?;
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared).unwrap_or(i32::MAX);
            check(sys::cuKernelSetAttribute(attribute, bytes, kernel, self.device), name)?;
        }
        Ok(kernel)
    }

    /// Launches a kernel; `arguments` point to values laid out as the kernel declares them. On a card that can, it
    /// may start before the work ahead of it has ended: every kernel waits for that itself.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, and name memory it may touch.
    pub(crate) unsafe fn launch(
        &self,
        stream: Stream,
        kernel: sys::CUkernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let Geometry { grid: [x, y, z], block, shared, cluster } = geometry;
        // SAFETY: attributes are written whole before they are used; else the caller's word. A kernel handle may
        // stand for a function.
        let launched = unsafe {
            let mut attributes: [sys::CUlaunchAttribute; 2] = MaybeUninit::zeroed().assume_init();
            let mut count = 0;
            if self.capability.0 >= EARLY_SINCE {
                let early = &mut attributes[count];
                early.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                early.value.programmaticStreamSerializationAllowed = 1;
                count += 1;
            }
            if cluster > 1 {
                let together = &mut attributes[count];
                together.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
                together.value.clusterDim.x = 1;
                together.value.clusterDim.y = 1;
                together.value.clusterDim.z = cluster;
                count += 1;
            }
            let mut config: sys::CUlaunchConfig = MaybeUninit::zeroed().assume_init();
            (config.gridDimX, config.gridDimY, config.gridDimZ) = (x, y, z);
            (config.blockDimX, config.blockDimY, config.blockDimZ) = (block, 1, 1);
            config.sharedMemBytes = shared;
            config.hStream = stream.raw;
            config.attrs = attributes.as_mut_ptr();
            config.numAttrs = count as u32;
            sys::cuLaunchKernelEx(
                &raw const config,
                kernel.cast(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(launched, "launching a kernel")
    }

    pub(crate) fn discard(&self, graph: Graph) {
        // SAFETY: nothing launches it any more.
        unsafe { sys::cuGraphExecDestroy(graph.0) };
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: all of it was taken by this driver and nothing outlives it; on a lost device the calls fail
        // and nothing is left to do about it.
        unsafe {
            sys::cuCtxSetCurrent(self.primary);
            sys::cuCtxSynchronize();
            for &stream in &self.streams {
                sys::cuStreamDestroy_v2(stream);
            }
            for &Taken { at, .. } in &self.taken {
                sys::cuMemFree_v2(at);
            }
            for &at in &self.pinned {
                sys::cuMemFreeHost(at);
            }
            for green in self.lm.iter().chain(&self.background) {
                sys::cuGreenCtxDestroy(green.handle);
            }
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
