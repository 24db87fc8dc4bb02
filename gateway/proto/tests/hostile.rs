//! No byte from a peer may cause a panic. Seeds are fixed; a failure prints the one that showed it.

use proptest::prelude::*;
use proto::fuzz;
use proto::wire::{ClientMessage, Incoming, Json, WireError};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let length = self.next() % max;
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Well-formed messages, to be broken.
const SEEDS: &[&str] = &[
    r#"{"type":"open","context":1,"voice":{"id":"clara"},"audio":{"codec":"pcm","sample_rate":48000},"temperature":0.5,"seed":9007199254740991,"layout":"whole"}"#,
    r#"{"type":"text.append","context":65535,"sequence":4294967295,"text":"a\ud83d\ude00\u0000\\\" \ud83d","epoch":65535,"id":"m"}"#,
    r#"{"type":"playback","context":1,"epoch":3,"t":1e300,"played":91200,"buffered":11520,"state":"starved","underruns":1,"sequence":118}"#,
    r#"{"type":"resume","token":"r","received":[{"context":1,"epoch":0,"sequence":118},{}]}"#,
    r#"{"type":"hello","playback":{"prebuffer_ms":80,"target_ms":1e-320},"trace":true}"#,
    r#"{"text":"Hello","model_id":"eleven_v2","voice_settings":{"stability":0.5,"speed":1.0},"seed":7}"#,
    r#"{"transcript":"Hi","model_id":"sonic-3","voice":{"mode":"id","id":"a"},"output_format":{"container":"raw","encoding":"pcm_f32le","sample_rate":44100}}"#,
    r#"{"model":"tts-tiny","input":"Hello","voice":"clara","speed":1.0,"response_format":"opus","seed":-0}"#,
];

#[test]
fn hostile_bytes_never_panic_a_reader() {
    for seed in 1..=3_000_u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        fuzz::wire(&random.bytes(300));
        let mut broken = SEEDS[seed as usize % SEEDS.len()].as_bytes().to_vec();
        for _ in 0..1 + random.next() % 4 {
            let at = random.next() as usize % broken.len();
            match random.next() % 4 {
                0 => broken[at] = random.next() as u8,
                1 => drop(broken.drain(at..broken.len().min(at + 5))),
                2 => broken.insert(at, b"\"{}[],:\\u0d8e1"[random.next() as usize % 14]),
                _ => broken.truncate(at.max(1)),
            }
            if broken.is_empty() {
                break;
            }
        }
        fuzz::wire(&broken);
    }
}

#[test]
fn hostile_conversations_of_other_services_clients_never_panic_a_session() {
    for seed in 1..=1_500_u64 {
        let mut random = Random(seed.wrapping_mul(0x94D0_49BB_1331_11EB));
        fuzz::foreign(&random.bytes(1_200));
    }
}

#[test]
fn hostile_conversations_never_panic_a_session() {
    for seed in 1..=1_500_u64 {
        let mut random = Random(seed.wrapping_mul(0xBF58_476D_1CE4_E5B9));
        fuzz::session(&random.bytes(1_200));
        if seed.is_multiple_of(3) {
            fuzz::realtime(&random.bytes(1_200));
        }
    }
}

#[test]
fn every_truncation_of_a_message_is_refused_and_not_read() {
    for seed in SEEDS {
        for at in (0..seed.len()).filter(|at| seed.is_char_boundary(*at)) {
            assert!(Json::parse(&seed[..at]).is_err(), "{}", &seed[..at]);
        }
    }
}

#[test]
fn the_largest_and_the_deepest_end_quickly_in_an_error() {
    let giants = [
        "[".repeat(262_144),
        "{\"a\":".repeat(40_000),
        format!("[{}1]", "1,".repeat(130_000)),
        format!("{{{}\"z\":1}}", (0..20_000).map(|at| format!("\"k{at}\":1,")).collect::<String>()),
        format!("\"{}", "\\ud83d".repeat(40_000)),
        "9".repeat(262_144),
    ];
    for giant in giants {
        assert!(Json::parse(&giant).is_err());
    }
}

proptest! {
    /// Whatever serde_json reads the same way we read it; what we refuse beyond it is one of our rules.
    #[test]
    fn the_json_reader_agrees_with_serde_json(text in "[\\[\\]{}:,\"\\\\ a-f0-9u.eE+-]{0,40}|\"\\PC{0,20}\"|-?[0-9]{1,20}(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?") {
        let ours = Json::parse(&text);
        match (serde_json::from_str::<serde_json::Value>(&text), ours) {
            (Ok(theirs), Ok(ours)) => prop_assert!(same(&theirs, &ours), "{} {:?}", theirs, ours),
            (Err(_), Err(_)) => {}
            (Ok(_), Err(error)) => prop_assert!(
                matches!(error, WireError::DuplicateField { .. } | WireError::JsonTooDeep),
                "{} is refused: {}", text, error
            ),
            // We keep halves of pairs at a string's ends, to join them.
            (Err(error), Ok(_)) => prop_assert!(text.contains("\\u"), "{} is taken: {}", text, error),
        }
    }

    #[test]
    fn a_message_written_by_a_client_is_read_as_it_was(
        context in any::<u16>(), sequence in 1..=u32::MAX, text in "\\PC{0,50}", played in 0..1_u64 << 53
    ) {
        let append = ClientMessage::TextAppend(proto::wire::TextAppend {
            context, epoch: None, sequence, text: proto::wire::Text::from(text.as_str()),
        });
        prop_assert_eq!(Incoming::decode(&append.to_json()).unwrap().message, append);
        let cancel = ClientMessage::Cancel(proto::wire::Cancel {
            context, epoch: Some(contract::Epoch(context)), played: Some(played),
        });
        prop_assert_eq!(Incoming::decode(&cancel.to_json()).unwrap().message, cancel);
    }
}

fn same(theirs: &serde_json::Value, ours: &Json) -> bool {
    use serde_json::Value;
    match (theirs, ours) {
        (Value::Null, Json::Null) => true,
        (Value::Bool(a), Json::Bool(b)) => a == b,
        (Value::Number(a), Json::Integer(b)) => a.as_i64() == Some(*b) || a.as_f64() == Some(*b as f64),
        (Value::Number(a), Json::Number(b)) => a.as_f64().is_some_and(|a| (a - b).abs() <= b.abs() * 1e-15),
        (Value::String(a), Json::String(b)) => Some(a) == b.clone().whole().as_ref(),
        (Value::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Json::Object(b)) => {
            a.len() == b.len() && b.iter().all(|(key, value)| a.get(key).is_some_and(|a| same(a, value)))
        }
        _ => false,
    }
}
