//! Reference audio that comes over the socket, before or beside the text it shall speak
//! (docs/protocol.md section 5).
//!
//! `open` announces it; binary messages carry it; the driver decodes and judges it. Text waits meanwhile:
//! the engine hears of the context once its voice is there.

use std::sync::Arc;

use bytes::Bytes;
use contract::{Clip, CloneMode, EngineError, Tick};

use super::{Output, Session};
use crate::catalog::Reference;
use crate::wire::{Flags, Header, Open, PacketKind, ReferenceOpen, WireCodec, WireError};

/// 30 s of PCM at 48 kHz.
const BYTES_MAX: usize = 30 * 48_000 * 2;
/// 30 s of the shortest Opus packets, 2.5 ms.
const PACKETS_MAX: usize = 12_000;

/// Clips of one session that may be judged at once: as many as may speak at once, unless that is configured
/// otherwise. Decoding 30 s takes a tenth of a second.
pub const JUDGED_MAX: usize = 8;

/// A whole reference clip as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceJob {
    pub context: u16,
    pub form: ClipForm,
    /// Hertz the engine wants.
    pub model_rate: u32,
    pub transcript: Option<String>,
}

/// The sound of a clip.
#[derive(Clone, Debug, PartialEq)]
pub enum ClipForm {
    /// A WAV, FLAC, MP3, Ogg or WebM file.
    File(Bytes),
    /// Opus packets, or pieces of samples at this many hertz, in order.
    Packets { codec: WireCodec, sample_rate: u32, packets: Vec<Bytes> },
}

/// A context's reference while it is not there yet.
#[derive(Debug)]
pub(super) enum Awaited {
    Coming(Coming),
    /// The driver judges it.
    Judged,
    /// It was refused: this context cannot speak.
    Refused(EngineError),
}

#[derive(Debug)]
pub(super) struct Coming {
    about: ReferenceOpen,
    packets: Vec<Bytes>,
    bytes: usize,
}

impl Awaited {
    pub(super) fn new(about: ReferenceOpen) -> Self {
        Self::Coming(Coming { about, packets: Vec::new(), bytes: 0 })
    }

    /// What stands in the clip's place until it is there.
    pub(super) fn placeholder(about: &ReferenceOpen) -> (Arc<Clip>, CloneMode) {
        let clip = Clip { samples: Vec::new(), sample_rate: 0, transcript: None, hash: [0; 16] };
        let in_context = about.transcript.as_ref().is_some_and(|text| !text.trim().is_empty());
        let default = if in_context { CloneMode::InContext } else { CloneMode::Speaker };
        (Arc::new(clip), about.mode.unwrap_or(default))
    }

    /// # Errors
    /// The refusal, once there is one.
    pub(super) fn check(&self) -> Result<(), WireError> {
        match self {
            Self::Refused(error) => Err(WireError::Engine(error.clone())),
            Self::Coming(_) | Self::Judged => Ok(()),
        }
    }
}

impl Coming {
    fn take(&mut self, header: &Header, payload: &Bytes) -> Result<(), EngineError> {
        let bad = |what: &str| Err(EngineError::BadReference { what: what.to_owned() });
        let kind = self.about.codec.packet_kind();
        let last = header.flags.contains(Flags::END);
        // A gap marker carries the end of a clip whose last packet has gone already.
        if header.kind != kind && !(header.kind == PacketKind::Gap && last) {
            return bad("a packet is of another kind than open said");
        }
        if header.sequence as usize != self.packets.len() + 1 {
            return bad("its packets do not follow each other: sequence counts 1, 2, 3...");
        }
        self.bytes += payload.len();
        if self.bytes > BYTES_MAX || self.packets.len() >= PACKETS_MAX {
            return bad("it is longer than 30 s; cut it");
        }
        if header.kind != PacketKind::Gap {
            self.packets.push(payload.clone());
        }
        Ok(())
    }
}

