//! Lanes: disjoint cores, order, yielding, and failures that stay where they happen.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use contract::{Lane, LaunchId, Partition};
use device::program::{Op, Program, ProgramBuilder, Rows};
use device::{Dtype, ExecutableId, HostTensor, WeightForm, WeightId};
use world::{Run, World, f32s, fresh, i32s};

const WIDTH: usize = 128;

/// `depth` square layers, one after the other.
fn layers(weight: WeightId, depth: usize, rows: usize) -> Program {
    let mut builder = ProgramBuilder::new("layers");
    let mut input = builder.input("input", Dtype::F32, Rows::PerRow(rows), WIDTH);
    let outs = ["a", "b"].map(|name| builder.scratch(name, Rows::PerRow(rows), WIDTH));
    for layer in 0..depth {
        let out = outs[layer % 2];
        builder.push(Op::Linear { input, weight, bias: None, activation: None, residual: None, out });
        input = out;
    }
    builder.output(input);
    builder.finish()
}

fn look_up(table: WeightId) -> Program {
    let mut builder = ProgramBuilder::new("look up");
    let ids = builder.input("ids", Dtype::I32, Rows::PerRow(1), 1);
    let out = builder.scratch("out", Rows::PerRow(1), 4);
    builder.push(Op::Embed { table, ids, out, accumulate: false });
    builder.output(out);
    builder.finish()
}

fn start(world: &mut World, lane: Lane, executable: ExecutableId, rows: usize) -> LaunchId {
    let inputs = vec![f32s(vec![0.01; rows * WIDTH])];
    world.launch(Run { lane, executable, rows: 1, tokens: 0, inputs }).unwrap()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn lm_and_background_launches_overlap_on_disjoint_cores() {
    let mut world = World::new(fresh());
    if cores() < 2 {
        assert!(world.backend.describe().contains("every lane"), "{}", world.backend.describe());
        return;
    }
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let program = layers(weight, 400, 64);
    let background = world.build(&program, 1, 0, Partition::Background);
    let lm = world.build(&program, 1, 0, Partition::Lm);
    start(&mut world, Lane::Background, background, 64);
    start(&mut world, Lane::Lm, lm, 64);
    let (first, second) = (world.wait(), world.wait());
    assert!(first.result.is_ok() && second.result.is_ok());
    assert!(first.started < second.finished && second.started < first.finished, "the launches overlap");
    assert!(
        first.cores.iter().all(|core| !second.cores.contains(core)),
        "{:?} {:?}",
        first.cores,
        second.cores
    );
}

#[test]
fn launches_of_one_lane_run_in_order_and_one_at_a_time() {
    let mut world = World::new(fresh());
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let long = world.build(&layers(weight, 60, 32), 1, 0, Partition::Lm);
    let short = world.build(&layers(weight, 1, 1), 1, 0, Partition::Whole);
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.push(start(&mut world, Lane::Lm, long, 32));
        expected.push(start(&mut world, Lane::Lm, short, 1));
    }
    let done: Vec<_> = expected.iter().map(|_| world.wait()).collect();
    assert_eq!(done.iter().map(|completed| completed.launch).collect::<Vec<_>>(), expected);
    assert!(done.windows(2).all(|pair| pair[0].finished <= pair[1].started));
}

#[test]
fn a_whole_partition_launch_in_the_lm_lane_uses_every_core() {
    let mut world = World::new(fresh());
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let executable = world.build(&layers(weight, 3, 200), 1, 0, Partition::Whole);
    start(&mut world, Lane::Lm, executable, 200);
    assert_eq!(world.wait().cores.len(), cores());
}

#[test]
fn urgent_work_finishes_while_longer_work_waits_between_ops() {
    let mut world = World::new(fresh());
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let long = world.build(&layers(weight, 1_000, 64), 1, 0, Partition::Background);
    let urgent = world.build(&layers(weight, 20, 64), 1, 0, Partition::Whole);
    let first = world.build(&layers(weight, 1, 64), 1, 0, Partition::Background);
    let first = start(&mut world, Lane::Background, first, 64);
    let slow = start(&mut world, Lane::Background, long, 64);
    assert_eq!(world.wait().launch, first);
    let quick: Vec<_> = (0..5).map(|_| start(&mut world, Lane::Urgent, urgent, 64)).collect();
    for expected in quick {
        assert_eq!(world.wait().launch, expected);
    }
    assert_eq!(world.wait().launch, slow);
}

#[test]
fn a_panic_in_a_launch_loses_that_launch_and_nothing_else() {
    let mut world = World::new(fresh());
    let table = world.weight(WeightForm::Table, &[10, 4]);
    let executable = world.build(&look_up(table), 2, 0, Partition::Whole);
    for lane in [Lane::Lm, Lane::Urgent, Lane::Background] {
        let mut run = |ids: &[i32]| {
            world.run(Run { lane, executable, rows: ids.len(), tokens: 0, inputs: vec![i32s(ids)] })
        };
        let error = run(&[3, 10]).unwrap_err().to_string();
        assert!(
            error.contains(lane.name()) && error.contains("id 10 is outside a table of 10 rows"),
            "{error}"
        );
        assert_eq!(run(&[-1]).unwrap(), [HostTensor::F32(vec![0.0; 4])]);
    }
}

