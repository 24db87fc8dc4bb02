//! The threads of a lane: one leads, the others help where a partition has more than one core.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use contract::{Lane, Stage, Tick};
use device::{Completed, DeviceError, HostTensor, Launch, Piece};

use crate::executable::Executable;
use crate::memory::Arena;
use crate::run::Run;
use crate::team::{Abandoned, Barrier, Member};
use crate::thread;

/// Launches that may wait in one lane. The engine keeps a handful in flight.
const QUEUE_MAX: usize = 64;
/// Turns the leader waits awake for its helpers to leave a launch.
const SPINS: u32 = 2_000;

/// Reads the engine's clock.
pub type Clock = Arc<dyn Fn() -> Tick + Send + Sync>;
/// Told whenever a completion is ready to be polled; must return at once.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// What all lanes share.
pub(crate) struct Common {
    pub(crate) clock: Clock,
    pub(crate) notify: Notify,
    pub(crate) completed: Mutex<VecDeque<Completed>>,
    pub(crate) gate: Gate,
    /// Fill scratch memory with NaN before each launch.
    pub(crate) poison: bool,
}

/// While urgent work is queued or running, other lanes stop between ops.
#[derive(Default)]
pub(crate) struct Gate {
    urgent: AtomicUsize,
    lock: Mutex<()>,
    open: Condvar,
}

impl Gate {
    fn close(&self) {
        self.urgent.fetch_add(1, SeqCst);
    }

    fn open(&self) {
        if self.urgent.fetch_sub(1, SeqCst) == 1 {
            drop(locked(&self.lock));
            self.open.notify_all();
        }
    }

