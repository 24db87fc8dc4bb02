//! One encoder for each speaking epoch, and its jobs in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use codecs::CodecError;
use proto::pacer::Packet;
use proto::session::{AudioFormat, EncodeJob, EncodeWork, EpochKey};
use proto::wire::PacketKind;

use super::late_queue::LateQueue;
use crate::app::App;
use crate::encode::{Encoded, EncodedPacket, Form, Job, REPLIES_PER_JOB, StreamEncoder};

/// Encoders of one session.
pub(super) struct Encoders {
    app: Arc<App>,
    slots: BTreeMap<EpochKey, Slot>,
    /// Which epoch a reply belongs to. Numbers are never used twice, so the reply of a forgotten encoder
    /// finds nothing.
    keys: BTreeMap<u64, EpochKey>,
    next: u64,
    replies: LateQueue<Encoded>,
}

struct Slot {
    tag: u64,
    kind: PacketKind,
    /// At home between jobs.
    encoder: Option<Box<StreamEncoder>>,
    work: VecDeque<EncodeWork>,
}

/// Packets of one epoch.
pub(super) struct Made {
    pub(super) key: EpochKey,
    pub(super) packets: Vec<Packet>,
    pub(super) last: bool,
    pub(super) failed: Option<CodecError>,
}

impl Encoders {
    /// Encoders for at most `epochs` epochs.
    pub(super) fn new(app: Arc<App>, epochs: usize) -> Self {
        let replies = LateQueue::new(epochs * REPLIES_PER_JOB);
        Self { app, slots: BTreeMap::new(), keys: BTreeMap::new(), next: 1, replies }
    }

    /// The next reply of the pool.
    pub(super) async fn next(&mut self) -> Box<Encoded> {
        self.replies.next().await
    }

    /// Takes a job; its replies come later.
    ///
    /// # Errors
    /// When no encoder can be made for the format.
    pub(super) fn take(&mut self, job: EncodeJob) -> Result<(), CodecError> {
        let EncodeJob { key, format, work } = job;
        if work == EncodeWork::Forget {
            if let Some(slot) = self.slots.remove(&key) {
                self.keys.remove(&slot.tag);
            }
            return Ok(());
        }
        if !self.slots.contains_key(&key) {
            self.make(key, format)?;
        }
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.work.push_back(work);
        }
        self.submit(key);
        Ok(())
    }

    /// Takes a reply. `None` when its epoch was forgotten meanwhile.
    pub(super) fn reply(&mut self, encoded: Encoded) -> Option<Made> {
        let key = *self.keys.get(&encoded.key)?;
        let slot = self.slots.get_mut(&key)?;
        let kind = slot.kind;
        let packets = encoded.packets.into_iter().map(|packet| wire_packet(kind, packet)).collect();
        if encoded.encoder.is_some() {
            slot.encoder = encoded.encoder;
        }
        if encoded.finished || encoded.failed.is_some() {
            self.keys.remove(&encoded.key);
            self.slots.remove(&key);
        } else {
            self.submit(key);
        }
        Some(Made { key, packets, last: encoded.finished, failed: encoded.failed })
    }

    /// Whether the pool had no room for something: call [`Encoders::retry`] soon.
    pub(super) fn stuck(&self) -> bool {
        self.slots.values().any(|slot| slot.encoder.is_some() && !slot.work.is_empty())
    }

    pub(super) fn retry(&mut self) {
        let keys: Vec<EpochKey> = self.slots.keys().copied().collect();
        for key in keys {
            self.submit(key);
        }
    }

    fn make(&mut self, key: EpochKey, format: AudioFormat) -> Result<(), CodecError> {
        let form = format.codec.encoding().map_or(Form::Opus, Form::Raw);
        let kind = format.codec.packet_kind();
        let opus = self.app.config.opus;
        let encoder = StreamEncoder::new(form, format.model_rate, format.wire_rate, opus)?
            .at_speed(format.speed)?
            .levelled(format.loudness)?;
        let tag = self.next;
        self.next += 1;
        self.keys.insert(tag, key);
        let slot = Slot { tag, kind, encoder: Some(Box::new(encoder)), work: VecDeque::new() };
        self.slots.insert(key, slot);
        Ok(())
    }

    /// Gives the pool the slot's next work, if its encoder is at home.
    fn submit(&mut self, key: EpochKey) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if slot.work.is_empty() {
            return;
        }
        let Some(encoder) = slot.encoder.take() else { return };
        let mut samples = Vec::new();
        let mut finish = false;
        match slot.work.pop_front() {
            Some(EncodeWork::Samples(chunk)) => {
                samples = chunk.into_vec();
                if slot.work.front() == Some(&EncodeWork::Finish) {
                    slot.work.pop_front();
                    finish = true;
                }
            }
            Some(EncodeWork::Finish) => finish = true,
            Some(EncodeWork::Forget) | None => {}
        }
        let job = Job { key: slot.tag, encoder, samples, finish, reply: self.replies.sender() };
        if let Err(job) = self.app.encode.submit(job) {
            let Job { encoder, samples, finish, .. } = *job;
            slot.encoder = Some(encoder);
            if finish {
                slot.work.push_front(EncodeWork::Finish);
            }
            if !samples.is_empty() {
                slot.work.push_front(EncodeWork::Samples(samples.into()));
            }
        }
    }
}

fn wire_packet(kind: PacketKind, packet: EncodedPacket) -> Packet {
    Packet {
        kind,
        // 20 ms at most, so far below the field's bound.
        duration: (packet.duration_48k - packet.trim_48k.min(packet.duration_48k)) as u16,
        silence: packet.dtx,
        payload: packet.data,
    }
}
