//! The published sizes, lowered without a card: what a launch would be refused for is found here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use contract::Stage;
use device::{
    Backend, Completed, DeviceError, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, StateId,
    StateSpec, WeightForm, WeightId, row_buckets,
};
use models::{Capacity, ModelSource, PlacedModel};

use super::*;
use crate::kernels::shared_limit;

macro_rules! files {
    ($shape:literal) => {
        &[
            (
                "config.json",
                include_bytes!(concat!("../../../../config/models/shapes/", $shape, "/config.json")),
            ),
            (
                "generation_config.json",
                include_bytes!(concat!(
                    "../../../../config/models/shapes/",
                    $shape,
                    "/generation_config.json"
                )),
            ),
            (
                "speech_tokenizer/config.json",
                include_bytes!(concat!(
                    "../../../../config/models/shapes/",
                    $shape,
                    "/speech_tokenizer/config.json"
                )),
            ),
            ("tokenizer.json", include_bytes!("../../../../config/models/tiny/tokenizer.json")),
            ("tokenizer_config.json", include_bytes!("../../../../config/models/tiny/tokenizer_config.json")),
        ]
    };
}

const SLOTS: u32 = 256;
/// Rows of the largest codec bucket.
const CODEC_ROWS: u32 = 64;
/// The whole of a Hopper card, and its lanes.
const PARTITIONS: [u32; 3] = [132, 100, 32];

/// Both sizes: made once, as their weights are drawn on the way.
pub(super) static SIZES: LazyLock<[(&str, Size); 2]> = LazyLock::new(|| {
    [("0.6B", Size::load(files!("qwen3-tts-0.6b"))), ("1.7B", Size::load(files!("qwen3-tts-1.7b")))]
});

/// Takes shapes and runs nothing.
#[derive(Default)]
struct Shapes {
    catalog: Catalog,
}

impl Backend for Shapes {
    fn upload(
        &mut self,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        values: Vec<f32>,
    ) -> Result<WeightId, DeviceError> {
        self.catalog.add_weight(name, form, shape, values.len())
    }

    fn state(&mut self, spec: StateSpec) -> Result<StateId, DeviceError> {
        self.catalog.add_state(spec)
    }

    fn paged(&mut self, spec: PagedSpec) -> Result<PagedId, DeviceError> {
        self.catalog.add_paged(spec)
    }

    fn build(&mut self, _: contract::ShapeKey, _: &Program) -> Result<ExecutableId, DeviceError> {
        Ok(ExecutableId(0))
    }

    fn release(&mut self, _: ExecutableId) {}

    fn launch(&mut self, _: Launch) -> Result<(), DeviceError> {
        Err(nothing_runs())
    }

    fn poll(&mut self) -> Option<Completed> {
        None
    }

    fn write_state(&mut self, _: StateId, _: u32, _: &HostTensor) -> Result<(), DeviceError> {
        Err(nothing_runs())
    }

    fn read_state(&mut self, _: StateId, _: u32) -> Result<HostTensor, DeviceError> {
        Err(nothing_runs())
    }

    fn describe(&self) -> String {
        "shapes only".to_owned()
    }
}

fn nothing_runs() -> DeviceError {
    DeviceError::LaneLost { lane: "lm", what: "shapes only".to_owned() }
}

/// A size's catalog, and its programs with the rows each is recorded for.
pub(super) struct Size {
    catalog: Catalog,
    programs: Vec<(Program, Vec<Shape>)>,
}

impl Size {
    fn load(files: &'static [(&'static str, &'static [u8])]) -> Self {
        let mut backend = Shapes::default();
        let model = models::open(ModelSource::Random { files, seed: 1 }, "size").expect("a published size");
        let capacity = Capacity { slots: SLOTS, pages: SLOTS * 4 + 1, page_len: 64, positions_max: 2048 };
        let placed = model.place(&mut backend, capacity).expect("a placed model");
        let rows = |most, tokens_a_row: usize| {
            let shape = |batch: u32| Shape { batch: batch as usize, tokens: batch as usize * tokens_a_row };
            row_buckets(1, most).into_iter().map(shape).collect::<Vec<_>>()
        };
        let riding = [(40, 104), (64, 320), (256, 320), (512, 768)];
        let riding = riding.map(|(batch, tokens)| Shape { batch, tokens }).to_vec();
        let program = |stage, length| program(placed.as_ref(), stage, length);
        let mut programs = vec![
            (program(Stage::Decode, 1), rows(SLOTS, 0)),
            // A prompt or more, of some 20 positions each.
            (program(Stage::Prefill, 1024), rows(32, 20)),
            // A few beside steps that ride along.
            (program(Stage::Prefill, 1024), riding),
        ];
        programs.extend([1, 2, 4, 10].map(|length| (program(Stage::Codec, length), rows(CODEC_ROWS, 0))));
        Self { catalog: backend.catalog, programs }
    }

