//! The printable character that stands for each byte in byte-level vocabularies (GPT-2).

/// Byte to symbol.
pub(super) struct ByteAlphabet {
    symbols: Vec<String>,
}

impl ByteAlphabet {
    pub(super) fn new() -> Self {
        let mut stand_ins = '\u{100}'..;
        let symbols = (0..=u8::MAX).map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte).to_string(),
            _ => stand_ins.next().map(String::from).unwrap_or_default(),
        });
        Self { symbols: symbols.collect() }
    }

    pub(super) fn symbols(&self) -> impl Iterator<Item = &str> {
        self.symbols.iter().map(String::as_str)
    }

    /// `text`, one symbol for each of its bytes.
    pub(super) fn spell(&self, text: &str) -> String {
        let mut spelled = String::with_capacity(text.len() * 2);
        for byte in text.bytes() {
            spelled.push_str(&self.symbols[usize::from(byte)]);
        }
        spelled
    }
}
