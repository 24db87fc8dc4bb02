//! A plain engine loop for tests: one launch at a time, everything else as the runtime does it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use contract::{
    Lane, LaunchId, Layout, ModelId, OpenContext, Partition, Sampling, ShapeKey, Stage, Tick, VoiceChoice,
};
use device::{Backend, ExecutableId, HostTensor, Launch, Program};
use models::{
    Capacity, CodecRow, DecodeRow, EncodeWork, ModelSource, NextText, PlacedModel, PrefillRow, Prompt,
    SpeechPlan, StageFacts, StageInputs, TextLogic, VoiceFeatures,
};

pub(crate) const SLOTS: u32 = 12;
/// Never given to a context.
pub(crate) const PRIMING_SLOT: u32 = SLOTS - 1;
const PAGE_LEN: u32 = 16;
const POSITIONS_MAX: u32 = 512;
/// Tokens of one prefill.
const TOKENS_MAX: u32 = 2048;

pub(crate) struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) placed: Box<dyn PlacedModel>,
    pub(crate) text: Arc<dyn TextLogic>,
    pub(crate) facts: StageFacts,
    slots: u32,
    executables: BTreeMap<(Stage, u32), ExecutableId>,
    launches: u64,
    /// Hears of each launch that finished.
    finished: Receiver<()>,
    /// What becomes of a stage's program before it is built.
    pub(crate) rewrite: fn(Program) -> Program,
}

/// One utterance to make.
#[derive(Clone)]
pub(crate) struct Utterance {
    pub(crate) plan: SpeechPlan,
    pub(crate) voice: Option<Arc<VoiceFeatures>>,
    pub(crate) text_ids: Vec<u32>,
    pub(crate) seed: u64,
    pub(crate) frames_max: usize,
}

/// A running context.
pub(crate) struct Running {
    utterance: Utterance,
    prompt: Prompt,
    slot: u32,
    pages: Vec<u32>,
    next_text: usize,
    position: u32,
    pub(crate) codes: Vec<Vec<i32>>,
    pub(crate) ended: bool,
}

impl Engine {
    pub(crate) fn open(dir: &Path) -> Self {
        Self::open_for(dir, SLOTS)
    }

    /// With room for so many contexts at once.
    pub(crate) fn open_for(dir: &Path, slots: u32) -> Self {
        Self::on(backend(slots), dir, slots)
    }

    /// On the CPU, whatever device is asked for.
    pub(crate) fn on_cpu(dir: &Path) -> Self {
        Self::on(cpu_backend(SLOTS), dir, SLOTS)
    }

    fn on((mut backend, finished): (Box<dyn Backend>, Receiver<()>), dir: &Path, slots: u32) -> Self {
        let model = models::open(ModelSource::Dir(dir.to_owned()), "test")
            .unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let (text, facts) = (model.text(), model.facts().clone());
        let pages = 1 + slots * POSITIONS_MAX / PAGE_LEN;
        let capacity = Capacity { slots, pages, page_len: PAGE_LEN, positions_max: POSITIONS_MAX };
        let placed = model.place(&mut *backend, capacity).expect("the checkpoint fits");
        Self {
            backend,
            placed,
            text,
            facts,
            slots,
            executables: BTreeMap::new(),
            launches: 0,
            finished,
            rewrite: |program| program,
        }
    }

    /// Builds and runs any program once.
    pub(crate) fn run(&mut self, program: &Program, inputs: StageInputs) -> Vec<HostTensor> {
        let key = self.key(Stage::Encode, TOKENS_MAX);
        let executable = self.backend.build(key, program).unwrap_or_else(|error| panic!("{error}"));
        let outputs = self.launch(executable, inputs);
        self.backend.release(executable);
        outputs
    }

    pub(crate) fn stage(&mut self, stage: Stage, length: u32, inputs: StageInputs) -> Vec<HostTensor> {
        let executable = match self.executables.get(&(stage, length)) {
            Some(&executable) => executable,
            None => {
                let key = self.key(stage, length.max(TOKENS_MAX));
                let program = (self.rewrite)(self.placed.program(stage, length).expect("a captured length"));
                let executable = self.backend.build(key, &program).unwrap_or_else(|error| panic!("{error}"));
                self.executables.insert((stage, length), executable);
                executable
            }
        };
        self.launch(executable, inputs)
    }