    /// Each program lowered for each of its shapes on each partition.
    pub(super) fn each(&self, target: Target, mut see: impl FnMut(&str, Shape, &Lowered)) {
        for (program, shapes) in &self.programs {
            for &shape in shapes {
                for sms in PARTITIONS {
                    let lowered = lower(program, &self.catalog, shape, Target { sms, ..target });
                    see(&program.name, shape, &lowered);
                }
            }
        }
    }
}

fn program(placed: &dyn PlacedModel, stage: Stage, length: u32) -> Program {
    placed.program(stage, length).expect("a program")
}

/// What CUDA refuses a launch for (CUDA C++ programming guide, "Technical specifications per compute capability").
fn assert_launchable(step: &Step, capability: (i32, i32), context: &str) {
    let Step { kernel, grid, block, shared, cluster, .. } = step;
    assert!(
        grid.iter().all(|&blocks| blocks > 0) && (1..=1024).contains(block),
        "{context} {kernel}: {grid:?}"
    );
    assert!(grid[1] <= 65_535 && grid[2] <= 65_535, "{context} {kernel}: {grid:?}");
    let limit = shared_limit(kernel, capability);
    assert!(*shared <= limit, "{context} {kernel}: {shared} bytes of shared memory, {limit} allowed");
    assert!((1..=8).contains(cluster) && grid[2].is_multiple_of(*cluster), "{context} {kernel}: {cluster}");
}

#[test]
fn every_launch_of_both_published_sizes_is_one_a_card_takes() {
    let hopper = Target {
        precision: Precision::Bf16,
        sms: 0,
        shared_max: 220 << 10,
        hopper: true,
        library_from: None,
    };
    let ampere = Target { shared_max: 96 << 10, hopper: false, ..hopper };
    let with_library = Target { library_from: Some(96), ..hopper };
    for (name, size) in &*SIZES {
        for (target, capability) in [(hopper, (9, 0)), (ampere, (8, 0)), (with_library, (9, 0))] {
            let mut lowered_any = 0;
            size.each(target, |program, shape, lowered| {
                for step in lowered.steps.iter().filter(|step| step.library.is_none()) {
                    assert_launchable(step, capability, &format!("{name} {program} {shape:?}"));
                }
                lowered_any += 1;
            });
            assert!(lowered_any > 100, "{lowered_any}");
        }
    }
}

#[test]
fn a_step_of_few_rows_is_five_launches_a_layer_and_one_a_draw() {
    let hopper = Target {
        precision: Precision::Bf16,
        sms: 132,
        shared_max: 220 << 10,
        hopper: true,
        library_from: None,
    };
    for (name, size) in &*SIZES {
        let mut counts = BTreeMap::new();
        size.each(hopper, |program, shape, lowered| {
            if program.contains("decode") && shape.batch == 8 {
                counts.clear();
                for step in &lowered.steps {
                    let family = step.kernel.trim_end_matches(|c: char| c == '_' || c.is_ascii_digit());
                    *counts.entry(family.to_owned()).or_insert(0) += 1;
                }
            }
        });
        // 28 layers of the talker; 15 passes of five layers of the code predictor, and a draw after each as after the
        // talker. No pass lays its keys down first, and no draw has its id placed or looked up after it, or what was
        // looked up projected or normed.
        let of = |family: &str| counts.get(family).copied().unwrap_or(0);
        assert_eq!(
            [of("attend_pair_pages"), of("attend_frame"), of("sample")],
            [28, 75, 16],
            "{name}: {counts:?}"
        );
        let launches: usize = counts.values().sum();
        // Five a layer; a head and a draw a frame's code; what brings text and codes in, and the frame's first two positions.
        let beside = if *name == "1.7B" { 14 } else { 15 };
        assert_eq!(launches, 5 * (28 + 75) + 2 * 16 + beside, "{name}: {counts:?}");
    }
}
