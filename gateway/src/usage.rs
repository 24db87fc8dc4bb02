//! The usage log: one JSON object a line for everything that was spoken, for accounts. It holds no text, no
//! audio and no token.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

use contract::{FinishReason, Usage};
use serde_json::json;

use crate::auth::Principal;

/// Lines that may wait for the disk; what is beyond is counted and lost.
const LINES_MAX: usize = 8_192;

enum Order {
    Line(String),
    Reopen,
}

/// Where lines go. A thread of its own writes them, so that no socket waits for a disk.
pub(crate) struct UsageLog {
    lines: Option<SyncSender<Order>>,
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
    pub(crate) fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let Some(path) = path else { return Ok(Self { lines: None }) };
        let mut file = append_to(path)?;
        let (lines, waiting) = sync_channel(LINES_MAX);
        let path: PathBuf = path.to_owned();
        std::thread::Builder::new().name("usage".to_owned()).spawn(move || {
            while let Ok(order) = waiting.recv() {
                let done = match order {
                    Order::Line(line) => file.write_all(line.as_bytes()),
                    Order::Reopen => append_to(&path).map(|fresh| file = fresh),
                };
                if let Err(error) = done {
                    crate::metrics::usage_lost();
                    tracing::error!(%error, "the usage log");
                }
            }
        })?;
        Ok(Self { lines: Some(lines) })
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
        order(lines, Order::Line(format!("{line}\n")));
    }

    /// Opens the file anew: a rotation has moved the old one away.
    pub(crate) fn reopen(&self) {
        if let Some(lines) = &self.lines {
            order(lines, Order::Reopen);
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

fn order(lines: &SyncSender<Order>, order: Order) {
    if lines.try_send(order).is_err() {
        crate::metrics::usage_lost();
    }
}

fn append_to(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).open(path)
}
