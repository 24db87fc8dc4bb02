//! Opening a device, and splitting its SMs.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use device::DeviceError;

use super::{Driver, Elapsed, Green, check, describe, is_present};

/// The oldest driver with every call made here but those that partition (kernels by library: CUDA 12.0).
const DRIVER_MIN: i32 = 12_000;
/// The oldest driver that makes streams on parts of a device.
const PARTITIONS_MIN: i32 = 12_050;

fn setting(what: String) -> DeviceError {
    DeviceError::BadSetting { setting: "engine.device", what }
}

/// Of the SMs asked for, what leaves a card of fewer SMs an lm lane: two fifths where it is more than half.
const fn background_within(asked: u32, sms: u32) -> u32 {
    // Partitions are of eight SMs.
    if asked * 2 > sms { sms * 2 / 5 / 8 * 8 } else { asked }
}

impl Driver {
    /// Opens device `ordinal` and splits its SMs: `background_sms` for the background lane (0 for no split).
    /// Fewer where the card is small, unless they are to be so many `exactly`.
    pub(crate) fn open(ordinal: u32, background_sms: u32, exactly: bool) -> Result<Self, DeviceError> {
        if !is_present() {
            return Err(setting(
                "no NVIDIA driver (libcuda) was found; install one, or choose cpu".to_owned(),
            ));
        }
        // SAFETY: plain calls with pointers to locals, each checked.
        unsafe {
            let started = sys::cuInit(0);
            if started != sys::CUresult::CUDA_SUCCESS {
                return Err(setting(unstarted(&describe(started))));
            }
            let mut version = 0;
            check(sys::cuDriverGetVersion(&raw mut version), "the driver's version")?;
            if let Some(what) = too_old(version, DRIVER_MIN) {
                return Err(setting(format!("{what} is the oldest that can be used; update it")));
            }
            let mut count = 0;
            check(sys::cuDeviceGetCount(&raw mut count), "counting devices")?;
            let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
            if index >= count {
                return Err(setting(not_there(ordinal, count)));
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
            let cache_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
            let mut primary = std::ptr::null_mut();
            check(sys::cuDevicePrimaryCtxRetain(&raw mut primary, device), "the device's context")?;
            let mut driver = Self {
                device,
                primary,
                name,
                capability: (major, minor),
                sms: u32::try_from(sms).unwrap_or(0),
                cache_bytes: usize::try_from(cache_bytes).unwrap_or(0),
                lm: None,
                background: None,
                unsplit: String::new(),
                elapsed: elapsed()?,
                taken: Vec::new(),
                pinned: Vec::new(),
                streams: Vec::new(),
            };
            driver.enter(primary)?;
            let background_sms =
                if exactly { background_sms } else { background_within(background_sms, driver.sms) };
            if background_sms == 0 {
                "as asked".clone_into(&mut driver.unsplit);
            } else if let Some(what) = too_old(version, PARTITIONS_MIN) {
                driver.unsplit = format!("{what} is the oldest that can");
            } else if let Some((background, lm)) = driver.split(background_sms, asked_in(exactly))? {
                driver.background = Some(background);
                driver.lm = Some(lm);
            } else {
                "this device and driver have no partitions".clone_into(&mut driver.unsplit);
            }
            Ok(driver)
        }
    }

    /// Green contexts over `count` SMs (rounded up to the device's step) and over the rest; `None` where the
    /// device or its driver knows no such thing.
    unsafe fn split(&self, count: u32, setting: &'static str) -> Result<Option<(Green, Green)>, DeviceError> {
        use sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        if count >= self.sms {
            return Err(DeviceError::BadSetting { setting, what: none_left(count, self.sms) });
        }
        // SAFETY: plain calls with pointers to locals, each checked.
        unsafe {
            let mut all = MaybeUninit::<sys::CUdevResource>::zeroed();
            let known = sys::cuDeviceGetDevResource(self.device, all.as_mut_ptr(), CU_DEV_RESOURCE_TYPE_SM);
            if known == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED {
                return Ok(None);
            }
            check(known, "the device's SMs")?;
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
            if split == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED {
                return Ok(None);
            }
            check(split, "splitting SMs").map_err(|error| DeviceError::BadSetting {
                setting,
                what: format!("{count} of {} SMs cannot be split off: {error}", self.sms),
            })?;
            Ok(Some((self.green(part.as_mut_ptr())?, self.green(rest.as_mut_ptr())?)))
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

/// Where so many SMs for the background lane were asked for.
const fn asked_in(exactly: bool) -> &'static str {
    if exactly { "engine.split" } else { "engine.background_sms" }
}

fn none_left(count: u32, sms: u32) -> String {
    format!("{count} SMs for the background lane leave the lm lane none of the card's {sms}; ask for fewer")
}

fn unstarted(why: &str) -> String {
    format!("the NVIDIA driver does not start ({why}); see that nvidia-smi lists a card here, or choose cpu")
}

fn not_there(ordinal: u32, count: i32) -> String {
    let found = match count {
        0 => "no card was found; see that nvidia-smi lists one here, or choose cpu".to_owned(),
        1 => "one card was found: cuda:0".to_owned(),
        _ => format!("{count} cards were found: cuda:0 to cuda:{}", count - 1),
    };
    format!("cuda:{ordinal} does not exist; {found}")
}

/// What to say of a driver (1000 * major + 10 * minor) that is older than `least`.
fn too_old(version: i32, least: i32) -> Option<String> {
    let name = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    (version < least).then(|| format!("the driver supports CUDA {}, but {}", name(version), name(least)))
}

/// The call that times events, by the name that every driver has: the bindings know only the one that came
/// with CUDA 12.8.
fn elapsed() -> Result<Elapsed, DeviceError> {
    // SAFETY: the driver's library is there, and the symbol has this signature since CUDA 2.
    let found = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
    found.map(|symbol| *symbol).map_err(|error| setting(format!("the driver times no events: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_card_keeps_an_lm_lane() {
        let within = |sms| background_within(56, sms);
        assert_eq!([132, 114, 108, 84, 46, 16, 4].map(within), [56, 56, 40, 32, 16, 0, 0]);
        assert_eq!((background_within(0, 132), background_within(32, 132)), (0, 32));
    }

    #[test]
    fn a_driver_that_is_too_old_is_named_with_the_oldest_that_would_do() {
        assert_eq!(too_old(12_080, DRIVER_MIN), None);
        assert_eq!(too_old(12_050, PARTITIONS_MIN), None);
        let old = too_old(11_080, DRIVER_MIN).expect("too old");
        assert_eq!(old, "the driver supports CUDA 11.8, but 12.0");
        assert_eq!(
            too_old(12_040, PARTITIONS_MIN).expect("too old"),
            "the driver supports CUDA 12.4, but 12.5"
        );
    }

    #[test]
    fn a_split_that_leaves_a_lane_nothing_is_refused_by_the_key_that_asked_for_it() {
        assert_eq!([true, false].map(asked_in), ["engine.split", "engine.background_sms"]);
        assert!(none_left(132, 132).ends_with("none of the card's 132; ask for fewer"));
    }

    #[test]
    fn a_card_that_is_not_there_is_told_with_those_that_are_and_what_to_do() {
        assert!(not_there(0, 0).contains("nvidia-smi"));
        assert_eq!(not_there(1, 1), "cuda:1 does not exist; one card was found: cuda:0");
        assert!(not_there(9, 8).ends_with("8 cards were found: cuda:0 to cuda:7"));
        let text = unstarted("no CUDA-capable device is detected");
        assert!(text.contains("(no CUDA") && text.ends_with("or choose cpu"), "{text}");
    }

    #[test]
    fn without_a_driver_it_says_what_to_install_or_choose() {
        // Where there is one, the device number is at fault.
        let Err(error) = Driver::open(u32::MAX, 0, false) else { panic!("opened") };
        let text = error.to_string();
        assert!(text.contains("engine.device"), "{text}");
        assert!(is_present() || text.contains("install one, or choose cpu"), "{text}");
    }
}
