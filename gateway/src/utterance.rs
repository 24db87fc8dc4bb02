//! One whole text through an engine, as `POST /v1/audio/speech` and `voxlane speak` need it: segments
//! fed as room comes, outputs taken as they are made, packets encoded on the pool.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use contract::{
    ContextId, EngineError, EngineHandle, FinishReason, OpenContext, Output, Playback, Span, Tick, Usage,
};
use proto::alignment::{Alignment, Pace, TimedCharacter};
use proto::at_wire_clock;
use proto::catalog::Target;
use proto::reader::Part;
use proto::shape::Shape;
use proto::wire::Speed;
use tokio::sync::mpsc;

use crate::app::App;
use crate::encode::{Encoded, EncodedPacket, Job, REPLIES_PER_JOB, StreamEncoder};
use crate::output::{Level, QueueSink, Tagged, queue_bound};
use crate::usage::{Account, joined};

/// How long to wait before offering text again that an engine had no room for.
const RETRY: Duration = Duration::from_millis(20);

/// Audio the taker is always thought to have: enough that its chunks are never urgent, so that a file
/// being made takes nothing from a listener's first audio.
const TAKER_LEAD: Span = Span::from_millis(3_000);

/// Samples waiting for the encoder above which no more are taken from the engine's queue, in seconds.
const WAITING_SECONDS_MAX: usize = 30;

/// An open context that speaks a whole text. Dropping it cancels what is left.
pub(crate) struct Utterance {
    engine: Arc<dyn EngineHandle>,
    context: ContextId,
    app: Arc<App>,
    parts: VecDeque<Part>,
    shape: Shape,
    outputs: mpsc::Receiver<Box<Tagged>>,
    level: Arc<Level>,
    encoded: mpsc::Receiver<Box<Encoded>>,
    reply: mpsc::Sender<Box<Encoded>>,
    /// At home between jobs.
    encoder: Option<Box<StreamEncoder>>,
    waiting: VecDeque<f32>,
    last: Option<(FinishReason, Usage, Option<EngineError>)>,
    encoder_finished: bool,
    started: Option<Tick>,
    taken: Span,
    sample_rate: u32,
    /// Hertz at which the model's samples are heard: positions of the alignment follow from it.
    heard_rate: u32,
    /// What was used so far.
    usage: Usage,
    /// Into whose account that goes, until it has.
    account: Option<Account>,
    whole: Option<Whole>,
    /// When characters sound, where somebody wants to know.
    alignment: Option<Alignment>,
    ended: bool,
}

/// An answer that is made when all of its sound is there.
struct Whole {
    samples_max: usize,
    /// Loudness to bring it to, in LUFS.
    lufs: Option<i8>,
    overflowed: bool,
}

/// What comes out, in order.
pub(crate) enum Step {
    Packets(Vec<EncodedPacket>),
    /// The last thing.
    Finished {
        reason: FinishReason,
        usage: Usage,
        error: Option<EngineError>,
    },
}

impl Utterance {
    /// Opens a context for `text`, read and cut as `target` says.
    ///
    /// # Errors
    /// The engine's refusal.
    pub(crate) fn open(
        app: &Arc<App>,
        engine: &Arc<dyn EngineHandle>,
        request: OpenContext,
        target: &Target,
        text: &str,
        encoder: StreamEncoder,
    ) -> Result<Self, EngineError> {
        let mut reader = target.reader();
        let mut parts = Vec::new();
        reader.push(text, &mut parts);
        reader.flush(&mut parts);
        for reading in reader.take_readings() {
            tracing::debug!(
                at = reading.at,
                original = reading.original,
                said = reading.said,
                "read for the ear"
            );
        }
        let (queue, outputs) = mpsc::channel(queue_bound(1));
        let samples_max = engine.info().limits.output_samples_max;
        let (sink, level) = QueueSink::new(0, queue, samples_max);
        let (reply, encoded) = mpsc::channel(REPLIES_PER_JOB);
        if let Some(refusal) = app.encode.refusal() {
            return Err(refusal);
        }
        let context = engine.open(request, sink)?;
        Ok(Self {
            engine: Arc::clone(engine),
            context,
            app: Arc::clone(app),
            parts: parts.into(),
            shape: target.shape(),
            outputs,
            level,
            encoded,
            reply,
            encoder: Some(Box::new(encoder)),
            waiting: VecDeque::new(),
            last: None,
            encoder_finished: false,
            started: None,
            taken: Span::ZERO,
            sample_rate: target.sample_rate,
            heard_rate: target.sample_rate,
            usage: Usage { characters: text.chars().count() as u64, ..Usage::default() },
            account: None,
            whole: None,
            alignment: None,
            ended: false,
        })
    }

