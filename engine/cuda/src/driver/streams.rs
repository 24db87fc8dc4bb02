//! Streams and the partitions they run on.

use contract::Partition;
use cudarc::driver::sys;
use device::DeviceError;

use super::{Driver, Stream, check};

impl Driver {
    /// A stream on a partition. With `urgent`, of the highest priority there is.
    pub(crate) fn stream(&mut self, partition: Partition, urgent: bool) -> Result<Stream, DeviceError> {
        // SAFETY: plain calls with pointers to locals, each checked.
        unsafe {
            let (mut least, mut greatest) = (0, 0);
            check(sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest), "priorities")?;
            let priority = if urgent { greatest } else { least };
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let mut raw = std::ptr::null_mut();
            let green = match partition {
                Partition::Lm => self.lm.as_ref(),
                Partition::Background => self.background.as_ref(),
                Partition::Whole => None,
            };
            let context = match green {
                Some(green) => {
                    check(
                        sys::cuGreenCtxStreamCreate(&raw mut raw, green.handle, flags, priority),
                        "a stream",
                    )?;
                    green.context
                }
                None => {
                    check(sys::cuStreamCreateWithPriority(&raw mut raw, flags, priority), "a stream")?;
                    self.primary
                }
            };
            self.streams.push(raw);
            Ok(Stream { raw, context })
        }
    }

    /// Runs `body`, which calls other libraries, in a stream's own context.
    pub(crate) fn within<T>(
        &self,
        stream: Stream,
        body: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut before = std::ptr::null_mut();
        // SAFETY: a pointer to a local.
        check(unsafe { sys::cuCtxGetCurrent(&raw mut before) }, "asking for the context")?;
        self.enter(stream.context)?;
        let done = body();
        self.enter(before)?;
        done
    }

    /// SMs of a stream's partition.
    pub(crate) fn stream_sms(&self, stream: Stream) -> u32 {
        let green = [&self.lm, &self.background].into_iter().flatten();
        green.into_iter().find(|green| green.context == stream.context).map_or(self.sms, |green| green.sms)
    }
}