    fn pause(&self) {
        if self.urgent.load(SeqCst) == 0 {
            return;
        }
        let mut guard = locked(&self.lock);
        while self.urgent.load(SeqCst) > 0 {
            guard = self.open.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A launch accepted by a lane.
pub(crate) struct Queued {
    pub(crate) executable: Arc<Executable>,
    pub(crate) launch: Launch,
    pub(crate) members: usize,
}

/// A lane's way in. Dropping it ends the threads after the launch at hand.
pub(crate) struct LaneThreads {
    shared: Arc<Threads>,
    joins: Vec<JoinHandle<()>>,
}

struct Threads {
    lane: Lane,
    cores: Vec<usize>,
    common: Arc<Common>,
    queue: Mutex<Queue>,
    arrived: Condvar,
    board: Mutex<Board>,
    posted: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Queued>,
    closed: bool,
}

/// Where the leader posts a launch for its helpers.
#[derive(Default)]
struct Board {
    number: u64,
    task: Option<Arc<Task>>,
    closed: bool,
}

/// One launch as the team runs it.
struct Task {
    queued: Queued,
    arena: ArenaStart,
    barrier: Barrier,
    /// Helpers still inside.
    helpers: AtomicUsize,
    left: Mutex<()>,
    gone: Condvar,
    failure: Mutex<Option<String>>,
}

#[derive(Clone, Copy)]
struct ArenaStart(*mut f32);

// SAFETY: the team's members write disjoint parts, in turns kept by the barrier.
unsafe impl Send for ArenaStart {}
// SAFETY: as above.
unsafe impl Sync for ArenaStart {}

impl LaneThreads {
    /// Starts one thread for each core.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(
        lane: Lane,
        cores: Vec<usize>,
        nice: i32,
        common: Arc<Common>,
    ) -> Result<Self, DeviceError> {
        let count = cores.len();
        let shared = Arc::new(Threads {
            lane,
            cores,
            common,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            board: Mutex::default(),
            posted: Condvar::new(),
        });
        let mut threads = Self { shared: Arc::clone(&shared), joins: Vec::new() };
        for index in 0..count {
            let shared = Arc::clone(&shared);
            let body = move || {
                thread::set_nice(nice);
                // Without its own core a lane still works, only less evenly.
                let _ = thread::pin(shared.cores[index]);
                if index == 0 { shared.lead() } else { shared.help(index) }
            };
            let join = std::thread::Builder::new()
                .name(format!("{}-{index}", lane.name()))
                .spawn(body)
                .map_err(|error| DeviceError::LaneLost { lane: lane.name(), what: error.to_string() })?;
            threads.joins.push(join);
        }
        Ok(threads)
    }

    /// Queues a launch.
    ///
    /// # Errors
    /// The queue is full.
    pub(crate) fn push(&self, queued: Queued) -> Result<(), DeviceError> {
        let mut queue = locked(&self.shared.queue);
        if queue.waiting.len() >= QUEUE_MAX {
            return Err(DeviceError::LaneLost {
                lane: self.shared.lane.name(),
                what: format!("{QUEUE_MAX} launches are waiting already"),
            });
        }
        if self.shared.lane == Lane::Urgent {
            self.shared.common.gate.close();
        }
        queue.waiting.push_back(queued);
        drop(queue);
        self.shared.arrived.notify_one();
        Ok(())
    }
}

impl Drop for LaneThreads {
    fn drop(&mut self) {
        locked(&self.shared.queue).closed = true;
        locked(&self.shared.board).closed = true;
        self.shared.arrived.notify_all();
        self.shared.posted.notify_all();
        for join in self.joins.drain(..) {
            // A thread that panicked has reported its launch already.
            let _ = join.join();
        }
    }
}

impl Threads {
    fn lead(&self) {
        let mut arena = Arena::default();
        while let Some(queued) = self.next() {
            // Encode runs at any clip length, off the frame path: its memory goes back at once.
            let mut own = Arena::default();
            let encode = queued.executable.key.stage == Stage::Encode;
            let arena = if encode { &mut own } else { &mut arena };
            arena.reserve(queued.executable.plan.words);
            if self.common.poison {
                arena.poison();
            }
            let urgent = self.lane == Lane::Urgent;
            let completed = self.run(queued, arena);
            locked(&self.common.completed).push_back(completed);
            if urgent {
                self.common.gate.open();
            }
            // The engine's bell must not take the lane down with it.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.common.notify)()));
        }
    }

    fn next(&self) -> Option<Queued> {
        let mut queue = locked(&self.queue);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(queued) = queue.waiting.pop_front() {
                return Some(queued);
            }
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self, queued: Queued, arena: &mut Arena) -> Completed {
        let started = (self.common.clock)();
        let members = queued.members;
        let task = Arc::new(Task {
            queued,
            arena: ArenaStart(arena.start()),
            barrier: Barrier::new(members),
            helpers: AtomicUsize::new(members - 1),
            left: Mutex::new(()),
            gone: Condvar::new(),
            failure: Mutex::new(None),
        });
        if members > 1 {
            let mut board = locked(&self.board);
            board.number += 1;
            board.task = Some(Arc::clone(&task));
            drop(board);
            self.posted.notify_all();
        }
        let outputs = task.member(0, &self.common.gate, self.lane);
        task.wait_for_helpers();
        if members > 1 {
            locked(&self.board).task = None;
        }
        let (outputs, pieces) = outputs;
        let result = match locked(&task.failure).take() {
            Some(what) => Err(DeviceError::LaneLost { lane: self.lane.name(), what }),
            None => Ok(outputs),
        };
        Completed {
            launch: task.queued.launch.launch,
            lane: self.lane,
            started,
            finished: (self.common.clock)(),
            cores: self.cores[..members].iter().map(|&core| core as u32).collect(),
            pieces,
            result,
        }
    }

    fn help(&self, index: usize) {
        let mut seen = 0;
        loop {
            let mut board = locked(&self.board);
            while board.number == seen && !board.closed {
                board = self.posted.wait(board).unwrap_or_else(PoisonError::into_inner);
            }
            if board.closed {
                return;
            }
            seen = board.number;
            let task = board.task.clone().filter(|task| index < task.queued.members);
            drop(board);
            if let Some(task) = task {
                task.member(index, &self.common.gate, self.lane);
                task.leave();
            }
        }
    }
}

impl Task {
    /// Runs one member's share; the leader returns the outputs.
    fn member(&self, index: usize, gate: &Gate, lane: Lane) -> (Vec<HostTensor>, Vec<Piece>) {
        let Queued { executable, launch, members } = &self.queued;
        let member = Member { index, count: *members, barrier: &self.barrier };
        let pause = || {
            if lane != Lane::Urgent {
                gate.pause();
            }
        };
        let body = || {
            // SAFETY: the leader reserved the plan's words, and waits for all members before it reuses them.
            let run = unsafe {
                Run::new(executable, &launch.inputs, launch.rows, launch.tokens, self.arena.0, member)
            };
            run.all(pause);
            let outputs = &executable.program.outputs;
            match (index, outputs.first()) {
                (0, Some(&id)) if !launch.wanted.is_empty() => (Vec::new(), run.pieces(id, &launch.wanted)),
                (0, _) => (outputs.iter().map(|&id| run.output(id)).collect(), Vec::new()),
                _ => Default::default(),
            }
        };
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(outputs) => outputs,
            Err(panic) => {
                if !panic.is::<Abandoned>() {
                    locked(&self.failure).get_or_insert_with(|| message(panic.as_ref()));
                    self.barrier.abandon();
                }
                Default::default()
            }
        }
    }

    fn leave(&self) {
        if self.helpers.fetch_sub(1, SeqCst) == 1 {
            drop(locked(&self.left));
            self.gone.notify_all();
        }
    }

    fn wait_for_helpers(&self) {
        for _ in 0..SPINS {
            if self.helpers.load(SeqCst) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = locked(&self.left);
        while self.helpers.load(SeqCst) > 0 {
            guard = self.gone.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half-changed under any of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
