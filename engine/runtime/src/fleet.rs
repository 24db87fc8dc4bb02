//! Several devices behind one handle: an engine each, every new context where it would be heard first.
//!
//! A context lives and ends on one device; its id says on which. A device that is lost takes its own
//! contexts with it, each told by a typed error; the others go on, and get what is new.

use std::sync::Arc;

use contract::{
    ContextId, DeviceId, DeviceReport, EngineError, EngineHandle, EngineInfo, EngineStats, Health,
    LaunchSpan, OpenContext, OutputSink, Playback, TextAccepted,
};

use crate::handle::{Engine, Member};
use crate::seat::Seat;
use crate::{DeviceChoice, OpenError, OpenOptions, devices};

/// Engines of one model, one a device. Never empty.
pub(crate) struct Fleet<M> {
    info: Arc<EngineInfo>,
    members: Vec<M>,
}

/// Opens an engine on each device, all at once.
///
/// # Errors
/// A list that cannot be had, or the first device that cannot be opened, by name.
pub(crate) fn open(options: &OpenOptions, choices: Vec<DeviceChoice>) -> Result<Fleet<Engine>, OpenError> {
    let choices = crate::share_out(choices)?;
    // Their number is bounded far below a u16's.
    let seat = Seat::first(options, choices.len() as u16)?;
    let opened: Vec<_> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..)
            .zip(choices)
            .map(|(index, device)| {
                let seat = seat.beside(DeviceId(index));
                let name = devices::name(seat.device, &device);
                let options = OpenOptions { device, ..options.clone() };
                (name, scope.spawn(move || Engine::open(options, seat)))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(OpenError::Thread("it panicked while starting".to_owned())))
        };
        opening.into_iter().map(|(name, thread)| (name, join(thread))).collect()
    });
    let named = |(device, result): (String, Result<Engine, OpenError>)| {
        result.map_err(|error| OpenError::OnDevice { device, error: Box::new(error) })
    };
    let members: Vec<Engine> = opened.into_iter().map(named).collect::<Result<_, _>>()?;
    Fleet::new(members).ok_or_else(|| OpenError::Devices("no device was named".to_owned()))
}

impl<M: Member> Fleet<M> {
    /// `members` in the order of their devices' ids. `None` without any.
    fn new(members: Vec<M>) -> Option<Self> {
        let infos = members.iter().map(|member| member.info().as_ref().clone());
        let info = Arc::new(infos.reduce(joined)?);
        Some(Self { info, members })
    }

    fn numbered(&self) -> impl Iterator<Item = (DeviceId, &M)> {
        (0..).map(DeviceId).zip(&self.members)
    }

    /// The engine that a context lives in.
    fn member(&self, context: ContextId) -> Result<&M, EngineError> {
        // Their number is bounded far below a u16's.
        let device = Seat::device_of(context, self.members.len() as u16);
        self.members.get(usize::from(device.0)).ok_or(EngineError::ContextClosed)
    }

    /// The devices that serve, best first.
    fn ranked(&self) -> Vec<&M> {
        let mut left: Vec<_> = self
            .numbered()
            .filter(|(_, member)| member.health() == Health::Ready)
            .map(|(device, member)| (device, member.forecast(), member))
            .collect();
        let mut ranked = Vec::with_capacity(left.len());
        while let Some((best, _)) = sched::place(left.iter().map(|(id, forecast, _)| (*id, *forecast))) {
            left.retain(|(device, _, member)| {
                if *device == best {
                    ranked.push(*member);
                }
                *device != best
            });
        }
        ranked
    }
}

/// What two engines of one model say together.
fn joined(mut all: EngineInfo, other: EngineInfo) -> EngineInfo {
    all.limits.contexts_max += other.limits.contexts_max;
    all.limits.open_max += other.limits.open_max;
    all.limits.output_samples_max = all.limits.output_samples_max.max(other.limits.output_samples_max);
    all.device = format!("{}; {}", all.device, other.device);
    all
}

/// Errors that another device might not have answered.
const fn of_this_device(error: &EngineError) -> bool {
    use EngineError::{DeviceLost, Overloaded, TooManyContexts, Unavailable};
    matches!(error, DeviceLost { .. } | Overloaded { .. } | TooManyContexts { .. } | Unavailable { .. })
}

impl<M: Member> EngineHandle for Fleet<M> {
    fn info(&self) -> Arc<EngineInfo> {
        self.info.clone()
    }

    /// Ready while one device is; else what the first of them says.
    fn health(&self) -> Health {
        let mut worst = None;
        for member in &self.members {
            match member.health() {
                Health::Ready => return Health::Ready,
                other => drop(worst.get_or_insert(other)),
            }
        }
        worst.unwrap_or(Health::Ready)
    }

    fn open(&self, request: OpenContext, sink: Arc<dyn OutputSink>) -> Result<ContextId, EngineError> {
        let mut refused = None;
        for member in self.ranked() {
            match member.open(request.clone(), sink.clone()) {
                Err(error) if of_this_device(&error) => {
                    refused.get_or_insert(error);
                }
                decided => return decided,
            }
        }
        let reason = || match self.health() {
            Health::Failed(reason) | Health::Starting(reason) => reason,
            Health::Ready => "a device has just become ready; retry".to_owned(),
        };
        Err(refused.unwrap_or_else(|| EngineError::Unavailable { reason: reason() }))
    }

    fn push_text(&self, context: ContextId, text: &str) -> Result<TextAccepted, EngineError> {
        self.member(context)?.push_text(context, text)
    }

    fn release_tail(&self, context: ContextId) -> Result<TextAccepted, EngineError> {
        self.member(context)?.release_tail(context)
    }

    fn end_segment(&self, context: ContextId) -> Result<TextAccepted, EngineError> {
        self.member(context)?.end_segment(context)
    }

    fn finish(&self, context: ContextId) -> Result<(), EngineError> {
        self.member(context)?.finish(context)
    }

    fn playback(&self, context: ContextId, playback: Playback) {
        if let Ok(member) = self.member(context) {
            member.playback(context, playback);
        }
    }

    fn cancel(&self, context: ContextId) {
        if let Ok(member) = self.member(context) {
            member.cancel(context);
        }
    }

    fn forget_clip(&self, hash: [u8; 16]) {
        for member in &self.members {
            member.forget_clip(hash);
        }
    }

    fn stats(&self) -> EngineStats {
        let mut sum = EngineStats::default();
        for member in &self.members {
            sum.add(&member.stats());
        }
        sum
    }

    fn devices(&self) -> Vec<DeviceReport> {
        let report = |(device, member): (DeviceId, &M)| DeviceReport {
            device,
            about: member.info().device.clone(),
            health: member.health(),
            stats: member.stats(),
        };
        self.numbered().map(report).collect()
    }

    fn launches(&self, max: usize) -> Vec<LaunchSpan> {
        let mut all: Vec<_> = self.members.iter().flat_map(|member| member.launches(max)).collect();
        all.sort_by_key(|span| (span.finished, span.device, span.launch));
        all.split_off(all.len().saturating_sub(max))
    }
}

#[cfg(test)]
mod tests;