    fn key(&self, stage: Stage, length: u32) -> ShapeKey {
        ShapeKey { model: ModelId(0), stage, bucket: self.slots, length, partition: Partition::Whole }
    }

    fn launch(&mut self, executable: ExecutableId, inputs: StageInputs) -> Vec<HostTensor> {
        self.launches += 1;
        let StageInputs { rows, tokens, inputs } = inputs;
        let launch = LaunchId(self.launches);
        self.backend
            .launch(Launch { launch, lane: Lane::Lm, executable, rows, tokens, inputs, wanted: Vec::new() })
            .unwrap_or_else(|error| panic!("{error}"));
        loop {
            if let Some(done) = self.backend.poll() {
                assert_eq!(done.launch, launch);
                return done.result.unwrap_or_else(|error| panic!("{error}"));
            }
            self.finished.recv().expect("the backend keeps its end");
        }
    }

    pub(crate) fn plan(
        &self,
        voice: VoiceChoice,
        layout: Layout,
        language: Option<&str>,
        sampling: Sampling,
    ) -> SpeechPlan {
        self.plan_instructed(voice, layout, language, None, sampling)
    }

    pub(crate) fn plan_instructed(
        &self,
        voice: VoiceChoice,
        layout: Layout,
        language: Option<&str>,
        instructions: Option<&str>,
        sampling: Sampling,
    ) -> SpeechPlan {
        let request = OpenContext {
            model: "test".to_owned(),
            voice,
            language: language.map(str::to_owned),
            instructions: instructions.map(str::to_owned),
            layout,
            sampling,
            arrival: Tick::default(),
            tenant: 0,
            exact_frames: None,
        };
        self.text.plan(&request).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn ids(&self, text: &str) -> Vec<u32> {
        let mut segment = self.text.segment();
        let mut ids = segment.push(text).expect("plain text");
        ids.extend(segment.end());
        ids
    }

    /// Does one piece of an encoding; the features when it is done.
    pub(crate) fn encode_step(&mut self, work: EncodeWork) -> Result<Vec<HostTensor>, Arc<VoiceFeatures>> {
        Ok(match work {
            EncodeWork::Launch { program, inputs } => {
                let program = self.placed.encode_program(program).expect("a known part");
                self.run(&program, StageInputs { rows: 1, tokens: 0, inputs })
            }
            EncodeWork::Codec { length, start, codes } => {
                let row = CodecRow { slot: PRIMING_SLOT, start, codes: &codes };
                let inputs = self.placed.codec_inputs(&[row], length);
                self.stage(Stage::Codec, length, inputs);
                Vec::new()
            }
            EncodeWork::ReadStates { states } => states
                .into_iter()
                .map(|state| self.backend.read_state(state, PRIMING_SLOT).expect("the state exists"))
                .collect(),
            EncodeWork::Done(features) => return Err(Arc::new(features)),
        })
    }

    /// Makes a prompt and takes the slot's own pages, scattered so that page order matters.
    pub(crate) fn admit(&self, utterance: Utterance, slot: u32) -> Running {
        let voice = utterance.voice.as_deref();
        let prompt = self
            .placed
            .prompt(&utterance.plan, voice, &utterance.text_ids, true)
            .unwrap_or_else(|error| panic!("{error}"));
        let per_slot = POSITIONS_MAX / PAGE_LEN;
        let pages = (0..per_slot).rev().map(|page| 1 + page * self.slots + slot).collect();
        let position = prompt.positions() as u32;
        let next_text = prompt.text_ids_used;
        Running { utterance, prompt, slot, pages, next_text, position, codes: Vec::new(), ended: false }
    }

    /// Frame 0 of all rows.
    pub(crate) fn prefill(&mut self, rows: &mut [Running]) {
        let inputs: Vec<_> = rows.iter().map(Running::prefill_row).collect();
        let inputs = self.placed.prefill_inputs(&inputs, &[]);
        let outputs = self.stage(Stage::Prefill, 0, inputs);
        self.commit(rows.iter_mut().collect(), &outputs);
    }

    /// Takes a frame of each row, of which the first `begun` were prompts and the others stepped.
    pub(crate) fn commit_led(&self, mut rows: Vec<&mut Running>, begun: usize, outputs: &[HostTensor]) {
        for row in &mut rows[begun..] {
            row.position += 1;
        }
        self.commit(rows, outputs);
    }

    /// Frame 0 of `begin`, and beside it one more frame of those in `rows` that have not ended.
    pub(crate) fn prefill_with_riders(&mut self, begin: &mut [Running], rows: &mut [Running]) {
        let mut live: Vec<&mut Running> = rows.iter_mut().filter(|row| !row.ended).collect();
        let texts: Vec<NextText> = live.iter_mut().map(|row| row.take_text()).collect();
        let riders: Vec<_> = live.iter().zip(texts).map(|(row, text)| row.decode_row(text)).collect();
        let prompts: Vec<_> = begin.iter().map(Running::prefill_row).collect();
        let inputs = self.placed.prefill_inputs(&prompts, &riders);
        let outputs = self.stage(Stage::Prefill, 0, inputs);
        let begun = begin.len();
        self.commit_led(begin.iter_mut().chain(live).collect(), begun, &outputs);
    }

    /// One more frame of all rows that have not ended.
    pub(crate) fn decode(&mut self, rows: &mut [Running]) {
        let mut live: Vec<&mut Running> = rows.iter_mut().filter(|row| !row.ended).collect();
        if live.is_empty() {
            return;
        }
        let texts: Vec<NextText> = live.iter_mut().map(|row| row.take_text()).collect();
        let inputs: Vec<_> = live.iter().zip(texts).map(|(row, text)| row.decode_row(text)).collect();
        let inputs = self.placed.decode_inputs(&inputs);
        let outputs = self.stage(Stage::Decode, 0, inputs);
        self.commit_led(live, 0, &outputs);
    }

    fn commit(&self, rows: Vec<&mut Running>, outputs: &[HostTensor]) {
        let outcomes = self.placed.frames(outputs).expect("frames");
        assert_eq!(outcomes.len(), rows.len());
        for (row, outcome) in rows.into_iter().zip(outcomes) {
            if outcome.end {
                row.ended = true;
            } else {
                row.codes.push(outcome.codes.to_vec());
                row.ended = row.codes.len() >= row.utterance.frames_max;
            }
        }
    }

    /// One utterance alone, in a slot.
    pub(crate) fn speak(&mut self, utterance: Utterance, slot: u32) -> Running {
        let mut rows = [self.admit(utterance, slot)];
        self.prefill(&mut rows);
        while !rows[0].ended {
            self.decode(&mut rows);
        }
        let [row] = rows;
        row
    }

    /// Decodes `codes` in chunks of the given sizes, of which the last repeats; chunks longer than the
    /// longest captured length take several calls.
    pub(crate) fn sound(&mut self, codes: &[Vec<i32>], cuts: &[usize], slot: u32, start: u32) -> Vec<f32> {
        let mut samples = Vec::new();
        let mut rest = codes;
        let mut done = start;
        for chunk in 0.. {
            let frames = cuts[chunk.min(cuts.len() - 1)].min(rest.len());
            if frames == 0 {
                break;
            }
            let (chunk, later) = rest.split_at(frames);
            rest = later;
            for part in chunk.chunks(*self.facts.codec_lengths.last().expect("lengths") as usize) {
                samples.extend(self.chunk(part, slot, done));
                done += part.len() as u32;
            }
        }
        samples
    }

    /// One chunk through the shortest captured length that holds it.
    fn chunk(&mut self, codes: &[Vec<i32>], slot: u32, start: u32) -> Vec<f32> {
        let frames = codes.len() as u32;
        let length = *self.facts.codec_lengths.iter().find(|&&length| length >= frames).expect("it fits");
        let flat = codes.concat();
        let inputs = self.placed.codec_inputs(&[CodecRow { slot, start, codes: &flat }], length);
        let outputs = self.stage(Stage::Codec, length, inputs);
        self.samples(&outputs, 1, 0, frames)
    }

    /// Samples of one row of so many.
    pub(crate) fn samples(&self, outputs: &[HostTensor], rows: usize, row: usize, frames: u32) -> Vec<f32> {
        let [HostTensor::F32(samples)] = outputs else { panic!("samples") };
        let row = &samples[samples.len() / rows * row..][..self.placed.samples(frames)];
        assert!(row.iter().all(|sample| sample.is_finite()));
        row.to_vec()
    }

    /// Decodes `codes` in one call, through a program of that very length.
    pub(crate) fn sound_at_once(&mut self, codes: &[Vec<i32>]) -> Vec<f32> {
        let length = codes.len() as u32;
        let flat = codes.concat();
        let inputs = self.placed.codec_inputs(&[CodecRow { slot: 0, start: 0, codes: &flat }], length);
        let program = self.placed.program(Stage::Codec, length).expect("any length");
        let outputs = self.run(&program, inputs);
        self.samples(&outputs, 1, 0, length)
    }

    /// Puts a voice's primed codec into a slot; gives the first chunk's start.
    pub(crate) fn prime(&mut self, voice: Option<&VoiceFeatures>, slot: u32) -> u32 {
        let Some(voice) = voice else { return 0 };
        for (state, row) in voice.codec_image() {
            self.backend.write_state(*state, slot, row).expect("the state exists");
        }
        voice.codec_start()
    }
}

impl Running {
    pub(crate) fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    pub(crate) fn prefill_row(&self) -> PrefillRow<'_> {
        PrefillRow {
            slot: self.slot,
            prompt: &self.prompt,
            pages: &self.pages,
            from: 0,
            sampling: self.utterance.plan.sampling,
            seed: self.utterance.seed,
            allow_end: true,
        }
    }

