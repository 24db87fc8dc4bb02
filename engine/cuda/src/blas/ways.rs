//! How each shape was found to be multiplied quickest, kept from one start to the next as lines of text: trying takes
//! longer than everything else at a start. A way is the library's own, good for one release of it on one kind of card.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::lower::Matmul;

/// A way to multiply, as the library describes it, and how many SMs it was told there are (0 leaves it to the card).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) told: u32,
    pub(super) algorithm: [u64; 8],
}

/// By shape and SMs of the partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ways(BTreeMap<(Matmul, u32), Way>);

impl Ways {
    pub(super) fn get(&self, matmul: Matmul, sms: u32) -> Option<Way> {
        self.0.get(&(matmul, sms)).copied()
    }

    pub(super) fn insert(&mut self, matmul: Matmul, sms: u32, way: Way) {
        self.0.insert((matmul, sms), way);
    }

    /// Lines that are none are left out: what they held is found again.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse).collect())
    }

    pub(super) fn print(&self) -> String {
        let mut text = String::new();
        for ((matmul, sms), Way { told, algorithm }) in &self.0 {
            let Matmul { rows, cols, depth, out_bf16, add } = matmul;
            let (out_bf16, add) = (u8::from(*out_bf16), u8::from(*add));
            let mut line = format!("{rows} {cols} {depth} {out_bf16} {add} {sms} {told}");
            for word in algorithm {
                let _ = write!(line, " {word:x}");
            }
            let _ = writeln!(text, "{line} {:x}", checksum(&line));
        }
        text
    }
}

/// FNV-1a.
fn checksum(line: &str) -> u64 {
    line.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// `None` too for a line that was cut short or changed: the library takes such a way on trust.
fn parse(line: &str) -> Option<((Matmul, u32), Way)> {
    let (line, sum) = line.rsplit_once(' ')?;
    if u64::from_str_radix(sum, 16).ok()? != checksum(line) {
        return None;
    }
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse::<usize>().ok();
    let [rows, cols, depth, out_bf16, add, sms, told] = [(); 7].map(|()| number());
    let mut algorithm = [0; 8];
    for place in &mut algorithm {
        *place = u64::from_str_radix(words.next()?, 16).ok()?;
    }
    let matmul = Matmul { rows: rows?, cols: cols?, depth: depth?, out_bf16: out_bf16? == 1, add: add? == 1 };
    let way = Way { told: u32::try_from(told?).ok()?, algorithm };
    words.next().is_none().then_some(((matmul, u32::try_from(sms?).ok()?), way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_as_they_were_printed_and_what_is_none_is_left_out() {
        let shape = Matmul { rows: 96, cols: 4096, depth: 1024, out_bf16: false, add: true };
        let mut ways = Ways::default();
        ways.insert(shape, 84, Way { told: 84, algorithm: [1, 2, 3, 4, 5, 6, 7, u64::MAX] });
        ways.insert(Matmul { out_bf16: true, add: false, ..shape }, 132, Way { told: 0, algorithm: [9; 8] });
        let text = ways.print();
        assert_eq!(Ways::parse(&text), ways);
        for cut in 1..40 {
            let short = &text[..text.len() - 1 - cut];
            assert_eq!(Ways::parse(short).0.len(), 1, "{cut} letters of a line were lost");
        }
        let changed = text.replacen("4096", "4097", 1);
        assert_eq!(Ways::parse(&format!("{changed}\nnot a way\n\n1 2 3\n")).0.len(), 1);
        assert_eq!(ways.get(shape, 84).map(|way| way.told), Some(84));
        assert_eq!(ways.get(shape, 100), None);
    }
}
