//! Who speaks when: turns in the client's audio, by a small voice detector (crate `earshot`).
//!
//! `server_vad` and `semantic_vad` are one detector here. The first names its silence itself; of the second,
//! eagerness chooses it. Positions count all audio that was appended in the session.

use std::fmt;

use codecs::resample::Resampler;
use earshot::Detector;
use serde_json::{Map, Value};

use super::level::Level;
use super::sounding::Sounding;

/// The detector's own rate and frame: 16 ms.
const RATE_HZ: u32 = 16_000;
const FRAME: usize = 256;
const TELEPHONE_HZ: u32 = 8_000;
pub(super) const FRAME_MS: u64 = 16;
/// How much surer than the threshold the detector must once be before a turn begins, and how much less
/// sure it may be within one. Noise that sets in scores up to 0.62 for a third of a second, and speech more
/// than 0.65 within a tenth, also over a telephone. Chosen on two of the embedded voices and white noise; held
/// to the other two, to other noises and to both telephone codes by `tests/realtime/held_out.rs`.
const MARGIN: f32 = 0.15;
/// How much surer of a voice the detector must be than of what is always there: steady noise over a telephone
/// may score 0.55 to 0.67 for as long as it lasts, and a voice in it 0.9.
const ABOVE_USUAL: f32 = 0.08;
/// What is always there scores no more than this; a long sentence is no noise.
const USUAL_MAX: f32 = 0.7;
/// How fast the usual score follows: in half a second where nobody speaks, in twenty where somebody may; a voice
/// that may be beginning changes nothing.
const FOLLOWS: f32 = 1.0 / 31.0;
const FOLLOWS_IN_TURN: f32 = 1.0 / 1_250.0;
/// More than this no detector is ever sure.
const SURE_MAX: f32 = 0.97;

/// How turns are told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TurnSettings {
    threshold: f32,
    prefix_ms: u64,
    silence_ms: u64,
    pub(super) interrupts: bool,
    /// Silence of the user after which the turn is the server's again.
    pub(super) idle_ms: Option<u64>,
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Started { at_ms: u64 },
    Stopped { at_ms: u64 },
}

/// Listens to one session's audio.
pub(super) struct Turns {
    detector: Box<Detector>,
    resampler: Option<(u32, Resampler)>,
    waiting: Vec<f32>,
    /// Frames judged so far.
    frames: u64,
    level: Level,
    sounding: Sounding,
    /// Frames of voice in a row, the best score among them, and the frame at which its sound began.
    voiced: u64,
    surest: f32,
    onset: Option<u64>,
    silent: u64,
    speaking: bool,
    /// How sure the detector is of what is always there.
    usual: f32,
    /// Where the last turn ended.
    end_ms: u64,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("frames", &self.frames).field("speaking", &self.speaking).finish()
    }
}

