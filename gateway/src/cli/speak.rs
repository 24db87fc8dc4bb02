//! `voxlane speak TEXT --out F`: the engine in this process, a file as the listener.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use codecs::{AudioLimits, read_audio};
use contract::{
    Clip, CloneMode, EngineError, EngineHandle, FinishReason, Health, Span, Tick, Usage, VoiceChoice,
};
use proto::catalog::{Ask, Target};
use proto::speech::{SpeechFormat, SpeechRequest};
use proto::wire::SamplingFields;

use super::{CommandError, EngineFlags, layers};
use crate::app::App;
use crate::clock::Clock;
use crate::engine::Embedded;
use crate::file::{FileWriter, encoder, playing_time};
use crate::utterance::{Step, Utterance};

/// How long to wait for an engine that cannot promise first audio in time.
const PATIENCE: Span = Span::from_millis(60_000);

/// Longest reference clip taken.
const REFERENCE_MS_MAX: u32 = 30_000;

#[derive(Args, Debug)]
pub(super) struct SpeakFlags {
    /// What to say
    text: String,
    /// File to write; its ending says the form: .wav, .opus or .pcm
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Voice that speaks [default: the model's]
    #[arg(long)]
    voice: Option<String>,
    /// WAV or Ogg Opus clip whose speaker is taken as the voice
    #[arg(long, value_name = "FILE", conflicts_with = "voice")]
    reference: Option<PathBuf>,
    /// The exact words of the clip: clones its manner too, not only its speaker
    #[arg(long, value_name = "TEXT", requires = "reference")]
    reference_text: Option<String>,
    /// Same seed, text and voice: same speech
    #[arg(long)]
    seed: Option<u64>,
    /// How text reaches the model [default: whole]
    #[arg(long, value_name = "whole|streamed")]
    layout: Option<String>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
}

pub(super) fn run(flags: &SpeakFlags, embedded: Option<Embedded>) -> Result<(), CommandError> {
    let format = format_of(&flags.out)?;
    if flags.text.trim().is_empty() {
        return Err(CommandError::Usage("there is nothing to speak; give a text".to_owned()));
    }
    let ask = ask(flags)?;
    let clip = flags.reference.as_deref().map(|path| clip(path, flags.reference_text.clone())).transpose()?;
    let config = flags.engine.apply(layers(flags.config.as_deref())?).resolve()?.config()?;
    crate::logs::start(&config.log);
    let clock = Clock::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(&"cannot start the async runtime", &error))?;
    let engine = crate::engine::open(&config.engine, None, embedded, clock).map_err(CommandError::Failed)?;
    let app = App::new(config, clock).map_err(|error| failed(&"cannot start", &error))?;
    runtime.block_on(async {
        let stop = super::serve::stop_signal().map_err(|error| failed(&"cannot hear signals", &error))?;
        let spoken = async {
            ready(&*engine).await?;
            speak(flags, format, &ask, clip, &app, &engine).await
        };
        // What was written so far goes with the future that wrote it.
        tokio::select! {
            spoken = spoken => spoken,
            () = stop => Err(CommandError::Failed("stopped by a signal; nothing was kept".to_owned())),
        }
    })
}

async fn speak(
    flags: &SpeakFlags,
    format: SpeechFormat,
    ask: &Ask,
    clip: Option<VoiceChoice>,
    app: &Arc<App>,
    engine: &Arc<dyn EngineHandle>,
) -> Result<(), CommandError> {
    let refused = |error: &dyn std::fmt::Display| CommandError::Failed(error.to_string());
    let target = Target::resolve(&engine.info(), ask, SpeechRequest::LAYOUTS, app.config.engine.bench)
        .map_err(|error| refused(&error))?;
    let rate = target.sample_rate;
    let encoder_of = || {
        encoder(format, rate, rate, app.config.opus).map_err(|error| CommandError::Failed(error.to_string()))
    };
    let encoder = encoder_of()?;
    let arrival = app.clock.now();
    let mut request = target.request(arrival, 0);
    if let Some(voice) = clip {
        request.voice = voice;
    }
    let mut out = Out::create(&flags.out, format, rate, encoder.pre_skip_48k())?;
    let open = |request, encoder| {
        Utterance::open(app, engine, request, (target.zones, rate), &flags.text, encoder)
            .map_err(|error| refused(&error))
    };
    let mut utterance = open(request.clone(), encoder)?;
    let mut first: Option<Tick> = None;
    loop {
        match utterance.next().await {
            // A file has time: what a server refuses rather than keep a listener waiting is waited for.
            Step::Finished { error: Some(EngineError::Overloaded { retry_after }), .. }
                if first.is_none() && app.clock.now().since(arrival) < PATIENCE =>
            {
                tokio::time::sleep(Duration::from_micros(retry_after.as_micros().max(0).unsigned_abs()))
                    .await;
                request.arrival = app.clock.now();
                let encoder = encoder_of()?;
                utterance = open(request.clone(), encoder)?;
            }
            Step::Packets(packets) => {
                first.get_or_insert_with(|| app.clock.now());
                let span = playing_time(&packets);
                out.write(packets)?;
                utterance.taken(span);
            }
            Step::Finished { reason, usage, error } => {
                out.finish(usage.samples)?;
                let took = app.clock.now().since(arrival);
                report(first.map(|at| at.since(arrival)), took, rate, usage, reason);
                return match error {
                    Some(error) => Err(refused(&error)),
                    None if usage.samples == 0 => Err(CommandError::Failed("nothing was spoken".to_owned())),
                    None => out.keep(),
                };
            }
        }
    }
}