#[test]
fn launches_that_do_not_fit_are_refused_by_name() {
    let mut world = World::new(fresh());
    let table = world.weight(WeightForm::Table, &[10, 4]);
    let executable = world.build(&look_up(table), 2, 0, Partition::Whole);
    let mut refused = |rows, inputs| {
        world.launch(Run { lane: Lane::Lm, executable, rows, tokens: 0, inputs }).unwrap_err().to_string()
    };
    assert!(refused(3, vec![i32s(&[0, 1, 2])]).contains("batch rows"));
    assert!(refused(2, vec![i32s(&[0])]).contains("ids has 1 values, but 2"));
    assert!(refused(1, vec![f32s(vec![0.0])]).contains("ids (I32, not F32)"));
    assert!(refused(1, vec![]).contains("inputs of the program"));
    world.backend.release(executable);
    let inputs = vec![i32s(&[0])];
    let gone = world.launch(Run { lane: Lane::Lm, executable, rows: 1, tokens: 0, inputs });
    assert!(gone.unwrap_err().to_string().contains("never built, or released"));
}

#[test]
fn a_slot_belongs_to_one_launch_at_a_time() {
    let mut world = World::new(fresh());
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let state = world.state(WIDTH, Dtype::F32);
    let program = |depth| {
        let mut builder = ProgramBuilder::new("with state");
        let slots = builder.input("slots", Dtype::I32, Rows::PerRow(1), 1);
        let row = builder.scratch("row", Rows::PerRow(1), WIDTH);
        builder.push(Op::LoadState { state, slots, out: row });
        let last = builder.scratch("last", Rows::PerRow(1), WIDTH);
        let (mut from, mut to) = (row, last);
        for _ in 0..depth {
            builder.push(Op::Linear {
                input: from,
                weight,
                bias: None,
                activation: None,
                residual: None,
                out: to,
            });
            std::mem::swap(&mut from, &mut to);
        }
        builder.push(Op::StoreState { state, slots, source: from, active: None });
        builder.output(from);
        builder.finish()
    };
    let slow = world.build(&program(4_000), 2, 0, Partition::Background);
    let quick = world.build(&program(2), 2, 0, Partition::Whole);
    let run = |lane, executable, slots: &[i32]| Run {
        lane,
        executable,
        rows: slots.len(),
        tokens: 0,
        inputs: vec![i32s(slots)],
    };
    let twice = world.launch(run(Lane::Urgent, quick, &[2, 2])).unwrap_err().to_string();
    assert!(twice.contains("slot 2 named twice"), "{twice}");
    world.launch(run(Lane::Background, slow, &[1, 3])).unwrap();
    let clash = world.launch(run(Lane::Urgent, quick, &[0, 3])).unwrap_err().to_string();
    assert!(clash.contains("slot 3 of state 0, held by launch-"), "{clash}");
    let read = world.backend.read_state(state, 1).unwrap_err().to_string();
    assert!(read.contains("slot 1, held by"), "{read}");
    world.launch(run(Lane::Urgent, quick, &[0, 2])).unwrap();
    assert!(world.wait().result.is_ok() && world.wait().result.is_ok());
    let row = HostTensor::F32(vec![0.5; WIDTH]);
    world.backend.write_state(state, 3, &row).unwrap();
    assert_eq!(world.backend.read_state(state, 3).unwrap(), row);
    assert!(world.backend.write_state(state, 3, &HostTensor::F32(vec![0.5])).is_err());
    assert!(world.backend.read_state(state, 99).is_err());
}

#[test]
fn a_long_background_launch_delays_the_next_lm_step_by_at_most_a_tenth() {
    let mut world = World::new(fresh());
    if cores() < 2 {
        assert!(world.backend.describe().contains("every lane"), "{}", world.backend.describe());
        return;
    }
    let weight = world.weight(WeightForm::Matrix, &[WIDTH, WIDTH]);
    let long = world.build(&layers(weight, 2_000, 64), 1, 0, Partition::Background);
    let step = world.build(&layers(weight, 40, 16), 1, 0, Partition::Lm);
    // The shortest of many steps: other processes can only lengthen one.
    let shortest = |world: &mut World| {
        let mut steps = Vec::new();
        for _ in 0..40 {
            start(world, Lane::Lm, step, 16);
            loop {
                let completed = world.wait();
                if completed.lane == Lane::Lm {
                    steps.push(completed.finished.since(completed.started).as_micros());
                    break;
                }
                start(world, Lane::Background, long, 64);
            }
        }
        steps.into_iter().min().unwrap()
    };
    let mut alone = i64::MAX;
    let mut beside = i64::MAX;
    for _ in 0..20 {
        alone = alone.min(shortest(&mut world));
        start(&mut world, Lane::Background, long, 64);
        beside = beside.min(shortest(&mut world));
        while world.wait().lane != Lane::Background {}
        if beside <= alone + alone / 10 {
            return;
        }
    }
    panic!("a step takes {beside} us beside background work, but {alone} us alone");
}
