//! `voxlane speak TEXT --out F`: the engine in this process, a file as the listener.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use codecs::pcm::RawEncoding;
use contract::{EngineError, EngineHandle, FinishReason, Health, Span, Tick, Usage, VoiceChoice};
use proto::catalog::{Ask, Target};
use proto::speech::{SpeechFormat, SpeechRequest};
use proto::wire::SamplingFields;

use super::{CommandError, EngineFlags, layers};
use crate::app::App;
use crate::clock::Clock;
use crate::engine::Embedded;
use crate::file::{FileWriter, WAV_ORIGIN, encoder, playing_time};
use crate::utterance::{Step, Utterance};
use crate::voices::{Recording, default_mode, prepare, record};

/// How long to wait for an engine that cannot promise first audio in time.
const PATIENCE: Span = Span::from_millis(60_000);

/// Longest file of a reference clip.
const REFERENCE_BYTES_MAX: usize = 10 << 20;

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
    /// Clip whose speaker is taken as the voice: WAV, FLAC, MP3, Ogg or WebM, 1 to 30 s
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
    /// Take the text exactly as it stands: no reading of numbers, no pauses
    #[arg(long)]
    no_normalize: bool,
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
    let clip = flags.reference.as_deref().map(recording).transpose()?;
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
    clip: Option<Recording>,
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
    if let Some(recording) = clip {
        let words = flags.reference_text.as_deref();
        let clip = prepare(&recording, words, rate).map_err(|error| refused(&error))?;
        request.voice = VoiceChoice::Reference { clip: Arc::new(clip), mode: default_mode(words) };
    }
    let mut out = Out::create(&flags.out, format, rate, encoder.pre_skip_48k())?;
    let open = |request, encoder| {
        Utterance::open(app, engine, request, &target, &flags.text, encoder).map_err(|error| refused(&error))
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
                out.finish()?;
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
        Some(first) => say!("first audio  {:.1} ms", first.as_micros() as f64 / 1_000.0),
        None => say!("first audio  none"),
    }
    say!("audio        {:.2} s, {} frames", audio.as_micros() as f64 / 1e6, usage.frames);
    say!("RTF          {factor:.3}");
    say!("characters   {}", usage.characters);
    say!("reason       {}", reason.name());
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
    let normalize = Some(!flags.no_normalize);
    Ok(Ask { voice: flags.voice.clone(), layout, sampling, normalize, ..Ask::default() })
}

fn format_of(path: &Path) -> Result<SpeechFormat, CommandError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("opus" | "ogg") => Ok(SpeechFormat::Opus),
        Some("pcm") => Ok(SpeechFormat::Pcm),
        Some("wav") => Ok(SpeechFormat::Wav),
        _ => Err(CommandError::Usage(format!("--out {} must end in .wav, .opus or .pcm", path.display()))),
    }
}

/// A clip as uploads are taken: any kind of file, any rate, judged before it is used.
fn recording(path: &Path) -> Result<Recording, CommandError> {
    let bytes = crate::input::read(path, REFERENCE_BYTES_MAX as u64)
        .map_err(|error| failed(&path.display(), &error))?;
    record(&bytes, REFERENCE_BYTES_MAX).map_err(|error| failed(&path.display(), &error))
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
    /// 48 kHz samples written: speech and its pauses.
    samples_48k: u64,
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
        Ok(Self { file, path: path.to_owned(), part, writer, format, rate, samples_48k: 0 })
    }

    fn write(&mut self, packets: Vec<crate::encode::EncodedPacket>) -> Result<(), CommandError> {
        self.samples_48k += packets.iter().map(|packet| u64::from(packet.duration_48k)).sum::<u64>();
        let bytes = self.writer.write(packets).map_err(|error| failed(&self.path.display(), &error))?;
        self.put(&bytes)
    }

    /// Closes the stream; a WAV's header, written first, learns its length.
    fn finish(&mut self) -> Result<(), CommandError> {
        let bytes = self.writer.finish().map_err(|error| failed(&self.path.display(), &error))?;
        self.put(&bytes)?;
        if self.format == SpeechFormat::Wav {
            let samples = self.samples_48k * u64::from(self.rate) / u64::from(codecs::OPUS_CLOCK_HZ);
            let header = codecs::wav::header(self.rate, RawEncoding::S16Le, samples, WAV_ORIGIN)
                .map_err(|e| failed(&self.path.display(), &e))?;
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
