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
use proto::segmenter::{Piece, Segmenter, Zones};
use tokio::sync::mpsc;

use crate::app::App;
use crate::encode::{Encoded, EncodedPacket, Job, REPLIES_PER_JOB, StreamEncoder};
use crate::output::{Level, QueueSink, Tagged, queue_bound};

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
    pieces: VecDeque<Piece>,
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
    /// When characters sound, where somebody wants to know.
    alignment: Option<Alignment>,
    ended: bool,
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
    /// Opens a context for `text`, cut by `zones`. `sample_rate` is the model's.
    ///
    /// # Errors
    /// The engine's refusal.
    pub(crate) fn open(
        app: &Arc<App>,
        engine: &Arc<dyn EngineHandle>,
        request: OpenContext,
        (zones, sample_rate): (Zones, u32),
        text: &str,
        encoder: StreamEncoder,
    ) -> Result<Self, EngineError> {
        let mut segmenter = Segmenter::new(zones);
        let mut pieces = Vec::new();
        segmenter.push(text, &mut pieces);
        segmenter.flush(&mut pieces);
        let (queue, outputs) = mpsc::channel(queue_bound(1));
        let samples_max = engine.info().limits.output_samples_max;
        let (sink, level) = QueueSink::new(0, queue, samples_max);
        let (reply, encoded) = mpsc::channel(REPLIES_PER_JOB);
        let context = engine.open(request, sink)?;
        Ok(Self {
            engine: Arc::clone(engine),
            context,
            app: Arc::clone(app),
            pieces: pieces.into(),
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
            sample_rate,
            alignment: None,
            ended: false,
        })
    }

    /// From now on [`Utterance::times`] knows when characters sound. To be called before the first step.
    pub(crate) fn keep_times(&mut self, pace: Pace) {
        let mut alignment = Alignment::with_times().knowing(pace);
        for piece in &self.pieces {
            alignment.handle_piece(piece);
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
                return Step::Finished { reason, usage, error };
            }
            let hungry = self.feed();
            if self.last.is_some() && self.encoder.is_some() && !stuck && !self.encoder_finished {
                // Feeding failed: only the encoder's end is left.
                continue;
            }
            let room = self.waiting.len() < WAITING_SECONDS_MAX * self.sample_rate as usize;
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
        let zero = (now + -(self.taken + -TAKER_LEAD)).min(started + TAKER_LEAD);
        self.engine.playback(self.context, Playback::Playing { zero });
    }

    /// The taker does not take: the engine may rest.
    pub(crate) fn pause(&self) {
        self.engine.playback(self.context, Playback::Paused { played: self.taken });
    }

    /// Gives text as long as there is room; true while some is left for later.
    fn feed(&mut self) -> bool {
        while let Some(piece) = self.pieces.front() {
            let given = match piece {
                Piece::Speak(text) => self.engine.push_text(self.context, text).map(|_| ()),
                Piece::Cut => self.engine.end_segment(self.context).map(|_| ()),
                Piece::Skip(_) => Ok(()),
            };
            match given {
                Ok(()) => drop(self.pieces.pop_front()),
                Err(EngineError::Overloaded { .. } | EngineError::TextTooLong { .. }) => return true,
                Err(error) => {
                    self.pieces.clear();
                    self.fail(error);
                    return false;
                }
            }
            if self.pieces.is_empty() {
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
                self.pieces.push_back(Piece::Cut);
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
                if let Some(alignment) = &mut self.alignment {
                    let rate = self.sample_rate;
                    alignment.handle_chunk(chunk.segment, chunk.first_sample, &chunk.samples, rate);
                }
                self.waiting.extend(chunk.samples.iter());
            }
            Output::Finished { reason, usage, error } => self.last = Some((reason, usage, error)),
            Output::SegmentFinished { segment, end_sample, .. } => {
                if let Some(alignment) = &mut self.alignment {
                    alignment.handle_segment_end(segment, at_wire_clock(end_sample, self.sample_rate));
                }
                tracing::debug!(segment, end_sample, "segment spoken");
            }
        }
    }

    /// Gives the encoder what waits, if it is at home; false when the pool has no room.
    fn encode(&mut self) -> bool {
        let finish = self.last.is_some();
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
        }
    }
}
