//! A card that computes nothing: [`Backend`] with the host's side of a CUDA launch, inputs laid out and outputs read as
//! for a card, and launches that take as long as on one. For measuring the host.

mod card;

use std::collections::VecDeque;

use contract::{Lane, LaunchId, Partition, ShapeKey};
use device::{
    Backend, Catalog, Completed, DeviceError, Dtype, ExecutableId, HostTensor, Launch, PagedId, PagedSpec,
    Program, StateId, StateSpec, WeightForm, WeightId,
};

use crate::exchange::Exchange;
use crate::{Clock, Notify};
use card::{Card, Ended, Work};

/// Launches one executable may have in flight, as on a card.
const IN_FLIGHT_MAX: usize = 3;

/// Parts of it that a partition has, as launches tell.
const fn cores(partition: Partition) -> std::ops::Range<u32> {
    match partition {
        Partition::Background => 0..1,
        Partition::Lm => 1..3,
        Partition::Whole => 0..3,
    }
}

/// A processor that only passes time.
pub struct IdleBackend {
    catalog: Catalog,
    executables: Vec<Option<Seat>>,
    flights: Vec<Flight>,
    done: VecDeque<Completed>,
    scratch_slot: i32,
    card: Card,
}

/// An executable and the memory of its launches that are not in flight: inputs, outputs.
struct Seat {
    exchange: Exchange,
    idle: Vec<(Vec<u32>, Vec<u32>)>,
}

struct Flight {
    launch: LaunchId,
    lane: Lane,
    executable: usize,
    form: usize,
    rows: usize,
    tokens: usize,
    inputs: Vec<u32>,
}

impl IdleBackend {
    /// Slots of every state as [`crate::CudaOptions::slots`] counts them.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn open(slots: usize, clock: Clock, notify: Notify) -> Result<Self, DeviceError> {
        let unstarted = |error: std::io::Error| DeviceError::BadSetting {
            setting: "engine.without",
            what: error.to_string(),
        };
        Ok(Self {
            catalog: Catalog::default(),
            executables: Vec::new(),
            flights: Vec::new(),
            done: VecDeque::new(),
            scratch_slot: i32::try_from(slots).unwrap_or(i32::MAX),
            card: Card::start(clock, notify).map_err(unstarted)?,
        })
    }

    fn collect(&mut self) {
        for ended in self.card.ended() {
            let Some(index) = self.flights.iter().position(|flight| flight.launch == ended.launch) else {
                continue;
            };
            let flight = self.flights.remove(index);
            let completed = self.land(flight, ended);
            self.done.extend(completed);
        }
    }

    fn land(&mut self, flight: Flight, ended: Ended) -> Option<Completed> {
        let Flight { launch, lane, executable, form, rows, tokens, inputs } = flight;
        let Ended { started, finished, outputs: block, pieces, .. } = ended;
        let seat = self.executables.get_mut(executable)?.as_mut()?;
        let outputs =
            if pieces.is_empty() { seat.exchange.read(form, rows, tokens, &block) } else { Vec::new() };
        seat.idle.push((inputs, block));
        let cores = cores(seat.exchange.key.partition).collect();
        Some(Completed { launch, lane, started, finished, cores, pieces, result: Ok(outputs) })
    }
}