impl TurnSettings {
    /// Reads what `session.updated` shows.
    pub(super) fn read(turns: &Map<String, Value>) -> Self {
        let millis = |name: &str, default: u64| turns.get(name).and_then(Value::as_u64).unwrap_or(default);
        let semantic = turns.get("type").is_some_and(|kind| kind == "semantic_vad");
        let silence_ms = match turns.get("eagerness").and_then(Value::as_str) {
            Some("low") if semantic => 1_200,
            Some("high") if semantic => 400,
            Some(_) if semantic => 700,
            _ => millis("silence_duration_ms", 500),
        };
        let threshold = turns.get("threshold").and_then(Value::as_f64).unwrap_or(0.5) as f32;
        Self {
            threshold: threshold.clamp(0.05, 0.95),
            prefix_ms: millis("prefix_padding_ms", 300),
            silence_ms,
            interrupts: turns.get("interrupt_response").and_then(Value::as_bool).unwrap_or(true),
            idle_ms: turns.get("idle_timeout_ms").and_then(Value::as_u64),
        }
    }
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            detector: Detector::default_boxed(),
            resampler: None,
            waiting: Vec::new(),
            frames: 0,
            level: Level::default(),
            sounding: Sounding::default(),
            voiced: 0,
            surest: 0.0,
            onset: None,
            silent: 0,
            speaking: false,
            usual: 0.0,
            end_ms: 0,
        }
    }

    /// Milliseconds heard so far.
    pub(super) const fn position_ms(&self) -> u64 {
        self.frames * FRAME_MS
    }

    pub(super) const fn end_ms(&self) -> u64 {
        self.end_ms
    }

    /// So many samples at `rate_hz` are not listened to; gives how many: whole frames, so that positions stay exact.
    pub(super) fn pass(&mut self, samples: usize, rate_hz: u32) -> usize {
        let frame = FRAME * rate_hz as usize / RATE_HZ as usize;
        let frames = samples / frame;
        if frames == 0 {
            return 0;
        }
        self.frames += frames as u64;
        self.detector.reset();
        self.sounding = Sounding::default();
        if !self.speaking {
            self.unvoiced();
        }
        frames * frame
    }

    /// Samples at `rate_hz` came; what they began and ended is appended to `heard`.
    pub(super) fn hear(
        &mut self,
        samples: &[i16],
        rate_hz: u32,
        settings: &TurnSettings,
        heard: &mut Vec<Turn>,
    ) {
        let floats: Vec<f32> = samples.iter().map(|sample| codecs::pcm::from_i16(*sample)).collect();
        if self.resampler.as_ref().is_none_or(|(from, _)| *from != rate_hz) {
            // Both rates are within the resampler's bounds, so it is always made.
            self.resampler = Resampler::new(rate_hz, RATE_HZ).ok().map(|made| (rate_hz, made));
        }
        if let Some((_, resampler)) = &mut self.resampler
            && resampler.push(&floats, &mut self.waiting).is_err()
        {
            // Integers are always finite.
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (frames, rest) = waiting.as_chunks::<FRAME>();
        for frame in frames {
            let mut frame = *frame;
            // Telephones have gain of their own, and their codes make noise of silence.
            if rate_hz > TELEPHONE_HZ {
                self.level.raise(&mut frame);
            }
            self.sounding.hear(&frame);
            let score = self.detector.predict_f32(&frame);
            heard.extend(self.judge(score, settings));
        }
        self.waiting = rest.to_vec();
    }

    /// A turn that goes on is over: its audio was committed, or cleared.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.speaking) {
            self.end_ms = self.position_ms();
        }
        self.unvoiced();
    }

    /// What may have been beginning was no turn, or is one that has ended.
    const fn unvoiced(&mut self) {
        (self.voiced, self.surest, self.onset) = (0, 0.0, None);
    }

    /// The usual score, which follows this one. Of a session's first half second it is a mean in which the newest counts most.
    fn follow(&mut self, score: f32) -> f32 {
        let share = match self.speaking {
            true => FOLLOWS_IN_TURN,
            false if self.frames * FRAME_MS < 500 => 2.0 / (self.frames + 1) as f32,
            false if self.voiced > 0 => 0.0,
            false => FOLLOWS,
        };
        self.usual = (self.usual + (score - self.usual) * share).min(USUAL_MAX);
        self.usual
    }

    fn judge(&mut self, score: f32, settings: &TurnSettings) -> Option<Turn> {
        self.frames += 1;
        let above_usual = self.follow(score) + ABOVE_USUAL;
        if !self.speaking {
            if score < settings.threshold.max(above_usual) {
                self.unvoiced();
                return None;
            }
            (self.voiced, self.surest) = (self.voiced + 1, self.surest.max(score));
            if self.onset.is_none() {
                let sounded = self.sounding.voice().map(|frames| frames.min(self.voiced));
                self.onset = sounded.map(|frames| self.frames.saturating_sub(frames));
            }
            let sure = self.surest >= (settings.threshold + MARGIN).max(above_usual).min(SURE_MAX);
            let onset = self.onset.filter(|_| sure)? * FRAME_MS;
            (self.speaking, self.silent) = (true, 0);
            return Some(Turn::Started { at_ms: onset.saturating_sub(settings.prefix_ms).max(self.end_ms) });
        }
        let voice = score >= (settings.threshold - MARGIN).max(above_usual) && self.sounding.goes_on();
        self.silent = if voice { 0 } else { self.silent + 1 };
        if self.silent * FRAME_MS < settings.silence_ms {
            return None;
        }
        self.speaking = false;
        self.unvoiced();
        self.end_ms = self.position_ms();
        Some(Turn::Stopped { at_ms: self.end_ms })
    }
}
