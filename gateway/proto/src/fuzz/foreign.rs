//! Whole sessions whose clients speak the dialects of other services.

use crate::dialect::Dialect;
use crate::elevenlabs::{self, Contexts, Options, OutputFormat};
use crate::{cartesia, catalog::Ask};

/// As [`super::session`], of ElevenLabs' and of Cartesia's clients. The first byte chooses which.
pub fn foreign(bytes: &[u8]) {
    let which = bytes.first().copied().unwrap_or(0);
    let options = |contexts, format| Options {
        contexts,
        format,
        ask: Ask::default(),
        auto_mode: which.is_multiple_of(2),
        sync_alignment: which.is_multiple_of(3),
        inactivity: contract::Span::from_millis(1_000),
    };
    let dialect: Box<dyn Dialect> = match which % 4 {
        0 => Box::new(elevenlabs::Socket::new(options(Contexts::Many, OutputFormat::Opus))),
        1 => Box::new(elevenlabs::Socket::new(options(Contexts::One, OutputFormat::Pcm(22_050)))),
        _ => Box::new(cartesia::Socket::new()),
    };
    let write = if which % 4 < 2 { elevenlabs_message } else { cartesia_message };
    super::run(bytes.get(1..).unwrap_or_default(), dialect, write);
}

const TEXTS: [&str; 8] = ["Hello. ", "a", r"\ud83d", r"\ude00", " ", "", "3. Three", "你好。"];

fn elevenlabs_message(action: u8, argument: u8) -> String {
    let context = argument % 3;
    let text = TEXTS[usize::from(argument / 4) % TEXTS.len()];
    match action {
        0..=3 => format!(r#"{{"text":"{text}","context_id":"{context}"}}"#),
        4 => format!(r#"{{"text":"{text}","context_id":"{context}","flush":true}}"#),
        5 => format!(r#"{{"context_id":"{context}","flush":true}}"#),
        6 | 7 => format!(r#"{{"context_id":"{context}","close_context":true}}"#),
        8 => format!(r#"{{"text":" ","context_id":"{context}","voice_settings":{{"speed":{argument}}}}}"#),
        9 if argument > 250 => r#"{"close_socket":true}"#.to_owned(),
        _ => r#"{"text":""}"#.to_owned(),
    }
}

fn cartesia_message(action: u8, argument: u8) -> String {
    let context = argument % 3;
    let text = TEXTS[usize::from(argument / 4) % TEXTS.len()];
    let more = action < 6;
    let flush = action == 5 || argument > 200;
    let delay = u32::from(argument) * 20;
    let encoding = ["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_s8"][usize::from(argument) % 4];
    match action {
        0..=8 => format!(
            r#"{{"context_id":"{context}","transcript":"{text}","continue":{more},"flush":{flush},"max_buffer_delay_ms":{delay},"add_timestamps":true,"output_format":{{"container":"raw","encoding":"{encoding}","sample_rate":44100}}}}"#
        ),
        9 => format!(r#"{{"context_id":"{context}","cancel":true}}"#),
        _ => format!(r#"{{"transcript":"{text}"}}"#),
    }
}
