//! Opening a device, and splitting its SMs.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use device::DeviceError;

use super::{Driver, Green, check, is_present};

/// The oldest driver with every call made here.
const DRIVER_MIN: i32 = 12_080;

fn setting(what: String) -> DeviceError {
    DeviceError::BadSetting { setting: "device", what }
}

impl Driver {
    /// Opens device `ordinal` and splits its SMs: `background_sms` for the background lane (0 for no split).
    pub(crate) fn open(ordinal: u32, background_sms: u32) -> Result<Self, DeviceError> {
        if !is_present() {
            return Err(setting(
                "no NVIDIA driver (libcuda) was found; install one, or choose cpu".to_owned(),
            ));
        }
        // SAFETY: plain calls with pointers to locals, each checked.
        unsafe {
            check(sys::cuInit(0), "starting the driver").map_err(|e| setting(e.to_string()))?;
            let mut version = 0;
            check(sys::cuDriverGetVersion(&raw mut version), "the driver's version")?;
            if version < DRIVER_MIN {
                return Err(setting(format!(
                    "the driver supports CUDA {}.{}, but 12.8 is the oldest that can be used; update it",
                    version / 1000,
                    version % 1000 / 10
                )));
            }
            let mut count = 0;
            check(sys::cuDeviceGetCount(&raw mut count), "counting devices")?;
            let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
            if index >= count {
                return Err(setting(format!("cuda:{ordinal} does not exist; {count} devices were found")));
            }
            let mut device = 0;
            check(sys::cuDeviceGet(&raw mut device, index), "the device")?;
            let mut name = [0i8; 128];
            check(sys::cuDeviceGetName(name.as_mut_ptr(), 128, device), "the device's name")?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let attribute = |attribute| {
                let mut value = 0;
                check(sys::cuDeviceGetAttribute(&raw mut value, attribute, device), "an attribute")?;
                Ok::<_, DeviceError>(value)
            };
            use sys::CUdevice_attribute as Attribute;
            let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            if major < 8 {
                return Err(setting(format!("{name} is sm_{major}{minor}; the kernels need sm_80 or newer")));
            }
            let sms = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
            let mut primary = std::ptr::null_mut();
            check(sys::cuDevicePrimaryCtxRetain(&raw mut primary, device), "the device's context")?;
            let mut driver = Self {
                device,
                primary,
                name,
                capability: (major, minor),
                sms: u32::try_from(sms).unwrap_or(0),
                lm: None,
                background: None,
                taken: Vec::new(),
                pinned: Vec::new(),
                streams: Vec::new(),
            };
            driver.enter(primary)?;
            if background_sms > 0 {
                let (background, lm) = driver.split(background_sms)?;
                driver.background = Some(background);
                driver.lm = Some(lm);
            }
            Ok(driver)
        }
    }

    /// Green contexts over `count` SMs (rounded up to the device's step) and over the rest.
    unsafe fn split(&self, count: u32) -> Result<(Green, Green), DeviceError> {
        use sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        // SAFETY: plain calls with pointers to locals, each checked.
        unsafe {
            let mut all = MaybeUninit::<sys::CUdevResource>::zeroed();
            check(
                sys::cuDeviceGetDevResource(self.device, all.as_mut_ptr(), CU_DEV_RESOURCE_TYPE_SM),
                "the device's SMs",
            )?;
            let mut part = MaybeUninit::<sys::CUdevResource>::zeroed();
            let mut rest = MaybeUninit::<sys::CUdevResource>::zeroed();
            let mut groups = 1;
            let split = sys::cuDevSmResourceSplitByCount(
                part.as_mut_ptr(),
                &raw mut groups,
                all.as_ptr(),
                rest.as_mut_ptr(),
                0,
                count,
            );
            check(split, "splitting SMs").map_err(|error| DeviceError::BadSetting {
                setting: "background_sms",
                what: format!("{count} of {} SMs cannot be split off: {error}", self.sms),
            })?;
            Ok((self.green(part.as_mut_ptr())?, self.green(rest.as_mut_ptr())?))
        }
    }

    unsafe fn green(&self, resource: *mut sys::CUdevResource) -> Result<Green, DeviceError> {
        // SAFETY: `resource` is one SM resource of this device.
        unsafe {
            let sms = (*resource).__bindgen_anon_1.sm.smCount;
            let mut description = std::ptr::null_mut();
            check(
                sys::cuDevResourceGenerateDesc(&raw mut description, resource, 1),
                "describing a partition",
            )?;
            let mut handle = std::ptr::null_mut();
            let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
            check(sys::cuGreenCtxCreate(&raw mut handle, description, self.device, flags), "a partition")?;
            let mut context = std::ptr::null_mut();
            check(sys::cuCtxFromGreenCtx(&raw mut context, handle), "a partition's context")?;
            Ok(Green { handle, context, sms })
        }
    }
}
