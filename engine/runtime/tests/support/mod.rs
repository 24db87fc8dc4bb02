//! An engine on the embedded checkpoint, and a sink that keeps what it is given.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use contract::{
    Chunk, Clip, ContextId, EngineHandle, FinishReason, Layout, OpenContext, Output, OutputSink, Playback,
    Sampling, SinkFull, Span, Tick, Usage, VoiceChoice,
};
use runtime::{ModelSource, OpenOptions};

pub(crate) const SENTENCE: &str = "The morning train was late again, so we walked along the river.";

static START: OnceLock<Instant> = OnceLock::new();

pub(crate) fn checkpoint() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../config/models/tiny")
}

#[expect(clippy::disallowed_methods, reason = "tests stand outside the engine and need its zero")]
pub(crate) fn start() -> Instant {
    *START.get_or_init(Instant::now)
}

pub(crate) fn now() -> Tick {
    Tick::after_start(start().elapsed())
}

/// Two seconds of an embedded voice, as a client would bring it.
pub(crate) fn clip() -> Arc<Clip> {
    let path = checkpoint().join("voices/june.wav");
    let mut reader = hound::WavReader::open(path).expect("the embedded voice");
    let samples: Vec<f32> =
        reader.samples::<i16>().map(|s| f32::from(s.expect("a sample")) / 32_768.0).collect();
    let transcript = Some("Some words that stand for the clip's own.".to_owned());
    Arc::new(Clip { samples: samples[..48_000].to_vec(), sample_rate: 24_000, transcript, hash: [42; 16] })
}

/// What is tested here must hold on a machine that is busy with other things too, so nobody is refused for
/// a first audio that would come late.
pub(crate) fn options() -> OpenOptions {
    let options = OpenOptions::new(ModelSource::Dir(checkpoint()), "tts-tiny".to_owned(), start());
    OpenOptions { first_audio_limit: Some(Span::from_millis(60_000)), ..options }
}

/// One engine for all tests of a file: opening takes a second or two.
pub(crate) fn engine() -> &'static Arc<dyn EngineHandle> {
    static ENGINE: OnceLock<Arc<dyn EngineHandle>> = OnceLock::new();
    ENGINE.get_or_init(|| runtime::open(options()).expect("the embedded checkpoint opens"))
}

pub(crate) fn request(voice: &str, layout: Layout, seed: u64) -> OpenContext {
    OpenContext {
        model: "tts-tiny".to_owned(),
        voice: VoiceChoice::Named(voice.to_owned()),
        language: None,
        instructions: None,
        layout,
        sampling: Sampling { seed: Some(seed), ..Sampling::default() },
        arrival: now(),
        tenant: 0,
        exact_frames: None,
    }
}

/// Keeps what it is given. Once told who it listens to, it plays from the first chunk on, as the gateway
/// assumes of a listener who sends no reports.
#[derive(Default)]
pub(crate) struct Ear {
    heard: Mutex<Vec<Output>>,
    more: Condvar,
    listens_to: OnceLock<(Arc<dyn EngineHandle>, ContextId)>,
}

impl OutputSink for Ear {
    fn push(&self, output: Output) -> Result<(), SinkFull> {
        if let (Output::Chunk(Chunk { first_sample: 0, .. }), Some((engine, context))) =
            (&output, self.listens_to.get())
        {
            engine.playback(*context, Playback::Playing { zero: now() });
        }
        self.heard.lock().expect("no test panics while holding it").push(output);
        self.more.notify_all();
        Ok(())
    }
}

/// Everything one context gave.
pub(crate) struct Heard {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) segments: Vec<(u32, u64, FinishReason)>,
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
    pub(crate) error: Option<contract::EngineError>,
}

impl Heard {
    pub(crate) fn samples(&self) -> Vec<f32> {
        self.chunks.iter().flat_map(|chunk| chunk.samples.iter().copied()).collect()
    }
}

impl Ear {
    pub(crate) fn wait_for(&self, what: impl Fn(&Output) -> bool) {
        let heard = self.heard.lock().expect("whole");
        let limit = Duration::from_secs(60);
        let (_heard, timeout) =
            self.more.wait_timeout_while(heard, limit, |heard| !heard.iter().any(&what)).expect("whole");
        assert!(!timeout.timed_out(), "the engine said nothing for {limit:?}");
    }

    /// Position after the last sample heard.
    pub(crate) fn end_sample(&self) -> u64 {
        let ends = |output: &Output| match output {
            Output::Chunk(chunk) => chunk.first_sample + chunk.samples.len() as u64,
            _ => 0,
        };
        self.heard.lock().expect("whole").iter().map(ends).max().unwrap_or(0)
    }

    pub(crate) fn to_the_end(&self) -> Heard {
        self.wait_for(|output| matches!(output, Output::Finished { .. }));
        let mut heard = Heard {
            chunks: vec![],
            segments: vec![],
            reason: FinishReason::Done,
            usage: Usage::default(),
            error: None,
        };
        let outputs = self.heard.lock().expect("whole").clone();
        let last = outputs.len() - 1;
        for (index, output) in outputs.into_iter().enumerate() {
            match output {
                Output::Chunk(chunk) => heard.chunks.push(chunk),
                Output::SegmentFinished { segment, end_sample, reason } => {
                    heard.segments.push((segment, end_sample, reason));
                }
                Output::Finished { reason, usage, error } => {
                    assert_eq!(index, last, "nothing follows the end");
                    (heard.reason, heard.usage, heard.error) = (reason, usage, error);
                }
            }
        }
        heard
    }
}

/// Opens a context and gives it all its text at once.
pub(crate) fn begin(
    engine: &Arc<dyn EngineHandle>,
    request: OpenContext,
    text: &str,
) -> (ContextId, Arc<Ear>) {
    let ear = Arc::new(Ear::default());
    let context = engine.open(request, ear.clone()).expect("opens");
    assert!(ear.listens_to.set((engine.clone(), context)).is_ok(), "one ear, one context");
    engine.push_text(context, text).expect("takes text");
    match engine.finish(context) {
        // A processor that fails at once may have ended the context already: its ear hears of that.
        Ok(()) | Err(contract::EngineError::ContextClosed) => {}
        Err(error) => panic!("finishes: {error}"),
    }
    (context, ear)
}

pub(crate) fn speak(engine: &Arc<dyn EngineHandle>, request: OpenContext, text: &str) -> Heard {
    begin(engine, request, text).1.to_the_end()
}
