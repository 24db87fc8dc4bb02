//! How much memory this machine, or the group of processes this one is held in, has to spare.

use std::path::Path;

/// Bytes that can be taken without swapping; `None` where the system does not say.
pub(crate) fn spare() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    match (machine, group(Path::new("/sys/fs/cgroup"))) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (machine, group) => machine.or(group),
    }
}

/// `MemAvailable` of proc_meminfo(5).
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// What a control group (v2) leaves: its bound less what is in use and cannot be dropped.
fn group(folder: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let max: u64 = read("memory.max")?.trim().parse().ok()?;
    let current: u64 = read("memory.current")?.trim().parse().ok()?;
    let files = read("memory.stat")?.lines().find_map(|line| line.strip_prefix("file ")?.parse().ok());
    Some(max.saturating_sub(current.saturating_sub(files.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spare_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   17000000 kB\n";
        assert_eq!(available(text), Some(17_000_000 << 10));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        let here = spare().expect("Linux says");
        assert!(here > 1 << 20, "{here}");
    }

    #[test]
    fn a_group_without_a_bound_bounds_nothing_and_cached_files_count_as_free() {
        let folder = std::env::temp_dir().join(format!("voxlane-room-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a file");
        write("memory.current", "3000\n");
        write("memory.stat", "anon 1000\nfile 2000\n");
        write("memory.max", "max\n");
        assert_eq!(group(&folder), None);
        write("memory.max", "10000\n");
        assert_eq!(group(&folder), Some(9_000));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
