use load::{mood::Moods, rates::Rates, sim::*, workload::Workload};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let p = ProfileFile::load(&a[1]).unwrap();
    let w = Workload::load("libritts").unwrap();
    let vs: Vec<Variant> = a[3..].iter().map(|t| Variant::parse(t).unwrap()).collect();
    let t = std::time::Instant::now();
    let (r, d) = run(
        &p,
        &vs,
        &w,
        &Moods::default(),
        1,
        Rates::sweep(&a[2]).unwrap(),
        contract::Span::from_millis(30_000),
        &|l| eprintln!("{l} [{:?}]", t.elapsed()),
    )
    .unwrap();
    println!("{}", load::table::text(&r));
    for (n, ds) in d {
        for (r, d) in ds {
            println!(
                "{n} {r} {:?} late {} sw {} ladder {} defer {} cap {}",
                d.reasons,
                d.counters.chunks_late,
                d.counters.policy_switches,
                d.counters.ladder_changes,
                d.counters.deferrals,
                d.counters.deferrals_to_cap
            );
        }
    }
}
