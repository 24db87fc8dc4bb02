//! What the standard library does not say about threads: which cores they may run on, and how nice they are.

use std::io;

/// Cores the calling thread may run on, in order.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a zeroed set is empty; the call writes at most its size.
        let (result, set) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), set)
        };
        if result == 0 {
            let cores: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
                // SAFETY: below the set's size.
                .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) })
                .collect();
            if !cores.is_empty() {
                return cores;
            }
        }
    }
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Binds the calling thread to one core.
///
/// # Errors
/// The system's own, for instance a core outside the process's set.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: `core` is below the set's size by the filter in [`allowed_cores`]; the set outlives the call.
        let result = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
    Ok(())
}

/// Lowers the calling thread's priority. On Linux niceness is a thread's own.
pub(crate) fn set_nice(nice: i32) {
    #[cfg(target_os = "linux")]
    if nice > 0 {
        // SAFETY: no memory is passed. Raising niceness needs no privilege; a refusal changes nothing.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}
