//! The words every part of Voxlane shares: ids, time, stages and lanes, outcomes, errors, and the
//! [`EngineHandle`] through which the gateway reaches an engine.
//!
//! This crate reads no clock, opens no file and knows no model, no JSON and no CUDA. Everything here
//! is a plain value, so that the scheduler, the runtime, the simulator and the gateway mean the same
//! thing by the same name (DESIGN.md section 1).

mod control;
mod error;
mod handle;
mod ids;
mod info;
mod output;
mod request;
mod spread;
mod stage;
mod time;
mod trace;

pub use control::{ControlTokens, ControlWatch};
pub use error::{EngineError, ErrorClass};
pub use handle::{EngineHandle, Health, OutputSink, SinkFull};
pub use ids::{ContextId, DeviceId, Epoch, LaunchId, ModelId, PageId, SlotId, Version};
pub use info::{EngineInfo, Layout, Limits, ModelInfo, SamplingDefaults, VoiceInfo, VoiceKind};
pub use output::{Chunk, FinishReason, Output, Usage};
pub use request::{Clip, CloneMode, OpenContext, Playback, Sampling, TextAccepted, VoiceChoice};
pub use spread::Spread;
pub use stage::{Lane, Partition, ShapeKey, Stage};
pub use time::{Span, Tick};
pub use trace::{DeviceReport, EngineStats, LaneStats, LaunchSpan, StageShape};
