//! The usage log: one JSON object a line for everything that was spoken, for accounts. It holds no text, no
//! audio and no token.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

use contract::{FinishReason, Usage};
use serde_json::json;

use crate::auth::Principal;
use crate::metrics::Metrics;

/// Lines that may wait for the disk; what is beyond is counted and lost.
const LINES_MAX: usize = 8_192;

enum Order {
    Line(String),
    Reopen,
}

/// Where lines go. A thread of its own writes them, so that no socket waits for a disk.
pub(crate) struct UsageLog {
    lines: Option<SyncSender<Order>>,
    metrics: Metrics,
}

/// What a line says of who and where.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) tenant: String,
    pub(crate) subject: String,
    /// The request's or the session's id.
    pub(crate) request: String,
    /// The endpoint: `speech`, `stream`, `elevenlabs`...
    pub(crate) door: &'static str,
}

impl Account {
    pub(crate) fn of(principal: &Principal, request: &str, door: &'static str) -> Self {
        Self {
            tenant: principal.tenant.to_string(),
            subject: principal.subject.to_string(),
            request: request.to_owned(),
            door,
        }
    }
}

impl UsageLog {
    /// Appends to `path`; without one, nothing is written.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub(crate) fn open(path: Option<&Path>, metrics: &Metrics) -> std::io::Result<Self> {
        let metrics = metrics.clone();
        let Some(path) = path else { return Ok(Self { lines: None, metrics }) };
        let (mut file, mut torn) = append_to(path)?;
        let (lines, waiting) = sync_channel(LINES_MAX);
        let path: PathBuf = path.to_owned();
        let lost = metrics.clone();
        std::thread::Builder::new().name("usage".to_owned()).spawn(move || {
            while let Ok(order) = waiting.recv() {
                let done = match order {
                    Order::Line(line) => append(&mut file, &line, &mut torn),
                    Order::Reopen => append_to(&path).map(|fresh| (file, torn) = fresh),
                };
                if let Err(error) = done {
                    lost.usage_lost();
                    tracing::error!(%error, "the usage log");
                }
            }
        })?;
        Ok(Self { lines: Some(lines), metrics })
    }

    /// One utterance ended. `context` numbers it within its session; `sample_rate` is the model's.
    pub(crate) fn spoken(
        &self,
        account: &Account,
        context: Option<(u16, u16)>,
        reason: FinishReason,
        usage: &Usage,
        sample_rate: u32,
    ) {
        let Some(lines) = &self.lines else { return };
        let mut line = json!({
            "time": crate::clock::unix_seconds(),
            "tenant": account.tenant,
            "subject": account.subject,
            "request": account.request,
            "door": account.door,
            "reason": reason.name(),
            "characters": usage.characters,
            "text_ids": usage.text_ids,
            "frames": usage.frames,
            "audio_ms": usage.samples.saturating_mul(1_000) / u64::from(sample_rate.max(1)),
            "encode_ms": usage.encode.as_millis(),
        });
        if let Some((context, epoch)) = context {
            line["context"] = context.into();
            line["epoch"] = epoch.into();
        }
        self.order(lines, Order::Line(format!("{line}\n")));
    }

    /// Opens the file anew: a rotation has moved the old one away.
    pub(crate) fn reopen(&self) {
        if let Some(lines) = &self.lines {
            self.order(lines, Order::Reopen);
        }
    }

    fn order(&self, lines: &SyncSender<Order>, order: Order) {
        if lines.try_send(order).is_err() {
            self.metrics.usage_lost();
        }
    }
}

/// An engine's own count, and what was counted here where it says less: one that fails may say nothing.
pub(crate) fn joined(here: Usage, engine: Usage) -> Usage {
    Usage {
        characters: here.characters,
        text_ids: here.text_ids.max(engine.text_ids),
        frames: here.frames.max(engine.frames),
        samples: here.samples.max(engine.samples),
        ..engine
    }
}

/// Appends a whole line, after the end of one that was `torn`.
fn append(file: &mut impl Write, line: &str, torn: &mut bool) -> std::io::Result<()> {
    let text = if *torn { format!("\n{line}") } else { line.to_owned() };
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                *torn = rest[written - 1] != b'\n';
                rest = &rest[written..];
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The file to append to, and whether its last line is torn: a full disk takes part of a line, and the next one must
/// not be joined to it.
fn append_to(path: &Path) -> std::io::Result<(File, bool)> {
    // What cannot be read, or is empty, is taken as whole.
    let torn = path.is_file() && last_byte(path).is_ok_and(|last| last != b'\n');
    Ok((File::options().create(true).append(true).open(path)?, torn))
}

fn last_byte(path: &Path) -> std::io::Result<u8> {
    let mut file = File::open(path)?;
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes more.
    struct Disk {
        room: usize,
        written: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_fills_up_in_a_line_spoils_no_other_line() {
        for room in 0..24 {
            let mut disk = Disk { room, written: Vec::new() };
            let mut torn = false;
            let lines = ["{\"a\":1}\n", "{\"b\":2}\n", "{\"c\":3}\n"];
            let kept = lines.map(|line| append(&mut disk, line, &mut torn).is_ok());
            disk.room = usize::MAX;
            append(&mut disk, "{\"last\":4}\n", &mut torn).expect("there is room again");
            let text = String::from_utf8(disk.written).expect("ASCII");
            let found: Vec<&str> = text.lines().collect();
            for (line, kept) in lines.iter().zip(kept) {
                assert!(!kept || found.contains(&line.trim_end()), "{room}: {text}");
            }
            // What was torn stands alone, so that whoever reads lines loses no other.
            let part_of_one = |part: &str| lines.iter().any(|line| line.starts_with(part));
            let (last, before) = found.split_last().expect("a line");
            assert_eq!(*last, "{\"last\":4}", "{room}: {text}");
            assert!(before.iter().all(|part| !part.is_empty() && part_of_one(part)), "{room}: {text}");
        }
    }
    #[test]
    fn a_file_whose_last_line_is_torn_is_known_when_it_is_opened() {
        let path = std::env::temp_dir().join(format!("voxlane-usage-{}", std::process::id()));
        for (content, torn) in [("", false), ("{}\n", false), ("{}\n{\"ten", true)] {
            std::fs::write(&path, content).expect("a folder for temporary files");
            let (mut file, mut found) = append_to(&path).expect("opens");
            assert_eq!(found, torn, "{content:?}");
            append(&mut file, "{\"next\":1}\n", &mut found).expect("room");
            let text = std::fs::read_to_string(&path).expect("there");
            assert!(text.lines().any(|line| line == "{\"next\":1}") && !text.contains("\n\n"), "{text:?}");
        }
        std::fs::remove_file(&path).expect("there");
    }
}