impl Backend for IdleBackend {
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        _: Vec<f32>,
    ) -> Result<WeightId, DeviceError> {
        self.catalog.add_weight(name, form, shape, shape.iter().product())
    }

    fn keeps_values(&self) -> bool {
        false
    }

    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        self.catalog.add_state(spec)
    }

    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        self.catalog.add_paged(spec)
    }

    fn build(&mut self, key: ShapeKey, program: &Program) -> Result<ExecutableId, DeviceError> {
        program.check(&self.catalog)?;
        let exchange = Exchange::new(key, program.clone(), self.scratch_slot);
        let floats = program.outputs.iter().any(|&id| program.value(id).dtype == Dtype::F32);
        let outputs =
            || if floats { card::sound(exchange.output_words) } else { vec![0; exchange.output_words] };
        let idle = (0..IN_FLIGHT_MAX).map(|_| (vec![0; exchange.input_words], outputs())).collect();
        let free = self.executables.iter().position(Option::is_none);
        let index = free.unwrap_or(self.executables.len());
        self.executables.resize_with(self.executables.len().max(index + 1), || None);
        self.executables[index] = Some(Seat { exchange, idle });
        Ok(ExecutableId(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    fn release(&mut self, executable: ExecutableId) {
        if let Some(place) = self.executables.get_mut(executable.0 as usize) {
            *place = None;
        }
    }

    fn launch(&mut self, launch: Launch) -> Result<(), DeviceError> {
        self.collect();
        let index = launch.executable.0 as usize;
        let bad = |input: &str| DeviceError::BadInput { input: input.to_owned(), given: 0, expected: 1 };
        let seat = self.executables.get_mut(index).and_then(Option::as_mut);
        let seat = seat.ok_or_else(|| bad("executable (never built, or released)"))?;
        let form = seat.exchange.admit(&launch)?;
        let memory = seat.idle.pop().ok_or_else(|| bad("memory for one more launch of one executable"))?;
        let (mut inputs, outputs) = memory;
        seat.exchange.fill(form, &launch, &mut inputs);
        let program = &seat.exchange.program;
        let frames = program.outputs.iter().all(|&id| program.value(id).dtype == Dtype::I32);
        let takes = card::takes(seat.exchange.key, seat.exchange.forms[form].shape);
        let values = seat.exchange.first_words(launch.rows, launch.tokens);
        let Launch { launch, lane, rows, tokens, wanted, .. } = launch;
        self.card.run(Work { launch, lane, takes, frames, outputs, values, wanted });
        self.flights.push(Flight { launch, lane, executable: index, form, rows, tokens, inputs });
        Ok(())
    }

    fn poll(&mut self) -> Option<Completed> {
        self.collect();
        self.done.pop_front()
    }

    fn write_state(&mut self, state: StateId, _: u32, row: &HostTensor) -> Result<(), DeviceError> {
        let (dtype, width) = match row {
            HostTensor::F32(values) => (Dtype::F32, values.len()),
            HostTensor::I32(values) => (Dtype::I32, values.len()),
        };
        self.catalog.check_row(state, dtype, width)
    }

    fn read_state(&mut self, state: StateId, _: u32) -> Result<HostTensor, DeviceError> {
        let unknown =
            || DeviceError::BadTensor { name: "state".to_owned(), what: format!("no state {}", state.0) };
        let spec = self.catalog.state(state).ok_or_else(unknown)?;
        Ok(match spec.dtype {
            Dtype::F32 => HostTensor::F32(vec![0.0; spec.width]),
            Dtype::I32 => HostTensor::I32(vec![0; spec.width]),
        })
    }

    fn costs_by_bucket(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "idle (a card that computes nothing)".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use contract::{ModelId, Stage, Tick};
    use device::Op;
    use device::program::{ProgramBuilder, Rows};

    use super::*;

    /// Two rows of eight values, of which four come out.
    fn launched(wanted: Vec<usize>) -> Result<Completed, DeviceError> {
        let mut builder = ProgramBuilder::new("half");
        let source = builder.input("source", Dtype::F32, Rows::PerRow(1), 8);
        let out = builder.value("out", Dtype::F32, Rows::PerRow(1), 4);
        builder.push(Op::Slice { source, first: 0, out });
        builder.output(out);
        let time = AtomicU64::new(0);
        let clock = Arc::new(move || Tick::from_micros(time.fetch_add(1_000, Ordering::Relaxed)));
        let (rung, rings) = std::sync::mpsc::sync_channel(1);
        let notify = Arc::new(move || {
            // Once is enough.
            let _ = rung.try_send(());
        });
        let mut backend = IdleBackend::open(4, clock, notify)?;
        let (model, partition) = (ModelId(0), Partition::Whole);
        let key = ShapeKey { model, stage: Stage::Codec, bucket: 4, length: 2, partition };
        let executable = backend.build(key, &builder.finish())?;
        let inputs = vec![HostTensor::F32(vec![0.5; 16])];
        let (launch, lane) = (LaunchId(1), Lane::Urgent);
        backend.launch(Launch { launch, lane, executable, rows: 2, tokens: 0, inputs, wanted })?;
        rings.recv().expect("it ends");
        Ok(backend.poll().expect("it has ended"))
    }

    #[test]
    fn a_launch_takes_a_cards_time_and_leaves_its_outputs_or_what_was_wanted_of_them() {
        let whole = launched(Vec::new()).expect("fits");
        assert!(whole.finished > whole.started && whole.pieces.is_empty());
        let Ok([HostTensor::F32(sound)]) = whole.result.as_deref() else { panic!("one output") };
        assert_eq!(sound.len(), 2 * 4);
        let parts = launched(vec![3, 0]).expect("fits");
        let lengths: Vec<usize> = parts.pieces.iter().map(|piece| piece.values.len()).collect();
        assert_eq!((lengths, parts.result), (vec![3, 0], Ok(Vec::new())));
        assert_eq!(&parts.pieces[0].values[..], &sound[..3]);
    }

    #[test]
    fn more_than_a_row_holds_cannot_be_wanted() {
        assert!(launched(vec![5, 0]).is_err());
    }
}
