//! The sound in an answer's body, however its server packs it: raw samples, a WAV stream, or events.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use serde_json::Value;

use super::{CLOCK_HZ, PcmPieces, failure};

/// Hertz of the PCM of a server that does not say.
const RATE_HZ: u64 = 24_000;
/// A WAV header is found within this many bytes.
const HEADER_MAX: usize = 4_096;
/// Bytes of one event.
const EVENT_MAX: usize = 4 << 20;

/// Takes a body apart, piece by piece.
#[derive(Debug)]
pub(super) struct Body {
    packing: Packing,
    /// Not yet taken apart: the head of a WAV stream, or a part of an event.
    kept: Vec<u8>,
    rate_hz: u64,
    pcm: PcmPieces,
    /// Samples at the stream's own rate, and at [`CLOCK_HZ`].
    samples: u64,
    told: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Raw,
    WavHead,
    /// Server-sent events; whether the last has said that nothing follows.
    Events {
        ended: bool,
    },
}

impl Body {
    /// By what the answer's head says, or else by what was asked for.
    ///
    /// # Errors
    /// A content that is no sound.
    pub(super) fn of(head: &HeaderMap, wav: bool) -> Result<Self, String> {
        let text = |name: &str| head.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content = text("content-type").to_ascii_lowercase();
        let kind = content.split(';').next().unwrap_or_default().trim();
        let packing = match kind {
            "text/event-stream" => Packing::Events { ended: false },
            _ if kind.starts_with("text/") || kind == "application/json" => {
                return Err(failure(format!("the answer is {kind}, not sound")));
            }
            _ if wav => Packing::WavHead,
            _ => Packing::Raw,
        };
        let said = content.split(';').find_map(|part| part.trim().strip_prefix("rate="));
        let rate = said.unwrap_or_else(|| text("x-sample-rate")).parse::<u64>();
        let rate_hz = rate.ok().filter(|rate| (1..=CLOCK_HZ * 8).contains(rate)).unwrap_or(RATE_HZ);
        Ok(Self { packing, kept: Vec::new(), rate_hz, pcm: PcmPieces::default(), samples: 0, told: 0 })
    }

    /// Sound that `bytes` completes: samples at 48 kHz, and whether one of them is audible.
    ///
    /// # Errors
    /// What the server reports within its stream, or bytes that cannot be taken apart.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(u64, bool), String> {
        match self.packing {
            Packing::Raw => Ok(self.sound(bytes)),
            Packing::WavHead => {
                self.kept.extend_from_slice(bytes);
                match wav_head(&self.kept)? {
                    Some((rate, at)) => {
                        self.rate_hz = rate;
                        self.packing = Packing::Raw;
                        let rest = self.kept.split_off(at);
                        Ok(self.sound(&rest))
                    }
                    None if self.kept.len() > HEADER_MAX => Err("the body holds no WAV header".to_owned()),
                    None => Ok((0, false)),
                }
            }
            Packing::Events { .. } => {
                self.kept.extend_from_slice(bytes);
                let mut heard = (0, false);
                while let Some(end) = self.kept.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.kept.drain(..=end).collect();
                    let (samples, audible) = self.line(&line)?;
                    heard = (heard.0 + samples, heard.1 || audible);
                }
                if self.kept.len() > EVENT_MAX {
                    return Err(format!("an event is longer than {EVENT_MAX} bytes"));
                }
                Ok(heard)
            }
        }
    }

    /// The body is over: whether that is how a whole one ends.
    ///
    /// # Errors
    /// Events that stopped before the last one, or no sound at all.
    pub(super) fn end(&self) -> Result<(), String> {
        match self.packing {
            Packing::Events { ended: false } => Err("the events stopped before the last".to_owned()),
            _ if self.samples == 0 => Err("the answer holds no sound".to_owned()),
            _ => Ok(()),
        }
    }

    /// One line of an event. Both shapes in use are taken: `audio` as text, and as an object of `data`.
    fn line(&mut self, line: &[u8]) -> Result<(u64, bool), String> {
        let text = std::str::from_utf8(line).map_err(failure)?.trim_end();
        let Some(data) = text.strip_prefix("data:").map(str::trim_start) else { return Ok((0, false)) };
        if data == "[DONE]" {
            self.packing = Packing::Events { ended: true };
            return Ok((0, false));
        }
        let event: Value = serde_json::from_str(data).map_err(failure)?;
        if event["error"].is_object() || event["type"] == "error" {
            let message = event["error"]["message"].as_str().unwrap_or("the server said no more");
            return Err(failure(format!("it broke off: {message}")));
        }
        if event["type"] == "speech.audio.done" || event["finish_reason"].is_string() {
            self.packing = Packing::Events { ended: true };
        }
        let audio = &event["audio"];
        if let Some(rate) = audio["sample_rate"].as_u64().filter(|rate| *rate > 0) {
            self.rate_hz = rate;
        }
        let Some(sound) = audio.as_str().or_else(|| audio["data"].as_str()) else { return Ok((0, false)) };
        let bytes = STANDARD.decode(sound).map_err(failure)?;
        Ok(self.sound(&bytes))
    }

    fn sound(&mut self, bytes: &[u8]) -> (u64, bool) {
        let (count, audible) = self.pcm.take(bytes);
        self.samples += count;
        // Counted from the whole, so that no rate loses a part of a sample at each piece.
        let told = self.samples * CLOCK_HZ / self.rate_hz;
        let new = told - self.told;
        self.told = told;
        (new, audible)
    }
}

