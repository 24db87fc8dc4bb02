//! The session against a small reference model under random transitions. The rig holds every output
//! against the wire's rules (each packet once, in order, under its epoch; acks only grow; one `end` an
//! epoch); the model says which messages are taken, what the engine must have been given, and that
//! every epoch ends.

mod rig;

use std::collections::BTreeMap;

use contract::{EngineError, Epoch, FinishReason, Span};
use proto::wire::Received;
use rig::Rig;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// What the client believes of one context.
#[derive(Default)]
struct Model {
    epoch: u16,
    sequence: u32,
    /// Text taken in each epoch.
    texts: BTreeMap<u16, String>,
    text_ended: bool,
    /// The epoch may have ended by a failure; text may be refused.
    failing: bool,
}

/// How often each hard case occurred.
#[derive(Debug, Default)]
struct Floors {
    cancels: u64,
    cancels_with_packets_waiting: u64,
    cancels_with_jobs_under_way: u64,
    cancels_while_opening: u64,
    stale_packets_and_chunks: u64,
    duplicates: u64,
    gaps: u64,
    flushes: u64,
    failures: u64,
    retries: u64,
    resumes: u64,
    stalls: u64,
    ends: u64,
    packets: u64,
}

const DELTAS: [&str; 8] = [
    "Hello there. ",
    "wor",
    "ds and ",
    "3.5 of it, ",
    "No. 5! ",
    "你好。",
    "...\n\n",
    "Long sentence goes on ",
];