    /// The text side of the next step, as the runtime feeds it.
    pub(crate) fn take_text(&mut self) -> NextText {
        let before = self.prompt.text_ids_before.len();
        let fed = self.next_text - self.prompt.text_ids_used;
        self.next_text += 1;
        if fed < before {
            return NextText::Id(self.prompt.text_ids_before[fed]);
        }
        let index = self.prompt.text_ids_used + fed - before;
        match self.utterance.text_ids.get(index) {
            Some(&id) => NextText::Id(id),
            None if index == self.utterance.text_ids.len() && !self.prompt.text_end_used => NextText::End,
            None => NextText::Padding,
        }
    }

    pub(crate) fn decode_row(&self, text: NextText) -> DecodeRow<'_> {
        DecodeRow {
            slot: self.slot,
            position: self.position,
            step: self.codes.len() as u32,
            text,
            pages: &self.pages,
            sampling: self.utterance.plan.sampling,
            seed: self.utterance.seed,
            allow_end: true,
        }
    }
}

/// Greedy, as the goldens were made.
pub(crate) fn greedy() -> Sampling {
    Sampling {
        temperature: Some(0.0),
        sub_temperature: Some(0.0),
        repetition_penalty: Some(1.0),
        ..Sampling::default()
    }
}

/// The CUDA device these tests are to run on, as `VOXLANE_TEST_DEVICE` names it (`cuda:N`); else the CPU.
fn device_asked() -> Option<u32> {
    let name = std::env::var("VOXLANE_TEST_DEVICE").ok()?;
    name.strip_prefix("cuda:").map(|ordinal| ordinal.parse().expect("cuda:N"))
}

