//! The encoders against the reference package: every stage, the speaker vector, the codes.

use contract::Stage;
use device::HostTensor;
use models::{EncodeProgram, StageInputs};

use crate::engine::Engine;
use crate::fixtures::{Fixture, assert_close, golden, tiny};
use crate::speech::{for_each_case, text};
use crate::taps::tap;

const BOUND: f32 = 1e-3;
/// Distances to two entries nearer than this may be told apart differently by other rounding.
const SAFE_MARGIN: f32 = 1e-4;

/// Parts of an [`EncodeProgram`], in the family's own numbering.
const SPEAKER: u32 = 0;
const CODES: u32 = 1;

/// Samples of a voice of the embedded checkpoint, or of several (`a+b`) one after the other.
fn clip(voices: &str) -> Vec<f32> {
    let full_scale = f32::from(i16::MAX) + 1.0;
    let read = |voice: &str| {
        let path = tiny().join(format!("voices/{voice}.wav"));
        hound::WavReader::open(path).expect("a voice of the embedded checkpoint").into_samples::<i16>()
    };
    voices
        .split('+')
        .flat_map(read)
        .map(|sample| f32::from(sample.expect("16-bit PCM")) / full_scale)
        .collect()
}

struct Encoder<'a> {
    engine: &'a mut Engine,
    samples: Vec<f32>,
}

impl Encoder<'_> {
    fn launch(&mut self, part: u32, tapped: Option<&str>) -> HostTensor {
        let length = u32::try_from(self.samples.len()).expect("a short clip");
        let program = self.engine.placed.encode_program(EncodeProgram { part, length }).expect("a part");
        let program = tapped.iter().fold(program, |program, name| tap(program, name, 0));
        let inputs = StageInputs { rows: 1, tokens: 0, inputs: vec![HostTensor::F32(self.samples.clone())] };
        self.engine.run(&program, inputs).pop().expect("one output")
    }

    fn floats(&mut self, part: u32, tapped: Option<&str>) -> Vec<f32> {
        match self.launch(part, tapped) {
            HostTensor::F32(values) => values,
            HostTensor::I32(_) => panic!("an encoder's stage is of floats"),
        }
    }

    fn codes(&mut self) -> Vec<i32> {
        match self.launch(CODES, None) {
            HostTensor::I32(codes) => codes,
            HostTensor::F32(_) => panic!("codes are whole numbers"),
        }
    }
}

#[test]
fn clips_of_any_length_give_the_references_stages_vector_and_codes() {
    let mut codes_compared = 0;
    for_each_case("encoder", |engine, case, fixture| {
        let fact = |key: &str| text(case, key).unwrap_or_else(|| panic!("{key} is missing"));
        let name = fact("name");
        let mut encoder = Encoder { engine, samples: clip(fact("voice")) };
        encoder.samples.truncate(case["samples"].as_u64().expect("samples") as usize);
        for (stage, part, value) in
            [("mel", SPEAKER, "mel"), ("conv", CODES, "leave"), ("features", CODES, "features")]
        {
            if fixture.has(stage) {
                let width = fixture.shape(stage)[1];
                let found = encoder.floats(part, Some(value));
                let kept =
                    fixture.kept_rows(stage).into_iter().flat_map(|row| &found[row * width..][..width]);
                let kept: Vec<f32> = kept.copied().collect();
                assert_close(&format!("{name}: {stage}"), &kept, &fixture.floats(stage), BOUND);
            }
        }
        if fixture.has("speaker_embedding") {
            let vector = encoder.floats(SPEAKER, None);
            assert_close(&format!("{name}: vector"), &vector, &fixture.floats("speaker_embedding"), BOUND);
        }
        codes_compared += compare_codes(name, &encoder.codes(), fixture);
    });
    assert!(codes_compared > 1500, "too few codes to say anything: {codes_compared}");
}

/// Equal, up to the first code of a frame that the reference itself chose by a hair: what is left to
/// quantize differs after it.
fn compare_codes(name: &str, found: &[i32], fixture: &Fixture) -> usize {
    let (expected, margins) = (fixture.ints("codes"), fixture.floats("codes.margin"));
    assert_eq!(found.len(), expected.len(), "{name}: frames");
    let groups = fixture.shape("codes")[1];
    let mut equal = 0;
    for (at, frame) in expected.chunks(groups).enumerate() {
        let found = &found[at * groups..][..groups];
        let margins = &margins[at * groups..][..groups];
        let alike = found.iter().zip(frame).take_while(|(a, b)| a == b).count();
        assert!(
            alike == groups || margins[alike] < SAFE_MARGIN,
            "{name}, frame {at}: {found:?}, the reference has {frame:?}"
        );
        equal += alike;
    }
    println!("{name}: {equal} of {} codes equal", expected.len());
    equal
}

#[test]
fn the_golden_clip_gives_the_golden_mel_vector_and_codes() {
    let fixture = Fixture::read(&golden().join("tiny/intermediate_0.safetensors"));
    let mut encoder = Encoder { engine: &mut Engine::open(&tiny()), samples: clip("clara") };
    let [bands, frames] = fixture.shape("spk.mel")[..] else { panic!("mel is a matrix") };
    let by_band = fixture.floats("spk.mel");
    let by_frame: Vec<f32> = (0..frames)
        .flat_map(|frame| (0..bands).map(move |band| (frame, band)))
        .map(|(f, b)| by_band[b * frames + f])
        .collect();
    assert_close("mel", &encoder.floats(SPEAKER, Some("mel")), &by_frame, BOUND);
    assert_close("vector", &encoder.floats(SPEAKER, None), &fixture.floats("spk.embedding"), BOUND);
    assert_eq!(encoder.codes(), fixture.ints("encoder.codes"));
}

#[test]
fn a_clip_encodes_alike_whatever_was_encoded_before() {
    let mut encoder = Encoder { engine: &mut Engine::open(&tiny()), samples: clip("june") };
    let first = (encoder.floats(SPEAKER, None), encoder.codes());
    let whole = std::mem::replace(&mut encoder.samples, vec![0.0; 24_000]);
    assert!(encoder.floats(SPEAKER, None).iter().all(|value| value.is_finite()), "silence");
    encoder.codes();
    encoder.samples = whole;
    assert_eq!(first, (encoder.floats(SPEAKER, None), encoder.codes()));
}

#[test]
fn a_stage_that_is_not_encode_knows_no_clip_lengths() {
    let engine = Engine::open(&tiny());
    assert!(engine.placed.program(Stage::Encode, 24_000).is_err());
    assert!(engine.placed.encode_program(EncodeProgram { part: 2, length: 24_000 }).is_err());
}
