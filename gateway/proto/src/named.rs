//! Contexts that clients name by strings of their own, and the steps that speak one of them: what dialects of
//! other services have in common.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use codecs::ogg::{OggOpusSettings, OggOpusWriter};
use codecs::opus::OpusPacket;
use codecs::pcm::RawEncoding;

use crate::alignment::TimedCharacter;
use crate::body::comments;
use crate::dialect::Step;
use crate::speech::SpeechReference;
use crate::wire::{
    CLOCK_HZ, ClientMessage, ContextRef, ErrorMessage, Flags, Header, Open, PacketKind, ReferenceOpen, Text,
    TextAppend, Unreadable, WireError,
};

/// 48 kHz samples gathered for one message. The session's bounds of what a socket may owe are only kept if
/// much sound leaves in several messages: 200 ms of 48 kHz PCM are 26 KB of base64.
const GATHERED_MAX: u64 = CLOCK_HZ as u64 / 5;
/// 48 kHz samples of an Opus packet.
const OPUS_PACKET: u32 = 960;

/// A message that cannot be read, and the name of the context it was for.
pub(crate) type Unread = (Option<String>, WireError);

/// The session is told, and answers.
pub(crate) fn unreadable((id, error): Unread, steps: &mut Vec<Step>) {
    steps.push(Step::Unreadable(Box::new(Unreadable { id, error })));
}

/// Opens a context; where a clip came with the request it goes before any voice, as it does over HTTP.
///
/// # Errors
/// A clip that is not in base64.
pub(crate) fn open(
    open: Open,
    clip: Option<SpeechReference>,
    steps: &mut Vec<Step>,
) -> Result<(), WireError> {
    let Some(clip) = clip else {
        steps.push(Step::client(ClientMessage::Open(Box::new(open))));
        return Ok(());
    };
    let file = clip.file().map_err(WireError::Engine)?;
    let context = open.context;
    let SpeechReference { transcript, mode, .. } = clip;
    let about = ReferenceOpen { transcript, mode, ..ReferenceOpen::default() };
    let open = Open { voice: None, reference: Some(about), ..open };
    steps.push(Step::client(ClientMessage::Open(Box::new(open))));
    steps.push(Step::Clip { context, file });
    Ok(())
}

/// What a binary message is where only JSON is read.
pub(crate) const fn binary() -> Unread {
    (None, WireError::InvalidJson { at: 0, what: "binary messages are not read here" })
}

/// The context that ended because its text had nothing to speak, a turn of "..." say: its client gets the end of
/// a turn, with no sound, since it could not have known.
pub(crate) fn ended_unspoken(said: &ErrorMessage) -> Option<u16> {
    said.context.filter(|_| said.error.code == WireError::EmptyText.code())
}

/// Contexts by the name that the client gave them. As many as a session has open, which it bounds.
#[derive(Debug)]
pub(crate) struct Named<T> {
    by_name: BTreeMap<String, (u16, T)>,
    names: BTreeMap<u16, String>,
    /// Numbers are used once; `None` when all have been.
    next: Option<u16>,
}

impl<T> Named<T> {
    pub(crate) const fn new() -> Self {
        Self { by_name: BTreeMap::new(), names: BTreeMap::new(), next: Some(1) }
    }

    /// The number that the next context will have.
    pub(crate) const fn next_number(&self) -> Option<u16> {
        self.next
    }

    pub(crate) fn insert(&mut self, name: &str, number: u16, context: T) {
        self.next = number.checked_add(1);
        self.names.insert(number, name.to_owned());
        self.by_name.insert(name.to_owned(), (number, context));
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.by_name.get_mut(name).map(|(_, context)| context)
    }

    /// The context with this number, and its name.
    pub(crate) fn numbered(&mut self, number: u16) -> Option<(&str, &mut T)> {
        let name = self.names.get(&number)?;
        let (_, context) = self.by_name.get_mut(name)?;
        Some((name, context))
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<(String, T)> {
        let name = self.names.remove(&number)?;
        let (_, context) = self.by_name.remove(&name)?;
        Some((name, context))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut T)> {
        self.by_name.iter_mut().map(|(name, (_, context))| (name.as_str(), context))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_name.values().map(|(_, context)| context)
    }

    /// The numbers of all contexts.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.names.keys().copied().collect()
    }