    /// Whatever way it ends, it goes into this account.
    pub(crate) fn charge(&mut self, account: Account) {
        self.account = Some(account);
    }

    /// Packets come only when all the sound is there, at most `seconds` of it, brought to a loudness as a
    /// whole. To be called before the first step.
    pub(crate) fn keep_whole(&mut self, seconds: u64, lufs: Option<i8>) {
        let samples_max = usize::try_from(seconds * u64::from(self.sample_rate)).unwrap_or(usize::MAX);
        self.whole = Some(Whole { samples_max, lufs, overflowed: false });
    }

    /// Hertz of the model.
    pub(crate) fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Whether it failed because it is longer than [`Utterance::keep_whole`] allows.
    pub(crate) fn is_too_long(&self) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.overflowed)
    }

    /// From now on [`Utterance::times`] knows when characters sound, heard at `speed`. To be called before the first step.
    pub(crate) fn keep_times(&mut self, pace: Pace, speed: Speed) {
        self.heard_rate = speed.heard_rate(self.sample_rate);
        let mut alignment = Alignment::with_times().knowing(pace).at_speed(speed);
        for part in &self.parts {
            alignment.handle_part(part);
        }
        self.alignment = Some(alignment);
    }

    /// What is known of the voice's pace by now.
    pub(crate) fn pace(&self) -> Pace {
        self.alignment.as_ref().map(Alignment::pace).unwrap_or_default()
    }

    /// The characters that begin before 48 kHz position `until` and were not given before.
    pub(crate) fn times(&mut self, until: u64) -> Vec<TimedCharacter> {
        let Some(alignment) = &mut self.alignment else { return Vec::new() };
        let times = alignment.timed(until);
        alignment.forget(until);
        times
    }

    /// The next step; nothing follows [`Step::Finished`].
    pub(crate) async fn next(&mut self) -> Step {
        loop {
            let stuck = !self.encode();
            if self.encoder_finished
                && let Some((reason, usage, error)) = self.last.take()
            {
                self.ended = true;
                self.usage = joined(self.usage, usage);
                self.settle(reason);
                return Step::Finished { reason, usage: self.usage, error };
            }
            let hungry = self.feed();
            if self.last.is_some() && self.encoder.is_some() && !stuck && !self.encoder_finished {
                // Feeding failed: only the encoder's end is left.
                continue;
            }
            let room =
                self.whole.is_some() || self.waiting.len() < WAITING_SECONDS_MAX * self.sample_rate as usize;
            tokio::select! {
                output = self.outputs.recv(), if self.last.is_none() && room => self.output(output),
                encoded = self.encoded.recv() => {
                    if let Some(packets) = encoded.and_then(|encoded| self.packets(*encoded)) {
                        return Step::Packets(packets);
                    }
                }
                () = tokio::time::sleep(RETRY), if hungry || stuck => {}
            }
        }
    }

    /// The taker has taken audio of this playing time: moves the engine's deadlines.
    pub(crate) fn taken(&mut self, span: Span) {
        let now = self.app.clock.now();
        self.taken += span;
        let started = *self.started.get_or_insert(now);
        // Whoever takes faster than real time is served faster, but never as urgent.
        let zero = (now + -(self.taken + -TAKER_LEAD)).min(started + TAKER_LEAD)
            + self.shape.ahead(self.sample_rate);
        self.engine.playback(self.context, Playback::Playing { zero });
    }

    /// The taker does not take: the engine may rest.
    pub(crate) fn pause(&self) {
        self.engine.playback(
            self.context,
            Playback::Paused { played: (self.taken - self.shape.ahead(self.sample_rate)).max(Span::ZERO) },
        );
    }

    /// Gives text as long as there is room; true while some is left for later.
    fn feed(&mut self) -> bool {
        while let Some(part) = self.parts.front() {
            let given = match part {
                Part::Speak { said, .. } => self
                    .engine
                    .push_text(self.context, said)
                    .map(|accepted| self.usage.text_ids += u64::from(accepted.ids)),
                Part::Cut => self.engine.end_segment(self.context).map(|_| self.shape.handle_cut()),
                Part::Pause { ms, .. } => {
                    let silence = self.shape.handle_pause(*ms);
                    self.wait(&silence);
                    Ok(())
                }
                Part::Skip(_) => Ok(()),
            };
            match given {
                Ok(()) => drop(self.parts.pop_front()),
                Err(EngineError::Overloaded { .. } | EngineError::TextTooLong { .. }) => return true,
                Err(error) => {
                    self.parts.clear();
                    self.fail(error);
                    return false;
                }
            }
            if self.parts.is_empty() {
                return self.finish();
            }
        }
        false
    }

    fn finish(&mut self) -> bool {
        match self.engine.finish(self.context) {
            Ok(()) => false,
            Err(EngineError::Overloaded { .. }) => {
                // An ended segment may be ended again: an empty one is nothing.
                self.parts.push_back(Part::Cut);
                true
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// A refusal of text ends the utterance; a context that closed by itself says why in its output.
    fn fail(&mut self, error: EngineError) {
        if self.last.is_none() && error != EngineError::ContextClosed {
            self.engine.cancel(self.context);
            self.last = Some((FinishReason::Failed, Usage::default(), Some(error)));
        }
    }

    fn output(&mut self, tagged: Option<Box<Tagged>>) {
        let Some(output) = tagged.map(|tagged| tagged.output) else {
            let what = "the engine let go of the context without a word".to_owned();
            return self.fail(EngineError::Internal { what });
        };
        self.level.taken(&output);
        match output {
            Output::Chunk(chunk) => {
                self.usage.frames += u64::from(chunk.frames);
                self.usage.samples += chunk.samples.len() as u64;
                if self.whole.is_some() {
                    self.taken(Span::of_samples(chunk.samples.len() as u64, self.sample_rate));
                }
                let first = self.shape.given();
                let samples = self.shape.handle_samples(chunk.segment, chunk.samples);
                if let Some(alignment) = &mut self.alignment {
                    alignment.handle_chunk(chunk.segment, first, &samples, self.heard_rate);
                }
                self.wait(&samples);
            }
            Output::Finished { reason, usage, error } => {
                let rest = self.shape.finish();
                self.wait(&rest);
                self.level();
                self.last.get_or_insert((reason, usage, error));
            }
            Output::SegmentFinished { segment, end_sample, .. } => {
                if let Some(alignment) = &mut self.alignment {
                    alignment.handle_segment_end(segment, at_wire_clock(self.shape.given(), self.heard_rate));
                }
                tracing::debug!(segment, end_sample, "segment spoken");
                let pause = self.shape.handle_segment_end(segment);
                self.wait(&pause);
            }
        }
    }

    /// Samples for the encoder.
    fn wait(&mut self, samples: &[f32]) {
        self.waiting.extend(samples);
        if let Some(whole) = &mut self.whole
            && self.waiting.len() > whole.samples_max
        {
            whole.overflowed = true;
            self.waiting.clear();
            self.fail(EngineError::OutputFull);
        }
    }

    /// Brings a whole answer to its loudness, once all of it waits.
    fn level(&mut self) {
        let Some(lufs) = self.whole.as_ref().and_then(|whole| whole.lufs) else { return };
        let samples = self.waiting.make_contiguous();
        if let Err(error) = codecs::loudness::level(samples, self.sample_rate, f64::from(lufs)) {
            self.fail(EngineError::Internal { what: format!("levelling failed: {error}") });
        }
    }

    /// Writes what was used into the account.
    fn settle(&mut self, reason: FinishReason) {
        self.app.metrics.context_finished(reason.name());
        if let Some(account) = self.account.take() {
            self.app.usage.spoken(&account, None, reason, &self.usage, self.sample_rate);
        }
    }

    /// Gives the encoder what waits, if it is at home; false when the pool has no room.
    fn encode(&mut self) -> bool {
        let finish = self.last.is_some();
        if !finish && self.whole.is_some() {
            return true;
        }
        if self.encoder_finished || (self.waiting.is_empty() && !finish) {
            return true;
        }
        let Some(encoder) = self.encoder.take() else { return true };
        // A second at a time keeps one file's making from holding the pool.
        let count = self.waiting.len().min(self.sample_rate as usize);
        let samples: Vec<f32> = self.waiting.drain(..count).collect();
        let finish = finish && self.waiting.is_empty();
        let job = Job { key: 0, encoder, samples, finish, reply: self.reply.clone() };
        if let Err(job) = self.app.encode.submit(job) {
            let Job { encoder, samples, .. } = *job;
            self.encoder = Some(encoder);
            for sample in samples.into_iter().rev() {
                self.waiting.push_front(sample);
            }
            return false;
        }
        true
    }

    fn packets(&mut self, encoded: Encoded) -> Option<Vec<EncodedPacket>> {
        if encoded.encoder.is_some() {
            self.encoder = encoded.encoder;
        }
        self.encoder_finished |= encoded.finished;
        if let Some(error) = encoded.failed {
            let what = format!("encoding failed: {error}");
            self.encoder_finished = true;
            self.fail(EngineError::Internal { what });
        }
        (!encoded.packets.is_empty()).then_some(encoded.packets)
    }
}

impl Drop for Utterance {
    fn drop(&mut self) {
        if !self.ended {
            self.engine.cancel(self.context);
            self.settle(FinishReason::Cancelled);
        }
    }
}