struct World {
    rig: Rig,
    random: Random,
    models: BTreeMap<u16, Model>,
    floors: Floors,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rig = Rig::new();
        rig.encode_now = seed.is_multiple_of(2);
        rig.reply_now = !seed.is_multiple_of(3);
        Self { rig, random: Random(seed), models: BTreeMap::new(), floors: Floors::default() }
    }

    fn step(&mut self) {
        let contexts: Vec<u16> = self.models.keys().copied().collect();
        let context = match contexts.len() {
            0 => 0,
            length => contexts[self.random.below(length as u64) as usize],
        };
        match self.random.below(20) {
            0 | 1 => self.open(),
            2..=5 => self.append(context),
            6 => self.flush(context, false),
            7 => self.flush(context, true),
            8 => self.cancel(context),
            9..=12 => self.engine(context),
            13 => {
                let encode = self.rig.encode_now;
                self.rig.encode_now = false;
                for _ in 0..self.random.below(4) {
                    self.rig.encode_one();
                }
                self.rig.encode_now = encode;
            }
            14 => {
                self.rig.reply_one();
                self.rig.drain();
            }
            15 => self.moods(),
            16 => self.report(context),
            17 => self.resume(),
            _ => {
                let span = Span::from_millis(self.random.below(400) as i64);
                self.rig.wait(span);
            }
        }
        assert!(self.rig.closed.is_none(), "closed: {:?}", self.rig.closed);
    }

    fn open(&mut self) {
        if self.models.len() < 6 {
            let id = self.models.keys().last().map_or(1, |last| last + 1);
            let before = self.rig.errors().len();
            self.rig.simple("open", id);
            assert_eq!(self.rig.errors().len(), before);
            self.models.insert(id, Model::default());
        }
    }

    fn append(&mut self, context: u16) {
        let delta = DELTAS[self.random.below(8) as usize];
        let wrong = self.random.below(8);
        let Some(model) = self.models.get_mut(&context) else { return };
        let before = self.rig.errors().len();
        let heard = |rig: &Rig| rig.heard.get(&context).map_or(0, |heard| heard.acked);
        if wrong == 0 && model.sequence > 0 {
            let acked = heard(&self.rig);
            self.rig.append(context, model.sequence, delta);
            assert_eq!(heard(&self.rig), acked);
            self.floors.duplicates += 1;
            return;
        }
        if wrong == 1 {
            self.rig.append(context, model.sequence + 2, delta);
            self.floors.gaps += 1;
            assert_eq!(self.rig.errors().len(), before + 1);
            return;
        }
        self.rig.append(context, model.sequence + 1, delta);
        let refused = self.rig.errors()[before..]
            .iter()
            .any(|code| ["context_ended", "text_ended", "sequence_gap"].contains(code));
        assert!(!refused || model.text_ended || model.failing, "{:?}", self.rig.errors());
        assert!(!model.text_ended || refused);
        if !refused {
            model.sequence += 1;
            model.texts.entry(model.epoch).or_default().push_str(delta);
            assert_eq!(heard(&self.rig), model.sequence);
        }
    }

    fn flush(&mut self, context: u16, end: bool) {
        let Some(model) = self.models.get_mut(&context) else { return };
        self.rig.simple(if end { "text.end" } else { "text.flush" }, context);
        model.text_ended |= end;
        self.floors.flushes += 1;
    }

    fn cancel(&mut self, context: u16) {
        let Some(model) = self.models.get_mut(&context) else { return };
        let key = self.rig.key(context, model.epoch);
        let taken = model.texts.get(&model.epoch).cloned().unwrap_or_default();
        self.floors.cancels += 1;
        self.floors.cancels_with_packets_waiting += u64::from(self.rig.session.waiting_samples() > 0);
        self.floors.cancels_with_jobs_under_way += u64::from(self.rig.jobs.iter().any(|job| job.key == key));
        self.floors.cancels_while_opening +=
            u64::from(self.rig.replies.iter().any(|(replied, _)| *replied == key));
        self.rig.simple("cancel", context);
        let cancelled = self.rig.messages.iter().rev().find_map(|message| match message {
            proto::wire::ServerMessage::Cancelled { context: of, heard, .. } if *of == context => Some(heard),
            _ => None,
        });
        let heard = cancelled.expect("answered");
        assert!(letters(&taken).starts_with(&letters(&heard.text)), "{taken:?} / {:?}", heard.text);
        *model =
            Model { epoch: model.epoch + 1, texts: std::mem::take(&mut model.texts), ..Model::default() };
    }

    fn engine(&mut self, context: u16) {
        let Some(model) = self.models.get_mut(&context) else { return };
        // Sometimes an older epoch's engine context still speaks.
        let epoch = if model.epoch > 0 && self.random.one_in(3) { model.epoch - 1 } else { model.epoch };
        let key = self.rig.key(context, epoch);
        let Some(engine) = self.rig.engine.get(&key) else { return };
        if engine.done {
            return;
        }
        if engine.cancelled {
            self.rig.finish(key, FinishReason::Cancelled, None);
        } else if self.random.one_in(25) {
            model.failing |= epoch == model.epoch;
            self.floors.failures += 1;
            self.rig.finish(key, FinishReason::Failed, Some(EngineError::NotFinite));
        } else if self.random.one_in(15) {
            self.floors.retries += 1;
            self.rig.refuse_text.push_back(EngineError::Overloaded { retry_after: Span::from_millis(30) });
        } else {
            self.rig.speak_all(key, 1 + self.random.below(70) as u32);
        }
        self.texts_agree(key);
    }

    /// What the engine was given is the text taken, as far as it got.
    fn texts_agree(&self, key: proto::session::EpochKey) {
        let engine = &self.rig.engine[&key];
        let given: String = engine.segments.concat() + &engine.current;
        let taken = self.models[&key.context].texts.get(&key.epoch.0).cloned().unwrap_or_default();
        assert!(letters(&taken).starts_with(&letters(&given)), "{taken:?} / {given:?}");
    }

    fn moods(&mut self) {
        match self.random.below(4) {
            0 => self.rig.encode_now = !self.rig.encode_now,
            1 => self.rig.reply_now = !self.rig.reply_now,
            2 => {
                self.rig.write_now = !self.rig.write_now;
                self.floors.stalls += 1;
            }
            _ => self.rig.held_bytes = self.random.below(4) as u32,
        }
        // A socket that stalls for long is closed; that has its own tests.
        if self.rig.unwritten > 0 && self.random.one_in(2) {
            self.rig.write_now = true;
        }
        self.rig.drain();
    }

    fn report(&mut self, context: u16) {
        let Some(heard) = self.rig.heard.get(&context) else { return };
        let (sequence, sent) = (heard.sequence, heard.next_timestamp.saturating_sub(312));
        let (epoch, t) = (heard.epoch, self.rig.now.as_micros() / 1_000);
        let state = ["playing", "starved", "paused", "ended", "playing"][self.random.below(5) as usize];
        let played = if sent == 0 { 0 } else { self.random.below(sent) };
        let buffered = sent - played;
        self.rig.text(&format!(
            r#"{{"type":"playback","context":{context},"epoch":{epoch},"t":{t},"played":{played},"buffered":{buffered},"state":"{state}","underruns":0,"sequence":{sequence}}}"#
        ));
    }

    fn resume(&mut self) {
        self.rig.session.handle_detach(self.rig.now);
        self.rig.unwritten = 0;
        self.rig.pings.clear();
        self.rig.drain();
        let span = Span::from_millis(self.random.below(3_000) as i64);
        self.rig.wait(span);
        let ends = self.rig.ends.clone();
        let live = self.models.iter().filter(|(id, model)| !ends.contains(&(**id, model.epoch)));
        let received: Vec<Received> = live
            .map(|(id, model)| Received {
                context: *id,
                epoch: Epoch(model.epoch),
                sequence: self.rig.heard.get(id).map_or(0, |heard| heard.sequence),
            })
            .collect();
        self.rig.session.handle_attach(self.rig.now, "r-2".to_owned(), &received);
        self.rig.drain();
        self.floors.resumes += 1;
    }

    /// With faults stopped, every epoch ends.
    fn settle(&mut self) {
        self.rig.encode_now = true;
        self.rig.reply_now = true;
        self.rig.write_now = true;
        self.rig.refuse_text.clear();
        while self.rig.reply_one() {}
        self.rig.drain();
        let ids: Vec<u16> = self.models.keys().copied().collect();
        for id in &ids {
            if !self.models[id].text_ended {
                self.flush(*id, true);
            }
        }
        for _ in 0..100 {
            while self.rig.encode_one() {}
            let keys: Vec<_> = self.rig.engine.keys().copied().collect();
            for key in keys {
                if self.rig.engine[&key].cancelled && !self.rig.engine[&key].done {
                    self.rig.finish(key, FinishReason::Cancelled, None);
                }
                self.rig.speak_all(key, 3);
                self.texts_agree(key);
            }
            self.rig.wait(Span::from_millis(1_000));
        }
        for (id, model) in &self.models {
            for epoch in 0..=model.epoch {
                assert!(
                    self.rig.ends.contains(&(*id, epoch)),
                    "no end of {id}/{epoch}: {:?}",
                    self.rig.reasons()
                );
            }
        }
        let done = self.rig.reasons().iter().filter(|(_, _, reason)| *reason == "done").count();
        self.floors.ends += done as u64;
        for (id, epoch, reason) in self.rig.reasons() {
            if reason == "done" {
                let engine = &self.rig.engine[&self.rig.key(id, epoch)];
                let given = engine.segments.concat();
                assert_eq!(
                    letters(&given),
                    letters(&self.models[&id].texts[&epoch]),
                    "nothing lost or doubled"
                );
            }
        }
        let counters = self.rig.session.counters();
        self.floors.stale_packets_and_chunks += counters.stale;
        self.floors.packets += counters.packets;
    }
}

fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

#[test]
fn random_conversations_keep_every_rule_of_the_wire_and_every_epoch_ends() {
    let mut total = Floors::default();
    for seed in 0..250 {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..160 {
                world.step();
            }
            world.settle();
            world.floors
        });
        let Ok(floors) = result else { panic!("seed {seed}") };
        total.cancels += floors.cancels;
        total.cancels_with_packets_waiting += floors.cancels_with_packets_waiting;
        total.cancels_with_jobs_under_way += floors.cancels_with_jobs_under_way;
        total.cancels_while_opening += floors.cancels_while_opening;
        total.stale_packets_and_chunks += floors.stale_packets_and_chunks;
        total.duplicates += floors.duplicates;
        total.gaps += floors.gaps;
        total.flushes += floors.flushes;
        total.failures += floors.failures;
        total.retries += floors.retries;
        total.resumes += floors.resumes;
        total.stalls += floors.stalls;
        total.ends += floors.ends;
        total.packets += floors.packets;
    }
    println!("{total:?}");
    assert!(total.cancels_with_packets_waiting > 100, "{total:?}");
    assert!(total.cancels_with_jobs_under_way > 30, "{total:?}");
    assert!(total.cancels_while_opening > 20, "{total:?}");
    assert!(total.stale_packets_and_chunks > 100, "{total:?}");
    assert!(total.duplicates > 200 && total.gaps > 200 && total.flushes > 1_000, "{total:?}");
    assert!(total.failures > 50 && total.retries > 50 && total.resumes > 500, "{total:?}");
    assert!(total.ends > 300 && total.packets > 20_000, "{total:?}");
}