    /// The name that an error is told under, if any; `None` where it is not told: its context was forgotten,
    /// and its client knows.
    pub(crate) fn failed(&self, said: &ErrorMessage) -> Option<Option<String>> {
        match said.context {
            Some(number) => self.names.get(&number).cloned().map(Some),
            None => Some(said.id.clone()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// The text of one context on its way into the session.
#[derive(Debug)]
pub(crate) struct Speaker {
    pub(crate) number: u16,
    sequence: u32,
    /// Text with a letter or a digit was given.
    pub(crate) speaks: bool,
    /// Text was given since the last flush.
    pub(crate) unflushed: bool,
    /// The end of the text was said.
    pub(crate) ended: bool,
}

impl Speaker {
    pub(crate) const fn new(number: u16) -> Self {
        Self { number, sequence: 0, speaks: false, unflushed: false, ended: false }
    }

    /// Text; spaces before the first word are left out, so that a context does not count as speaking, and
    /// its time to first sound does not run, while there is nothing to speak.
    pub(crate) fn append(&mut self, text: Text, steps: &mut Vec<Step>) {
        let blank = text.lead.is_none() && text.trail.is_none() && text.body.trim().is_empty();
        if self.ended || text.is_empty() || (blank && !self.speaks) {
            return;
        }
        self.speaks |= !blank;
        self.unflushed |= !blank;
        self.push(text, steps);
    }

    /// Keeps a context that speaks from ending for lack of text.
    pub(crate) fn touch(&mut self, steps: &mut Vec<Step>) {
        if self.speaks && !self.ended {
            self.push(Text::default(), steps);
        }
    }

    fn push(&mut self, text: Text, steps: &mut Vec<Step>) {
        self.sequence += 1;
        let append = TextAppend { context: self.number, epoch: None, sequence: self.sequence, text };
        steps.push(Step::client(ClientMessage::TextAppend(append)));
    }

    pub(crate) fn flush(&mut self, steps: &mut Vec<Step>) {
        if self.speaks && !self.ended {
            self.unflushed = false;
            steps.push(Step::client(ClientMessage::TextFlush(self.named())));
        }
    }

    /// No text follows; false when there was none to speak, so that nothing will end by itself.
    pub(crate) fn end(&mut self, steps: &mut Vec<Step>) -> bool {
        if self.speaks && !self.ended {
            steps.push(Step::client(ClientMessage::TextEnd(self.named())));
        }
        self.ended = true;
        self.unflushed = false;
        self.speaks
    }

    const fn named(&self) -> ContextRef {
        ContextRef { context: self.number, epoch: None }
    }
}

/// The sound of one context on its way into messages.
#[derive(Debug)]
pub(crate) struct Gatherer {
    form: Form,
    bytes: Vec<u8>,
    /// 48 kHz samples in `bytes`.
    samples: u64,
    pub(crate) times: Vec<TimedCharacter>,
}

#[derive(Debug)]
enum Form {
    /// One Ogg stream a context.
    Ogg(Box<Ogg>),
    Raw(RawEncoding),
}

struct Ogg(OggOpusWriter);

impl std::fmt::Debug for Ogg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ogg")
    }
}

impl Gatherer {
    /// Of PCM in this encoding, or of Opus in Ogg at 48 kHz; `serial` tells the streams of a session apart.
    pub(crate) fn new(encoding: Option<RawEncoding>, serial: u32, pre_skip: u16) -> Self {
        let form = match encoding {
            Some(encoding) => Form::Raw(encoding),
            None => {
                let settings = OggOpusSettings {
                    comments: comments(),
                    input_rate_hz: CLOCK_HZ,
                    packets_per_page: 1,
                    pre_skip_48k: u32::from(pre_skip),
                    serial,
                };
                // One packet a page, a pre-skip of 16 bits and two short comments are within the bounds.
                let writer = OggOpusWriter::new(&settings).expect("valid settings");
                Form::Ogg(Box::new(Ogg(writer)))
            }
        };
        Self { form, bytes: Vec::new(), samples: 0, times: Vec::new() }
    }

    /// Takes a packet in; true when a message should be made of what is gathered.
    pub(crate) fn packet(&mut self, header: &Header, payload: &Bytes) -> bool {
        self.samples += u64::from(header.duration);
        match &mut self.form {
            Form::Raw(encoding) => encoding.extend_from_s16le(payload, &mut self.bytes),
            Form::Ogg(ogg) if header.kind == PacketKind::Opus => {
                let packet = OpusPacket { data: payload, duration_48k: OPUS_PACKET, timestamp_48k: 0 };
                let trim = OPUS_PACKET.saturating_sub(u32::from(header.duration));
                // The writer refuses only what follows the last packet, and nothing does.
                let _written = match header.flags.contains(Flags::END) {
                    true => ogg.0.write_last(packet, trim),
                    false => ogg.0.write(packet),
                };
                self.bytes.append(&mut ogg.0.take_bytes());
            }
            Form::Ogg(_) => {}
        }
        self.samples >= GATHERED_MAX
    }

    /// What was gathered in base64, if there is any sound.
    pub(crate) fn take(&mut self) -> Option<String> {
        self.samples = 0;
        if self.bytes.is_empty() {
            return None;
        }
        let audio = BASE64_STANDARD.encode(&self.bytes);
        self.bytes.clear();
        Some(audio)
    }

    pub(crate) fn has_sound(&self) -> bool {
        !self.bytes.is_empty()
    }
}
