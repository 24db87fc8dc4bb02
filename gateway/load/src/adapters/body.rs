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
/// Rates that samples can have.
const RATES_HZ: std::ops::RangeInclusive<u64> = 1..=CLOCK_HZ * 8;
/// Sound whose bytes are no samples: by what the head calls it, and by how it begins where the head says nothing.
const COMPRESSED: [&str; 9] = ["mpeg", "mp3", "ogg", "opus", "aac", "flac", "mp4", "webm", "basic"];
const COMPRESSED_BEGINS: [&[u8]; 3] = [b"OggS", b"fLaC", b"ID3"];

/// Takes a body apart, piece by piece.
#[derive(Debug)]
pub(super) struct Body {
    packing: Packing,
    /// Not yet taken apart: the head of a WAV stream, or a part of an event.
    kept: Vec<u8>,
    rate_hz: u64,
    pcm: PcmPieces,
    /// Whether any sample has come.
    heard: bool,
    /// Samples since the present rate was said, at that rate and at [`CLOCK_HZ`].
    samples: u64,
    told: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    /// Nothing but samples, unless the first bytes say otherwise.
    Begin,
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
            _ if COMPRESSED.iter().any(|name| kind.strip_prefix("audio/") == Some(name)) => {
                return Err(compressed(kind));
            }
            // A header is no sound, also where none was asked for.
            "audio/wav" | "audio/x-wav" | "audio/wave" | "audio/vnd.wave" => Packing::WavHead,
            _ if wav => Packing::WavHead,
            _ => Packing::Begin,
        };
        let said = content.split(';').find_map(|part| part.trim().strip_prefix("rate="));
        let rate = said.unwrap_or_else(|| text("x-sample-rate")).parse::<u64>();
        let rate_hz = rate.ok().filter(|rate| RATES_HZ.contains(rate)).unwrap_or(RATE_HZ);
        let pcm = PcmPieces::default();
        Ok(Self { packing, kept: Vec::new(), rate_hz, pcm, heard: false, samples: 0, told: 0 })
    }

    /// Sound that `bytes` completes: samples at 48 kHz, and whether one of them is audible.
    ///
    /// # Errors
    /// What the server reports within its stream, or bytes that cannot be taken apart.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(u64, bool), String> {
        match self.packing {
            Packing::Raw => Ok(self.sound(bytes)),
            Packing::Begin => {
                self.kept.extend_from_slice(bytes);
                if COMPRESSED_BEGINS.iter().any(|begin| self.kept.starts_with(begin)) {
                    return Err(compressed("compressed sound"));
                }
                if self.kept.len() < 4 {
                    return Ok((0, false));
                }
                self.packing = if self.kept.starts_with(b"RIFF") { Packing::WavHead } else { Packing::Raw };
                let begun = std::mem::take(&mut self.kept);
                self.take(&begun)
            }
            Packing::WavHead => {
                self.kept.extend_from_slice(bytes);
                match wav_head(&self.kept)? {
                    Some((rate, at)) => {
                        self.at_rate(rate);
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
            _ if !self.heard => Err("the answer holds no sound".to_owned()),
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
        if let Some(rate) = audio["sample_rate"].as_u64().filter(|rate| RATES_HZ.contains(rate)) {
            self.at_rate(rate);
        }
        let Some(sound) = audio.as_str().or_else(|| audio["data"].as_str()) else { return Ok((0, false)) };
        let bytes = STANDARD.decode(sound).map_err(failure)?;
        Ok(self.sound(&bytes))
    }

    /// What follows is of this rate; what has come keeps its own.
    fn at_rate(&mut self, rate_hz: u64) {
        if rate_hz != self.rate_hz {
            (self.rate_hz, self.samples, self.told) = (rate_hz, 0, 0);
        }
    }

    fn sound(&mut self, bytes: &[u8]) -> (u64, bool) {
        let (count, audible) = self.pcm.take(bytes);
        self.heard |= count > 0;
        self.samples += count;
        // Counted from the whole, so that no rate loses a part of a sample at each piece.
        let told = self.samples * CLOCK_HZ / self.rate_hz;
        let new = told - self.told;
        self.told = told;
        (new, audible)
    }
}

fn compressed(kind: &str) -> String {
    failure(format!("the answer is {kind}, whose samples cannot be counted: ask for pcm or wav"))
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
    if RATES_HZ.contains(&rate) {
        Ok(Some((rate, at)))
    } else {
        Err("the WAV header says no rate".to_owned())
    }
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

    #[test]
    fn the_header_of_a_wav_that_nobody_asked_for_is_no_sound() {
        for content in ["audio/wav", "audio/x-wav; rate=8000", "application/octet-stream", "audio/pcm"] {
            let mut body = Body::of(&head(content), false).expect("sound");
            let silence = [wav(1, 48_000), vec![0; 96_000]].concat();
            let heard = silence.chunks(7).map(|piece| body.take(piece).expect("samples"));
            let (samples, audible) = heard.fold((0, false), |sum, it| (sum.0 + it.0, sum.1 || it.1));
            assert_eq!((samples, audible), (CLOCK_HZ, false), "{content}");
        }
    }

    #[test]
    fn compressed_sound_is_an_error_and_not_noise() {
        for content in ["audio/mpeg", "audio/ogg; codecs=opus", "audio/aac", "audio/flac"] {
            for wav in [false, true] {
                let error = Body::of(&head(content), wav).expect_err("no samples");
                assert!(error.contains(content.split(';').next().expect("one")), "{error}");
            }
        }
        for begin in [b"OggS\0\x02", b"fLaC\0\0", b"ID3\x04\0\0"] {
            let mut body = Body::of(&head("application/octet-stream"), false).expect("maybe sound");
            assert!(body.take(begin).expect_err("no samples").contains("pcm or wav"));
        }
    }

    #[test]
    fn what_has_come_keeps_its_length_when_events_turn_to_another_rate() {
        for (rates, expected) in
            [([24_000, 48_000], 72_000), ([48_000, 24_000], 72_000), ([24_000, u64::MAX], 96_000)]
        {
            let mut body = Body::of(&head("text/event-stream"), false).expect("events");
            let mut samples = 0;
            for rate in rates {
                let data = STANDARD.encode(vec![0; 48_000]);
                let event = format!("data: {{\"audio\":{{\"data\":\"{data}\",\"sample_rate\":{rate}}}}}\n\n");
                samples += body.take(event.as_bytes()).expect("samples").0;
            }
            assert_eq!(samples, expected, "{rates:?}");
        }
    }
}
