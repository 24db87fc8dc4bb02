use load::target::{Adapter, Target, TargetError};
use load::workload::{Workload, WorkloadError, names};

fn shape(name: &str) -> (usize, usize, f64, f64) {
    let workload = Workload::load(name).expect("built in");
    let words: Vec<usize> = workload.utterances.iter().map(|it| it.words()).collect();
    let count = words.len() as f64;
    let seconds = workload.utterances.iter().map(|it| it.spoken_s()).sum::<f64>() / count;
    let mean = words.iter().sum::<usize>() as f64 / count;
    (*words.iter().min().expect("some"), *words.iter().max().expect("some"), mean, seconds)
}

#[test]
fn the_built_in_workloads_have_the_published_shapes() {
    let (least, most, mean, seconds) = shape("libritts");
    assert_eq!((least, most), (1, 71));
    assert!((mean - 18.7).abs() < 0.1 && (seconds - 7.8).abs() < 0.05, "{mean} words, {seconds} s");
    let (.., seconds) = shape("seed-tts");
    assert!((seconds - 4.7).abs() < 0.05, "{seconds} s");
    assert_eq!(names(), ["agent-turns", "libritts", "read-out", "seed-tts"]);
    for name in names() {
        assert!(shape(name).3 > 1.0, "{name}");
    }
}

#[test]
fn a_bad_line_is_named_and_an_empty_workload_refused() {
    let error = Workload::parse("w", "{\"text\": \"One.\"}\n\n{\"text\": \"...\"}\n").expect_err("no letter");
    assert!(matches!(error, WorkloadError::Line { line: 3, .. }), "{error}");
    let error = Workload::parse("w", "{\"text\": \"One.\", \"seconds\": 0}").expect_err("no length");
    assert!(error.to_string().contains("seconds"), "{error}");
    assert!(matches!(Workload::parse("w", "\n \n"), Err(WorkloadError::Empty(_))));
    let error = Workload::load("no-such-workload").expect_err("neither");
    assert!(error.to_string().contains("libritts"), "{error}");
}

#[test]
fn pieces_join_to_the_text_they_were_cut_from() {
    for name in names() {
        for utterance in Workload::load(name).expect("built in").utterances {
            let pieces = utterance.pieces();
            assert_eq!(pieces.concat(), utterance.text);
            assert!(pieces.len() >= utterance.words());
        }
    }
}

#[test]
fn a_target_names_its_adapter_its_address_and_its_fields() {
    let target =
        Target::parse("a=native+ids=12.5,ws://127.0.0.1:8080/?voice=clara&model=x%20y").expect("valid");
    assert_eq!(target.adapter, Adapter::Native { pcm: false, ids_per_s: Some(12.5) });
    assert_eq!((target.address.as_str(), target.path.as_str()), ("127.0.0.1:8080", "/v1/stream"));
    assert_eq!((target.field("voice"), target.field("model")), (Some("clara"), Some("x y")));
    let own = Target::parse("b=realtime,ws://[::1]:90/rt").expect("valid");
    assert_eq!((own.address.as_str(), own.path.as_str()), ("[::1]:90", "/rt"));
    for wrong in ["a", "a=native", "=native,ws://h:1", "a=sing,ws://h:1", "a=realtime+wav,ws://h:1"] {
        assert!(Target::parse(wrong).is_err(), "{wrong}");
    }
    for wrong in ["a=native,https://h:1", "a=native,ws://h", "a=native,ws://:80"] {
        assert!(matches!(Target::parse(wrong), Err(TargetError::Url(_))), "{wrong}");
    }
    assert!(matches!(Target::parse("a=native,ws://h:1/v2"), Err(TargetError::Path(path)) if path == "/v2"));
    assert!(
        matches!(Target::parse("a=native,ws://h:1?voice=a&speed=2"), Err(TargetError::Field(field)) if field == "speed"),
        "a field that would be left out in silence"
    );
    for wrong in ["voice", "voice=%ff", "voice=a&b"] {
        let query = Target::parse(&format!("a=realtime,ws://h:1?{wrong}"));
        assert!(matches!(query, Err(TargetError::Query(_))), "{wrong}");
    }
    for wrong in ["1e-300", "0", "1e300", "nan"] {
        assert!(Target::parse(&format!("a=native+ids={wrong},ws://h:1")).is_err(), "{wrong} ids a second");
    }
    let fixes = |adapter: &str| {
        Target::parse(&format!("a={adapter},ws://h:1")).expect("valid").adapter.fixes_frames()
    };
    assert_eq!(["native", "speech+wav", "nari", "realtime"].map(fixes), [true, true, false, false]);
}

#[test]
fn fields_keep_their_characters_on_the_way_from_one_url_to_another() {
    let target = Target::parse("a=realtime,ws://h:1?voice=na%C3%AFve%20o%26k&model=m-1").expect("valid");
    assert_eq!((target.field("voice"), target.field("model")), (Some("na\u{ef}ve o&k"), Some("m-1")));
    assert_eq!(target.query(), "voice=na%C3%AFve%20o%26k&model=m-1");
}