impl Session {
    /// What `open` says of a clip that follows: the place it will take.
    ///
    /// # Errors
    /// Together with a voice, or while another clip is coming: one is as much as a session may hold.
    pub(super) fn announced(&self, open: &Open) -> Result<Option<Reference>, WireError> {
        let Some(about) = &open.reference else { return Ok(None) };
        let unsupported = |hint: &str| WireError::Unsupported { param: "reference", hint: hint.to_owned() };
        if open.voice.is_some() {
            return Err(unsupported("give voice or reference, not both"));
        }
        if self.contexts.values().any(|context| matches!(context.awaited, Some(Awaited::Coming(_)))) {
            return Err(unsupported("another reference is still coming in this session; end it first"));
        }
        // Those of contexts that have gone are judged too: nothing stops a decoder.
        if self.judging >= JUDGED_MAX {
            return Err(unsupported("other references of this session are being judged; try again at once"));
        }
        let (clip, mode) = Awaited::placeholder(about);
        Ok(Some(Reference { voice: None, clip, mode }))
    }

    /// Bytes of the clip that is coming. Whoever drives the session bounds those of all sessions together.
    #[must_use]
    pub fn coming_bytes(&self) -> usize {
        let of = |context: &super::context::Context| match &context.awaited {
            Some(Awaited::Coming(coming)) => coming.bytes,
            Some(Awaited::Judged | Awaited::Refused(_)) | None => 0,
        };
        self.contexts.values().map(of).sum()
    }

    /// Audio of the client's.
    pub(super) fn reference_packet(
        &mut self,
        now: Tick,
        header: &Header,
        payload: &Bytes,
    ) -> Result<(), WireError> {
        let id = header.context;
        let context = self.contexts.get_mut(&id).ok_or(WireError::UnknownContext { context: id })?;
        let Some(Awaited::Coming(coming)) = &mut context.awaited else {
            return Err(WireError::AudioNotAccepted { context: id });
        };
        context.touched = now;
        if let Err(error) = coming.take(header, payload) {
            self.refuse_reference(now, id, error);
            return Ok(());
        }
        if header.flags.contains(Flags::END) {
            let form = ClipForm::Packets {
                codec: coming.about.codec,
                sample_rate: coming.about.sample_rate,
                packets: std::mem::take(&mut coming.packets),
            };
            self.judge(id, form);
        }
        Ok(())
    }

    /// A clip that came as one file.
    pub(super) fn reference_file(&mut self, now: Tick, id: u16, file: Bytes) {
        // A context that was refused is not there: its client has been told why.
        if let Some(context) = self.contexts.get_mut(&id) {
            context.touched = now;
            self.judge(id, ClipForm::File(file));
        }
    }

    /// All of a clip has come: the driver decodes and judges it.
    fn judge(&mut self, id: u16, form: ClipForm) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let Some(Awaited::Coming(coming)) = &mut context.awaited else { return };
        let transcript = coming.about.transcript.take();
        let model_rate = context.target.sample_rate;
        context.awaited = Some(Awaited::Judged);
        self.judging += 1;
        self.out.push(Output::Reference(Box::new(ReferenceJob {
            context: id,
            form,
            model_rate,
            transcript,
        })));
    }

    /// The driver has decoded and judged a context's clip.
    pub fn handle_reference(&mut self, now: Tick, context: u16, clip: Result<Arc<Clip>, EngineError>) {
        self.judging = self.judging.saturating_sub(1);
        match clip {
            Err(error) => self.refuse_reference(now, context, error),
            Ok(clip) => {
                if let Some(context) = self.contexts.get_mut(&context)
                    && matches!(context.awaited, Some(Awaited::Judged))
                {
                    context.awaited = None;
                    if let Some((placeholder, _)) = &mut context.target.reference {
                        *placeholder = clip;
                    }
                    // What was said before could not be spoken: first audio is due from now on.
                    context.utterance.begin_anew(now);
                }
            }
        }
        self.advance(now);
    }

    fn refuse_reference(&mut self, now: Tick, context: u16, error: EngineError) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.awaited = Some(Awaited::Refused(error.clone()));
            if !context.utterance.is_over() {
                context.utterance.fail(now, &WireError::Engine(error), &mut self.out);
            }
        }
    }
}
