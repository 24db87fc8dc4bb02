//! A backend beside a naive interpreter of the same programs, fed the same weights, states and inputs.
//!
//! The ops' meaning is one for all backends, so these tests run on the one that `VOXLANE_TEST_DEVICE` names:
//! `cpu` (the default) or `cuda:N`, there in f32 unless `VOXLANE_TEST_PRECISION` is `bf16`, and with the library's products
//! unless `VOXLANE_TEST_LIBRARY` is `off`.

#![allow(dead_code)]

mod attention;
mod conv;
mod reference;

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use contract::{Lane, LaunchId, ModelId, Partition, ShapeKey, Stage, Tick};
use cpu::{CpuBackend, CpuOptions};
use cuda::{CudaBackend, CudaOptions, Precision};
use device::program::{ProgramBuilder, Rows};
use device::{
    Backend, Completed, DeviceError, Dtype, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, Program,
    StateId, StateSpec, ValueId, WeightForm, WeightId,
};

use reference::Reference;

pub const SLOTS: usize = 6;

/// A generator for test data: splitmix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Values around zero with some spread.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() % 20_001) as f32 / 10_000.0 - 1.0).collect()
    }

    pub fn ids(&mut self, count: usize, bound: usize) -> Vec<i32> {
        (0..count).map(|_| self.below(bound) as i32).collect()
    }
}

