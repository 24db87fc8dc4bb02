//! The row counts that shapes are recorded for.

/// Prompts of one prefill launch at most: each may bring a speaker's vector, and the smallest recorded batch of prompts
/// has this many rows.
pub const PROMPTS_MAX: u32 = 32;

/// Row counts from `least` to `most`: powers of two up to eight, then four to each doubling, and `most` itself. A launch
/// costs what its bucket costs, so past a few rows no more than a quarter of them is padding.
#[must_use]
pub fn row_buckets(least: u32, most: u32) -> Vec<u32> {
    const FINE_FROM: u32 = 8;
    let most = most.max(1);
    let mut list = Vec::new();
    let mut next = least.max(1);
    while next < most {
        list.push(next);
        let step = if next < FINE_FROM { next } else { (1 << next.ilog2()) / 4 };
        next = next.saturating_add(step);
    }
    list.push(most);
    list
}

/// The bucket for `rows`, in a list from one row up that has no end.
#[must_use]
pub fn row_bucket(rows: u32) -> u32 {
    let rows = rows.max(1);
    let step = if rows <= 8 { return rows.next_power_of_two() } else { (1 << (rows - 1).ilog2()) / 4 };
    rows.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_double_and_many_grow_by_a_quarter() {
        assert_eq!(row_buckets(1, 20), [1, 2, 4, 8, 10, 12, 14, 16, 20]);
        assert_eq!(row_buckets(64, 130), [64, 80, 96, 112, 128, 130]);
        assert_eq!((row_buckets(1, 1), row_buckets(1, 0), row_buckets(64, 8)), (vec![1], vec![1], vec![8]));
    }

    #[test]
    fn every_number_of_rows_has_a_bucket_that_wastes_little() {
        let list = row_buckets(1, 1_024);
        for rows in 1..=1_024 {
            let bucket = list.iter().find(|&&bucket| bucket >= rows).copied().unwrap_or(0);
            assert_eq!(row_bucket(rows), bucket);
            assert!(bucket >= rows && (rows <= 8 || bucket * 4 <= rows * 5), "{rows} rows in {bucket}");
        }
        assert!(list.is_sorted() && list.len() < 40);
    }
}