/// The rate of a streamed WAV, and where its samples begin: behind the head of its `data` chunk.
fn wav_head(head: &[u8]) -> Result<Option<(u64, usize)>, String> {
    let Some(at) = head.windows(4).position(|four| four == b"data").map(|at| at + 8) else { return Ok(None) };
    if at > head.len() {
        return Ok(None);
    }
    let format = head.windows(4).position(|four| four == b"fmt ").map(|at| &head[at + 8..]);
    let Some([_, _, channels, _, a, b, c, d, _, _, _, _, _, _, bits, _, ..]) = format else {
        return Err("the WAV header says no format".to_owned());
    };
    if (*channels, *bits) != (1, 16) {
        return Err(format!("the WAV holds {channels} channels of {bits} bits, not one of 16"));
    }
    let rate = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if rate == 0 { Err("the WAV header says no rate".to_owned()) } else { Ok(Some((rate, at))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(content: &'static str) -> HeaderMap {
        let mut head = HeaderMap::new();
        head.insert("content-type", content.parse().expect("a header"));
        head
    }

    fn wav(channels: u8, rate: u32) -> Vec<u8> {
        let mut bytes = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0".to_vec();
        bytes.extend([channels, 0]);
        bytes.extend(rate.to_le_bytes());
        bytes.extend([0, 0, 0, 0, 2, 0, 16, 0]);
        bytes.extend(b"data\xff\xff\xff\xff");
        bytes
    }

    #[test]
    fn sound_is_counted_at_the_rate_its_own_header_says() {
        for (rate, begun) in
            [(8_000, "audio/wav"), (44_100, "audio/wav"), (48_000, "application/octet-stream")]
        {
            let mut body = Body::of(&head(begun), true).expect("sound");
            let bytes = [wav(1, rate), vec![0; rate as usize * 2]].concat();
            let pieces = bytes.chunks(333).map(|piece| body.take(piece).expect("samples").0);
            assert_eq!(pieces.sum::<u64>(), CLOCK_HZ, "a second at {rate} Hz");
        }
        let mut body = Body::of(&head("audio/pcm; rate=16000"), false).expect("sound");
        assert_eq!(body.take(&[0; 32_000]), Ok((CLOCK_HZ, false)));
    }

    #[test]
    fn what_is_no_sound_of_one_channel_is_an_error_and_not_noise() {
        let error = Body::of(&head("application/json"), false).expect_err("no sound");
        assert!(error.contains("application/json"), "{error}");
        let mut stereo = Body::of(&head("audio/wav"), true).expect("sound");
        assert!(stereo.take(&wav(2, 24_000)).expect_err("two channels").contains("2 channels"));
        let mut noise = Body::of(&head("audio/wav"), true).expect("sound");
        assert!(noise.take(&vec![7; HEADER_MAX + 1]).is_err());
        assert!(Body::of(&head("audio/pcm"), false).expect("sound").end().is_err(), "an empty body");
    }

    #[test]
    fn events_that_stop_before_the_last_are_a_failure() {
        let mut body = Body::of(&head("text/event-stream"), false).expect("events");
        let delta = format!(
            "data: {{\"type\":\"speech.audio.delta\",\"audio\":\"{}\"}}\n\n",
            STANDARD.encode([0xff, 0x7f])
        );
        assert_eq!(body.take(delta.as_bytes()), Ok((2, true)));
        assert!(body.end().is_err());
        assert_eq!(body.take(b"data: {\"type\":\"speech.audio.done\"}\n\n"), Ok((0, false)));
        assert_eq!(body.end(), Ok(()));
    }
}
