//! The generator's clock, and how busy it keeps the machine. The only place of this crate that asks
//! the outside world for either.

use std::time::Duration;

use contract::{Span, Tick};
use tokio::time::Instant;

use crate::report::Host;

/// Monotonic time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    #[must_use]
    pub fn now(self) -> Tick {
        Tick::after_start(self.origin.elapsed())
    }

    /// The instant of a tick; one long gone is the start.
    #[must_use]
    pub fn instant(self, tick: Tick) -> Instant {
        let since = tick.since(Tick::START).as_micros();
        self.origin + Duration::from_micros(u64::try_from(since).unwrap_or(0).min(1 << 50))
    }
}

/// Ticks of the kernel's own accounting in a second; fixed at 100 for what /proc tells.
const USER_HZ: i64 = 100;

/// Processor time this process has used, where the system tells.
#[must_use]
pub fn processor_time() -> Option<Span> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name may hold spaces; fields are counted from behind its closing bracket.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: i64 = fields.next()?.parse().ok()?;
    let system: i64 = fields.next()?.parse().ok()?;
    Some(Span::from_micros((user + system) * (1_000_000 / USER_HZ)))
}

/// Processor time that all processes together have used, where the system tells.
#[must_use]
pub fn machine_time() -> Option<Span> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Option<Vec<i64>> = fields.map(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen] = ticks?[..] else {
        return None;
    };
    let busy = user + nice + system + interrupts + soft_interrupts + stolen;
    Some(Span::from_micros(busy * (1_000_000 / USER_HZ)))
}

/// The machine this runs on.
#[must_use]
pub fn host() -> Host {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find(|line| line.starts_with("model name"));
    let cpu = name.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name.trim());
    Host { cores: cores as u32, cpu: cpu.to_owned() }
}
