//! Fixed-ratio sample-rate conversion by FFT overlap-add (crate `rubato`).
//!
//! The library works on blocks and answers late by half a block. [`Resampler`] hides both: pieces of any
//! length go in, the start delay is trimmed, the tail is flushed, and `n` samples in make exactly
//! `round(n * to / from)` samples out, aligned with the input. How the input is cut into pieces never
//! changes a bit of the output.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _, WindowFunction};

use crate::{CodecError, error::check_finite};

/// Rates a resampler can be made for.
pub const RATE_HZ_MIN: u32 = 1_000;
pub const RATE_HZ_MAX: u32 = 384_000;

/// Shortest block on either side, in samples. The anti-alias filter is one block long, so this trades the
/// width of its transition (the passband ends at 0.91 of the lower rate's Nyquist frequency for 160)
/// against delay: 24 kHz to 16 kHz works in blocks of 10 ms, to 8 kHz in blocks of 20 ms.
const BLOCK_SAMPLES_MIN: u32 = 160;

/// Converts one stream of mono samples.
pub struct Resampler {
    from_hz: u32,
    to_hz: u32,
    /// Absent when the rates are equal: samples pass through untouched.
    blocks: Option<Blocks>,
    samples_in: u64,
    samples_out: u64,
}

impl Resampler {
    /// # Errors
    /// [`CodecError::InvalidSetting`] for a rate outside [`RATE_HZ_MIN`] to [`RATE_HZ_MAX`].
    pub fn new(from_hz: u32, to_hz: u32) -> Result<Self, CodecError> {
        check_rate("source rate in Hz", from_hz)?;
        check_rate("target rate in Hz", to_hz)?;
        let blocks = if from_hz == to_hz { None } else { Some(Blocks::new(from_hz, to_hz)?) };
        Ok(Self { from_hz, to_hz, blocks, samples_in: 0, samples_out: 0 })
    }

    #[must_use]
    pub fn from_hz(&self) -> u32 {
        self.from_hz
    }

    #[must_use]
    pub fn to_hz(&self) -> u32 {
        self.to_hz
    }

    /// How many samples `samples_in` become: `round(samples_in * to / from)`, halves up.
    #[must_use]
    pub fn output_len(&self, samples_in: u64) -> u64 {
        let (from, to) = (u128::from(self.from_hz), u128::from(self.to_hz));
        let rounded = (u128::from(samples_in) * to * 2 + from) / (from * 2);
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }

    /// Most input samples that can be held back, waiting for their block and for the filter's look-ahead.
    #[must_use]
    pub fn hold_back_samples(&self) -> usize {
        self.blocks.as_ref().map_or(0, |blocks| blocks.input_len + blocks.input_len / 2)
    }

    /// Takes a piece of any length and appends what is ready to `out`.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`] before anything is taken (one NaN would spread over whole blocks).
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), CodecError> {
        check_finite(samples, self.samples_in)?;
        self.samples_in += samples.len() as u64;
        let before = out.len();
        match &mut self.blocks {
            None => out.extend_from_slice(samples),
            Some(blocks) => blocks.push(samples, out)?,
        }
        self.samples_out += (out.len() - before) as u64;
        Ok(())
    }

    /// Appends the rest, so that the whole stream made [`Self::output_len`] samples, and starts over: the
    /// next push begins a new stream.
    ///
    /// # Errors
    /// [`CodecError::Library`] only if the library breaks its own contract.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<(), CodecError> {
        let missing = self.output_len(self.samples_in) - self.samples_out;
        self.samples_in = 0;
        self.samples_out = 0;
        match &mut self.blocks {
            None => Ok(()),
            // Less than two blocks are ever missing, so this converts to usize on every machine.
            Some(blocks) => blocks.finish(missing as usize, out),
        }
    }

    /// Drops what is held back and starts over, for an interrupt.
    pub fn reset(&mut self) {
        self.samples_in = 0;
        self.samples_out = 0;
        if let Some(blocks) = &mut self.blocks {
            blocks.reset();
        }
    }
}

