//! What measuring a device gives.

mod support;

use contract::{Partition, Span, Stage};
use runtime::{OpenOptions, ProfileScope};
use sched::SchedConfig;
use support::options;

#[test]
fn a_profile_holds_every_stage_the_scheduler_asks_for_and_costs_grow_with_rows() {
    let measured = runtime::profile(OpenOptions { contexts_max: 4, ..options() }, ProfileScope::All)
        .expect("it is measured");
    assert_eq!(measured.frame, Span::from_millis(80));
    let stage = |stage, partition| {
        let found = measured.stages.iter().find(|it| (it.stage, it.partition) == (stage, partition));
        found.unwrap_or_else(|| panic!("{stage:?} on {partition:?} was not measured"))
    };
    for (of, partition) in [
        (Stage::Decode, Partition::Lm),
        (Stage::Decode, Partition::Whole),
        (Stage::Encode, Partition::Whole),
        (Stage::Prefill, Partition::Lm),
        (Stage::Prefill, Partition::Whole),
        (Stage::Codec, Partition::Background),
        (Stage::Codec, Partition::Whole),
    ] {
        let table = stage(of, partition);
        assert_eq!(table.micros.len(), table.rows.len() * table.lengths.len());
        sched::CostTable::new(table.rows.clone(), table.lengths.clone(), table.micros.clone())
            .expect("a table");
    }
    let codec = stage(Stage::Codec, Partition::Background);
    let (one, most) = (codec.micros[0], codec.micros[codec.micros.len() - 1]);
    assert!(most > 4 * one, "four rows of ten frames cost {most} us, one of two {one} us");
    let encode = stage(Stage::Encode, Partition::Whole);
    assert!(
        encode.micros[2] > 2 * encode.micros[0],
        "ten seconds of a clip against one: {:?}",
        encode.micros
    );
    let sharing = measured.sharing;
    for left in [sharing.lm_beside_background, sharing.background_beside_lm, sharing.lm_beside_urgent] {
        assert!((1..=1_000).contains(&left), "{left}");
    }
    assert!(measured.parts[0] >= 1 && measured.prompt_positions > 0 && measured.ids_per_word > 0.5);
}

#[test]
fn an_engine_of_one_context_is_measured_too_with_the_settings_it_would_serve_with() {
    let asked = OpenOptions { contexts_max: 1, steps_between_prefills: Some(3), ..options() };
    let limit = asked.first_audio_limit;
    let measured = runtime::profile(asked, ProfileScope::Partitions).expect("it is measured");
    let SchedConfig { steps_between_prefills, first_audio_limit, .. } = measured.config;
    assert_eq!((steps_between_prefills, Some(first_audio_limit)), (3, limit));
    let partitions: Vec<_> = measured.stages.iter().map(|it| (it.stage, it.partition)).collect();
    let asked = [
        (Stage::Decode, Partition::Lm),
        (Stage::Prefill, Partition::Lm),
        (Stage::Codec, Partition::Background),
    ];
    assert_eq!(partitions, asked, "what no split changes was not asked for");
}
