//! Where blocks of memory with known lives lie in one arena.

/// Memory alive from step to step, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub from: usize,
    pub to: usize,
    pub size: usize,
    /// Found by [`pack`].
    pub offset: usize,
}

impl Block {
    #[must_use]
    pub const fn new(from: usize, to: usize, size: usize) -> Self {
        Self { from, to, size, offset: 0 }
    }
}

/// Gives every block an offset, a multiple of `align`, so that blocks alive together do not overlap; returns
/// the size needed. Largest first, each at the lowest place that is free for its whole life.
pub fn pack(blocks: &mut [Block], align: usize) -> usize {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].size), blocks[i].from, i));
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for index in order {
        let size = blocks[index].size.next_multiple_of(align);
        if size == 0 {
            continue;
        }
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .map(|&p| &blocks[p])
            .filter(|p| p.from <= blocks[index].to && blocks[index].from <= p.to)
            .map(|p| (p.offset, p.offset + p.size.next_multiple_of(align)))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if start >= offset + size {
                break;
            }
            offset = offset.max(end);
        }
        blocks[index].offset = offset;
        total = total.max(offset + size);
        placed.push(index);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_alive_together_never_overlap_and_others_share() {
        let mut blocks: Vec<Block> =
            (0..40).map(|i| Block::new(i, i + i % 5, 100 + 37 * (i * 7 % 11))).collect();
        let total = pack(&mut blocks, 64);
        for (i, a) in blocks.iter().enumerate() {
            assert!(a.offset.is_multiple_of(64) && a.offset + a.size <= total);
            for b in &blocks[i + 1..] {
                let together = a.from <= b.to && b.from <= a.to;
                let apart = a.offset + a.size <= b.offset || b.offset + b.size <= a.offset;
                assert!(!together || apart, "{a:?} {b:?}");
            }
        }
        assert!(total < blocks.iter().map(|block| block.size).sum());
    }
}