/// Seeds differ from run to run, so that inputs are fresh; failures print theirs, and `VOXLANE_TEST_SEED` runs one
/// again.
pub fn fresh() -> Random {
    let given = std::env::var("VOXLANE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| std::hash::RandomState::new().build_hasher().finish());
    println!("seed {seed}");
    Random(seed)
}

#[derive(Default)]
pub struct Bell {
    rung: Mutex<u64>,
    wake: Condvar,
}

pub struct World {
    pub backend: Box<dyn Backend>,
    pub random: Random,
    reference: Reference,
    bell: Arc<Bell>,
    launches: u64,
    /// Part of a result by which bf16 may be off.
    pub bf16_error_max: f64,
}

/// Five products in a row, each of inputs rounded to eight bits, were 3.1% off on one H200.
const BF16_ERROR_MAX: f64 = 4e-2;

/// Opens a backend whose scratch memory is poisoned.
#[allow(clippy::disallowed_methods, reason = "the test is the shell that gives the backend its clock")]
pub fn backend(cores: Option<Vec<usize>>, bell: &Arc<Bell>) -> Box<dyn Backend> {
    let zero = Instant::now();
    let bell = Arc::clone(bell);
    let clock = Arc::new(move || Tick::from_micros(zero.elapsed().as_micros() as u64));
    let notify = Arc::new(move || {
        *bell.rung.lock().unwrap() += 1;
        bell.wake.notify_all();
    });
    if let Some(ordinal) = cuda_device() {
        let mut options = CudaOptions::new(ordinal, SLOTS, clock, notify);
        options.precision = if is_bf16() { Precision::Bf16 } else { Precision::F32 };
        options.poison = true;
        let alone = std::env::var("VOXLANE_TEST_LIBRARY").is_ok_and(|choice| choice == "off");
        options.library_from = options.library_from.filter(|_| !alone);
        options.kernel_cache = std::env::var_os("VOXLANE_TEST_KERNELS").map(Into::into);
        return Box::new(CudaBackend::open(options).unwrap());
    }
    let mut options = CpuOptions::new(SLOTS, clock, notify);
    options.cores = cores;
    options.poison = true;
    Box::new(CpuBackend::open(options).unwrap())
}

/// Whether numbers are kept in bf16, whose eight bits let results differ by some hundredths of their size.
fn is_bf16() -> bool {
    std::env::var("VOXLANE_TEST_PRECISION").is_ok_and(|name| name == "bf16")
}

/// The CUDA device these tests are to run on.
pub fn cuda_device() -> Option<u32> {
    let name = std::env::var("VOXLANE_TEST_DEVICE").ok()?;
    name.strip_prefix("cuda:").map(|ordinal| ordinal.parse().expect("cuda:N"))
}

impl World {
    pub fn new(random: Random) -> Self {
        Self::on(None, random)
    }

    pub fn on(cores: Option<Vec<usize>>, random: Random) -> Self {
        let bell = Arc::new(Bell::default());
        let backend = backend(cores, &bell);
        Self {
            backend,
            random,
            reference: Reference::default(),
            bell,
            launches: 0,
            bf16_error_max: BF16_ERROR_MAX,
        }
    }

    pub fn weight(&mut self, form: WeightForm, shape: &[usize]) -> WeightId {
        let count: usize = shape.iter().product();
        let fan: usize = match form {
            WeightForm::Matrix | WeightForm::Conv => shape[1..].iter().product(),
            WeightForm::ConvTranspose => shape[0],
            _ => 1,
        };
        let scale = 1.5 / (fan as f32).sqrt();
        let data: Vec<f32> = self.random.floats(count).iter().map(|x| x * scale).collect();
        self.weight_of(form, shape, data)
    }

    pub fn weight_of(&mut self, form: WeightForm, shape: &[usize], data: Vec<f32>) -> WeightId {
        self.reference.weights.push((shape.to_vec(), data.iter().map(|&x| f64::from(x)).collect()));
        self.backend.upload("w", form, shape, data).unwrap()
    }

    pub fn state(&mut self, width: usize, dtype: Dtype) -> StateId {
        self.reference.states.push((width, vec![0.0; (SLOTS + 1) * width]));
        self.backend.state(StateSpec { name: "state".to_owned(), width, dtype }).unwrap()
    }

    pub fn paged(&mut self, spec: PagedSpec) -> PagedId {
        self.reference.pages.push(reference::Pool::new(&spec));
        self.backend.paged(spec).unwrap()
    }

    pub fn build(
        &mut self,
        program: &Program,
        bucket: usize,
        length: usize,
        partition: Partition,
    ) -> ExecutableId {
        self.backend.build(key(bucket, length, partition), program).unwrap()
    }

    /// Runs on the backend alone.
    pub fn run(&mut self, launch: Run) -> Result<Vec<HostTensor>, DeviceError> {
        let id = self.launch(launch).unwrap();
        let completed = self.wait();
        assert_eq!(completed.launch, id);
        completed.result
    }

    pub fn launch(&mut self, run: Run) -> Result<LaunchId, DeviceError> {
        self.launches += 1;
        let launch = LaunchId(self.launches);
        self.backend.launch(Launch {
            launch,
            lane: run.lane,
            executable: run.executable,
            rows: run.rows,
            tokens: run.tokens,
            inputs: run.inputs,
            wanted: Vec::new(),
        })?;
        Ok(launch)
    }

    /// Waits for the next completion.
    pub fn wait(&mut self) -> Completed {
        for _ in 0..300 {
            let rung = *self.bell.rung.lock().unwrap();
            if let Some(completed) = self.backend.poll() {
                return completed;
            }
            let guard = self.bell.rung.lock().unwrap();
            if *guard == rung {
                drop(self.bell.wake.wait_timeout(guard, Duration::from_millis(200)).unwrap());
            }
        }
        panic!("no completion within a minute");
    }

    /// Builds `program`, runs it on both, and compares outputs and all states.
    pub fn check(
        &mut self,
        program: &Program,
        rows: usize,
        tokens: usize,
        inputs: Vec<HostTensor>,
        tolerance: f64,
    ) {
        self.check_on(program, rows, tokens, inputs, tolerance, Lane::Urgent, Partition::Whole);
    }

    #[allow(clippy::too_many_arguments)]
    pub fn check_on(
        &mut self,
        program: &Program,
        rows: usize,
        tokens: usize,
        inputs: Vec<HostTensor>,
        tolerance: f64,
        lane: Lane,
        partition: Partition,
    ) {
        let executable = self.build(program, rows + 1, tokens + 3, partition);
        let expected = self.reference.run(program, rows, tokens, &inputs);
        let outputs = self.run(Run { lane, executable, rows, tokens, inputs }).unwrap();
        for ((output, expected), &id) in outputs.iter().zip(&expected).zip(&program.outputs) {
            close(output, expected, tolerance, self.bf16_error_max, &program.value(id).name);
        }
        self.compare_states(tolerance);
        self.backend.release(executable);
    }

    pub fn compare_states(&mut self, tolerance: f64) {
        for (index, (width, expected)) in self.reference.states.clone().into_iter().enumerate() {
            // The last row is scratch: rows past the live ones may write there.
            for slot in 0..SLOTS {
                let row = self.backend.read_state(StateId(index as u32), slot as u32).unwrap();
                close(
                    &row,
                    &expected[slot * width..(slot + 1) * width],
                    tolerance,
                    self.bf16_error_max,
                    &format!("state {index}"),
                );
            }
        }
    }
}

/// A launch without its id.
pub struct Run {
    pub lane: Lane,
    pub executable: ExecutableId,
    pub rows: usize,
    pub tokens: usize,
    pub inputs: Vec<HostTensor>,
}

pub fn key(bucket: usize, length: usize, partition: Partition) -> ShapeKey {
    let (bucket, length) = (bucket as u32, length as u32);
    // As the engine has it: the lm lane's partition runs decode steps.
    let stage = if partition == Partition::Lm { Stage::Decode } else { Stage::Codec };
    ShapeKey { model: ModelId(0), stage, bucket, length, partition }
}

pub fn close(output: &HostTensor, expected: &[f64], tolerance: f64, bf16_error_max: f64, name: &str) {
    let values: Vec<f64> = match output {
        HostTensor::F32(values) => values.iter().map(|&x| f64::from(x)).collect(),
        HostTensor::I32(values) => values.iter().map(|&x| f64::from(x)).collect(),
    };
    assert_eq!(values.len(), expected.len(), "{name}");
    if is_bf16() {
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let error = square(&mut values.iter().zip(expected).map(|(a, b)| a - b));
        // Results are about one. Few of them may cancel by chance, and are measured against that.
        const FEW: usize = 16;
        let usual = if expected.len() < FEW { 0.3 * (expected.len() as f64).sqrt() } else { 1e-3 };
        let scale = square(&mut expected.iter().copied()).max(usual);
        assert!(error / scale < bf16_error_max, "{name}: relative error {}", error / scale);
        return;
    }
    let far = |&(_, (&got, &want)): &(usize, (&f64, &f64))| {
        let error = (got - want).abs();
        error.is_nan() || error > tolerance * want.abs().max(1.0)
    };
    let wrong: Vec<_> = values.iter().zip(expected).enumerate().filter(far).collect();
    let first: Vec<_> = wrong.iter().take(12).collect();
    assert!(
        wrong.is_empty(),
        "{name}: {} of {} differ, (place, (found, expected)): {first:?}",
        wrong.len(),
        values.len()
    );
}

/// The three inputs of everything that streams.
pub fn stream_inputs(builder: &mut ProgramBuilder) -> [ValueId; 3] {
    ["slots", "start", "valid"].map(|name| builder.input(name, Dtype::I32, Rows::PerRow(1), 1))
}

pub fn f32s(values: Vec<f32>) -> HostTensor {
    HostTensor::F32(values)
}

pub fn i32s(values: &[i32]) -> HostTensor {
    HostTensor::I32(values.to_vec())
}