fn report(first: Option<Span>, took: Span, rate: u32, usage: Usage, reason: FinishReason) {
    let audio = Span::of_samples(usage.samples, rate);
    let factor = took.as_micros() as f64 / audio.as_micros().max(1) as f64;
    match first {
        Some(first) => println!("first audio  {:.1} ms", first.as_micros() as f64 / 1_000.0),
        None => println!("first audio  none"),
    }
    println!("audio        {:.2} s, {} frames", audio.as_micros() as f64 / 1e6, usage.frames);
    println!("RTF          {factor:.3}");
    println!("characters   {}", usage.characters);
    println!("reason       {}", reason.name());
}

fn ask(flags: &SpeakFlags) -> Result<Ask, CommandError> {
    let layout = match flags.layout.as_deref() {
        None => None,
        Some("whole") => Some(contract::Layout::Whole),
        Some("streamed") => Some(contract::Layout::Streamed),
        Some(other) => {
            return Err(CommandError::Usage(format!("--layout is {other:?}, but must be whole or streamed")));
        }
    };
    let sampling = SamplingFields { seed: flags.seed, ..SamplingFields::default() };
    Ok(Ask { voice: flags.voice.clone(), layout, sampling, ..Ask::default() })
}

fn format_of(path: &Path) -> Result<SpeechFormat, CommandError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("opus" | "ogg") => Ok(SpeechFormat::Opus),
        Some("pcm") => Ok(SpeechFormat::Pcm),
        Some("wav") => Ok(SpeechFormat::Wav),
        _ => Err(CommandError::Usage(format!("--out {} must end in .wav, .opus or .pcm", path.display()))),
    }
}

fn clip(path: &Path, transcript: Option<String>) -> Result<VoiceChoice, CommandError> {
    let limits = AudioLimits { duration_ms_max: REFERENCE_MS_MAX, ..AudioLimits::default() };
    let bytes =
        crate::input::read(path, limits.bytes_max as u64).map_err(|error| failed(&path.display(), &error))?;
    let audio = read_audio(&bytes, &limits).map_err(|error| failed(&path.display(), &error))?;
    let mode = if transcript.is_some() { CloneMode::InContext } else { CloneMode::Speaker };
    let hash = content_hash(&audio.samples, audio.rate_hz, transcript.as_deref());
    let clip = Clip { samples: audio.samples, sample_rate: audio.rate_hz, transcript, hash };
    Ok(VoiceChoice::Reference { clip: Arc::new(clip), mode })
}

/// 128-bit FNV-1a: this process is the only one who gives clips, so nobody gains by a collision.
fn content_hash(samples: &[f32], rate_hz: u32, transcript: Option<&str>) -> [u8; 16] {
    let samples = samples.iter().flat_map(|sample| sample.to_le_bytes());
    let rest = rate_hz.to_le_bytes().into_iter().chain(transcript.unwrap_or_default().bytes());
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for byte in samples.chain(rest) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash.to_le_bytes()
}

async fn ready(engine: &dyn EngineHandle) -> Result<(), CommandError> {
    loop {
        match engine.health() {
            Health::Ready => return Ok(()),
            Health::Failed(reason) => return Err(CommandError::Failed(reason)),
            Health::Starting(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// The file being written: under a name of its own beside the one asked for, which it takes when it is
/// whole. What fails leaves nothing, and an older file as it was.
struct Out {
    file: File,
    path: PathBuf,
    part: PathBuf,
    writer: FileWriter,
    format: SpeechFormat,
    rate: u32,
}

impl Out {
    fn create(path: &Path, format: SpeechFormat, rate: u32, pre_skip: u32) -> Result<Self, CommandError> {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(failed(&path.display(), &"exists and is not a regular file"));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let part = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let writer =
            FileWriter::new(format, rate, pre_skip, 1).map_err(|error| failed(&path.display(), &error))?;
        let file = File::create(&part).map_err(|error| failed(&path.display(), &error))?;
        Ok(Self { file, path: path.to_owned(), part, writer, format, rate })
    }

    fn write(&mut self, packets: Vec<crate::encode::EncodedPacket>) -> Result<(), CommandError> {
        let bytes = self.writer.write(packets).map_err(|error| failed(&self.path.display(), &error))?;
        self.put(&bytes)
    }

    /// Closes the stream; a WAV's header, written first, learns its length.
    fn finish(&mut self, samples: u64) -> Result<(), CommandError> {
        let bytes = self.writer.finish().map_err(|error| failed(&self.path.display(), &error))?;
        self.put(&bytes)?;
        if self.format == SpeechFormat::Wav {
            let header =
                codecs::wav::header(self.rate, samples).map_err(|e| failed(&self.path.display(), &e))?;
            self.file.seek(SeekFrom::Start(0)).map_err(|error| failed(&self.path.display(), &error))?;
            self.put(&header)?;
        }
        Ok(())
    }

    /// Gives the finished file its name.
    fn keep(self) -> Result<(), CommandError> {
        std::fs::rename(&self.part, &self.path).map_err(|error| failed(&self.path.display(), &error))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        self.file.write_all(bytes).map_err(|error| failed(&self.path.display(), &error))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // After `keep` there is nothing of this name, and that is fine.
        drop(std::fs::remove_file(&self.part));
    }
}

fn failed(what: &dyn std::fmt::Display, error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Failed(format!("{what}: {error}"))
}
