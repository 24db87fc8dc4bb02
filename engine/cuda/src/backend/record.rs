//! Graphs: which memory an executable's launches name, and their recording.

use device::{DeviceError, ExecutableId};

use contract::Partition;

use super::{ARENA_REMEDY, Arena, CudaBackend, ENCODERS, arena_index, home, lane_index};
use crate::blas::WORKSPACE_BYTES;
use crate::executable::Executable;
use crate::launcher::launch_step;
use crate::lower::{Matmul, Place, Precision};
use crate::store::Store;

impl CudaBackend {
    /// Records every graph that is missing, and gives back what weights no longer need in f32.
    ///
    /// # Errors
    /// A lost device or no memory.
    pub fn record(&mut self) -> Result<usize, DeviceError> {
        let mut count = 0;
        for index in 0..self.executables.len() {
            let variants = self.executables[index].as_ref().map_or(0, |executable| executable.variants.len());
            for variant in 0..variants {
                count += usize::from(self.capture(index, variant)?);
            }
        }
        if let Some(library) = &mut self.kernels.library {
            library.keep();
        }
        if self.precision == Precision::Bf16 {
            self.store.release_plain(&mut self.driver);
        }
        Ok(count)
    }

    /// Runs the launches of the variant for `rows` and `tokens` one by one: each kernel's name, grid and microseconds. For finding
    /// where a stage's time goes; gaps between launches, which a graph closes, are not counted.
    /// Reads the inputs of the last launch of this very variant: without one, rows lie anywhere.
    ///
    /// # Errors
    /// A lost device, or an executable that was never built.
    pub fn time_steps(
        &mut self,
        executable: ExecutableId,
        rows: usize,
        tokens: usize,
    ) -> Result<Vec<(String, f64)>, DeviceError> {
        const ROUNDS: usize = 5;
        let events = self.driver.events()?;
        let arenas = self.arenas;
        let Some(executable) = self.executables.get(executable.0 as usize).and_then(Option::as_ref) else {
            return Ok(Vec::new());
        };
        let Some(form) = executable.exchange.form_for(rows, tokens) else {
            return Ok(Vec::new());
        };
        let variant = &executable.variants[form];
        let streams = &self.streams[lane_index(home(executable.exchange.key))];
        let stream =
            if executable.exchange.key.partition == Partition::Whole { streams.whole } else { streams.own };
        let mut resolve =
            resolver(executable, form, &self.store, arenas[arena_index(executable.exchange.key)]);
        let mut list = Vec::new();
        for step in &variant.lowered.steps {
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                self.driver.mark(events.before, stream)?;
                launch_step(&self.driver, &mut self.kernels, stream, step, &mut resolve)?;
                self.driver.mark(events.after, stream)?;
                while !self.driver.has_come(events.after)? {}
                times.push(f64::from(self.driver.between(events)?));
            }
            times.sort_by(f64::total_cmp);
            let size = match step.library {
                Some(Matmul { rows, cols, depth, .. }) => format!("{rows} by {cols} of {depth}"),
                None => format!("{:?}", step.grid),
            };
            list.push((format!("{} {size}", step.kernel), times[ROUNDS / 2]));
        }
        Ok(list)
    }

    /// Records one variant unless it is recorded; says whether it was.
    pub(super) fn capture(&mut self, index: usize, variant: usize) -> Result<bool, DeviceError> {
        let Some(executable) = self.executables.get_mut(index).and_then(Option::as_mut) else {
            return Ok(false);
        };
        if executable.variants[variant].graph.is_some() {
            return Ok(false);
        }
        // An arena that could not be made larger has no room: then this says so, and nothing is recorded.
        let (place, lowered) = (arena_index(executable.exchange.key), &executable.variants[variant].lowered);
        let (bytes, counters) = (lowered.bytes, lowered.counters);
        self.reserve(place, bytes, counters)?;
        let Some(executable) = self.executables.get_mut(index).and_then(Option::as_mut) else {
            return Ok(false);
        };
        let streams = &self.streams[lane_index(home(executable.exchange.key))];
        let stream =
            if executable.exchange.key.partition == Partition::Whole { streams.whole } else { streams.own };
        let arena = self.arenas[arena_index(executable.exchange.key)];
        let graph = {
            let lowered = &executable.variants[variant].lowered;
            let mut resolve = resolver(executable, variant, &self.store, arena);
            // Kernels are looked up before the recording begins: loading one is not allowed inside it.
            for step in &lowered.steps {
                match step.library {
                    // Nor may the library choose and load there: it does both at the first use of a shape.
                    Some(_) => launch_step(&self.driver, &mut self.kernels, stream, step, &mut resolve)?,
                    None => drop(self.kernels.get(&self.driver, &step.kernel)?),
                }
            }
            let (driver, kernels, poison) = (&self.driver, &mut self.kernels, self.poison);
            driver.capture(stream, || {
                if poison {
                    let words = lowered.bytes / 4;
                    let step = crate::lower::poison_step(arena.at, words);
                    launch_step(driver, kernels, stream, &step, &mut |_| 0)?;
                }
                lowered
                    .steps
                    .iter()
                    .try_for_each(|step| launch_step(driver, kernels, stream, step, &mut resolve))
            })?
        };
        executable.variants[variant].graph = Some(graph);
        Ok(true)
    }

    /// Room for `bytes` and `counters` in an arena; one that moves takes its graphs' addresses with it.
    pub(super) fn reserve(&mut self, index: usize, bytes: usize, counters: usize) -> Result<(), DeviceError> {
        if self.arenas[index].workspace_at == 0 && index != ENCODERS && self.multiplies_by_library() {
            self.arenas[index].workspace_at =
                self.driver.take(WORKSPACE_BYTES, "the library's memory", ARENA_REMEDY)?;
        }
        let arena = self.arenas[index];
        if bytes <= arena.bytes && counters <= arena.counters {
            return Ok(());
        }
        self.driver.synchronize()?;
        let (bytes, counters) = (bytes.max(arena.bytes), counters.max(arena.counters));
        // Whatever fails below, nothing may name what is given back here.
        self.arenas[index] = Arena { workspace_at: arena.workspace_at, ..Arena::default() };
        for executable in
            self.executables.iter_mut().flatten().filter(|e| arena_index(e.exchange.key) == index)
        {
            for variant in &mut executable.variants {
                if let Some(graph) = variant.graph.take() {
                    self.driver.discard(graph);
                }
            }
        }
        if arena.bytes > 0 {
            self.driver.give(arena.at);
            self.driver.give(arena.counters_at);
        }
        let at = self.driver.take(bytes, "working memory", ARENA_REMEDY)?;
        let counters_at = match self.driver.take(4 * counters, "counters", ARENA_REMEDY) {
            Ok(counters_at) => counters_at,
            Err(error) => {
                self.driver.give(at);
                return Err(error);
            }
        };
        self.arenas[index] = Arena { at, bytes, counters_at, counters, workspace_at: arena.workspace_at };
        Ok(())
    }
}

/// Addresses of what the launches of a form name.
fn resolver<'a>(
    executable: &'a Executable,
    form: usize,
    store: &'a Store,
    arena: Arena,
) -> impl FnMut(&Place) -> u64 + 'a {
    let Executable { exchange, variants, inputs_at, .. } = executable;
    let (offsets, lowered) = (&exchange.forms[form].offsets, &variants[form].lowered);
    move |place| match place {
        Place::Null => 0,
        Place::Value(id) => match exchange.program.inputs.iter().position(|input| input == id) {
            Some(input) => inputs_at + 4 * offsets[input] as u64,
            None => arena.at + lowered.values[id.0 as usize].unwrap_or(0) as u64,
        },
        Place::Temp(temp) => arena.at + lowered.temps[*temp] as u64,
        Place::Weight(derived) => store.weight_at(derived),
        Place::State(state) => store.state_at(*state),
        Place::Pages(pages) => store.pages_at(*pages),
        Place::Counters => arena.counters_at,
        Place::Workspace => arena.workspace_at,
    }
}