/// Whether a device is asked for that rounds to 16 bits.
pub(crate) fn is_bf16() -> bool {
    device_asked().is_some() && std::env::var("VOXLANE_TEST_PRECISION").is_ok_and(|name| name == "bf16")
}

/// What rings when a launch has ended.
fn bell() -> (Arc<dyn Fn() + Send + Sync>, Receiver<()>) {
    let (finish, finished) = std::sync::mpsc::sync_channel(64);
    // A full channel already wakes the reader.
    let notify = Arc::new(move || {
        let _ = finish.try_send(());
    });
    (notify, finished)
}

fn backend(slots: u32) -> (Box<dyn Backend>, Receiver<()>) {
    let Some(ordinal) = device_asked() else { return cpu_backend(slots) };
    let (notify, finished) = bell();
    let mut options = cuda::CudaOptions::new(ordinal, slots as usize, Arc::new(Tick::default), notify);
    options.precision = if is_bf16() { cuda::Precision::Bf16 } else { cuda::Precision::F32 };
    options.poison = true;
    options.kernel_cache = std::env::var_os("VOXLANE_TEST_KERNELS").map(Into::into);
    let backend = cuda::CudaBackend::open(options).unwrap_or_else(|error| panic!("{error}"));
    (Box::new(backend), finished)
}

fn cpu_backend(slots: u32) -> (Box<dyn Backend>, Receiver<()>) {
    let (notify, finished) = bell();
    let mut options = cpu::CpuOptions::new(slots as usize, Arc::new(Tick::default), notify);
    // Values are poisoned between launches, so that nothing is read that was not written.
    options.poison = true;
    (Box::new(cpu::CpuBackend::open(options).unwrap_or_else(|error| panic!("{error}"))), finished)
}