/// Converts a whole clip.
///
/// # Errors
/// As [`Resampler::new`] and [`Resampler::push`].
pub fn resample_all(samples: &[f32], from_hz: u32, to_hz: u32) -> Result<Vec<f32>, CodecError> {
    let mut resampler = Resampler::new(from_hz, to_hz)?;
    let mut out = Vec::with_capacity(resampler.output_len(samples.len() as u64) as usize);
    resampler.push(samples, &mut out)?;
    resampler.finish(&mut out)?;
    Ok(out)
}

struct Blocks {
    fft: Fft<f32>,
    input_len: usize,
    /// Input that does not fill a block yet; always shorter than `input_len` between calls.
    pending: Vec<f32>,
    block_out: Vec<f32>,
    /// Output samples still to drop: the library's start delay.
    trim: usize,
}

impl Blocks {
    fn new(from_hz: u32, to_hz: u32) -> Result<Self, CodecError> {
        let divisor = gcd(from_hz, to_hz);
        let (unit_in, unit_out) = (from_hz / divisor, to_hz / divisor);
        // An even number of units makes half a block, the delay, a whole number of samples on both sides.
        let units = BLOCK_SAMPLES_MIN.div_ceil(unit_in.min(unit_out)).next_multiple_of(2);
        let fft = Fft::new_custom(
            from_hz as usize,
            to_hz as usize,
            (units * unit_in) as usize,
            1,
            1,
            WindowFunction::BlackmanHarris2,
            FixedSync::Both,
        )
        .map_err(|error| library("resampler set-up", &error))?;
        let (input_len, output_len) = (fft.input_frames_next(), fft.output_frames_next());
        let trim = fft.output_delay();
        Ok(Self {
            fft,
            input_len,
            pending: Vec::with_capacity(input_len),
            block_out: vec![0.0; output_len],
            trim,
        })
    }

    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), CodecError> {
        let mut rest = samples;
        while self.pending.len() + rest.len() >= self.input_len {
            let (head, tail) = rest.split_at(self.input_len - self.pending.len());
            self.pending.extend_from_slice(head);
            rest = tail;
            self.run(out, usize::MAX)?;
        }
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    fn finish(&mut self, missing: usize, out: &mut Vec<f32>) -> Result<(), CodecError> {
        let end = out.len() + missing;
        while out.len() < end {
            self.run(out, end - out.len())?;
        }
        self.reset();
        Ok(())
    }

    /// Converts `pending`, filled up with silence, and appends at most `room` samples of the result.
    fn run(&mut self, out: &mut Vec<f32>, room: usize) -> Result<(), CodecError> {
        let valid = self.pending.len();
        self.pending.resize(self.input_len, 0.0);
        let output_len = self.block_out.len();
        let input = InterleavedSlice::new(&self.pending, 1, self.input_len)
            .map_err(|error| library("resampler input", &error))?;
        let mut output = InterleavedSlice::new_mut(&mut self.block_out, 1, output_len)
            .map_err(|error| library("resampler output", &error))?;
        let indexing = Indexing::new().partial_len(valid);
        self.fft
            .process_into_buffer(&input, &mut output, Some(&indexing))
            .map_err(|error| library("resampling", &error))?;
        self.pending.clear();
        let dropped = self.trim.min(output_len);
        self.trim -= dropped;
        let ready = &self.block_out[dropped..];
        out.extend_from_slice(&ready[..ready.len().min(room)]);
        Ok(())
    }

    fn reset(&mut self) {
        self.fft.reset();
        self.pending.clear();
        self.trim = self.fft.output_delay();
    }
}

fn check_rate(setting: &'static str, rate_hz: u32) -> Result<(), CodecError> {
    if (RATE_HZ_MIN..=RATE_HZ_MAX).contains(&rate_hz) {
        return Ok(());
    }
    Err(CodecError::InvalidSetting { setting, value: i64::from(rate_hz), allowed: "1000 to 384000" })
}

fn library(operation: &'static str, error: &dyn std::fmt::Display) -> CodecError {
    CodecError::Library { operation, reason: error.to_string() }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
