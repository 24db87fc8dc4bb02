//! Rows of an output that are large, of which only the first values are wanted: each is taken out by itself, and
//! looked through on the way.

use crate::DeviceError;

/// Values that stay in the first cache between being copied and being looked at.
const AT_ONCE: usize = 2_048;

/// What was wanted of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub values: Box<[f32]>,
    /// The greatest magnitude; `None` where a value is not finite.
    pub peak: Option<f32>,
}

impl Piece {
    /// Copies `row`.
    #[must_use]
    pub fn of(row: &[f32]) -> Self {
        let mut values = Vec::with_capacity(row.len());
        let mut top = 0;
        for part in row.chunks(AT_ONCE) {
            values.extend_from_slice(part);
            top = top.max(magnitude(part));
        }
        let finite = top < f32::INFINITY.to_bits().cast_signed();
        Self { values: values.into(), peak: finite.then(|| f32::from_bits(top.cast_unsigned())) }
    }

    /// The first `wanted` values of each row; `block` holds the rows one behind the other.
    #[must_use]
    pub fn of_rows(block: &[f32], wanted: &[usize]) -> Vec<Self> {
        let width = block.len() / wanted.len().max(1);
        let rows = block.chunks_exact(width.max(1)).zip(wanted);
        rows.map(|(row, &wanted)| Self::of(&row[..wanted.min(width)])).collect()
    }

    /// Whether so much can be wanted of an output of so many rows, each so wide.
    ///
    /// # Errors
    /// [`DeviceError::BadInput`].
    pub fn check(wanted: &[usize], rows: usize, width: usize) -> Result<(), DeviceError> {
        let bad = |input: &str, given, expected| {
            Err(DeviceError::BadInput { input: input.to_owned(), given, expected })
        };
        if wanted.len() != rows {
            return bad("rows of which something is wanted", wanted.len(), rows);
        }
        match wanted.iter().find(|wanted| **wanted > width) {
            Some(&wanted) => bad("values wanted of a row", wanted, width),
            None => Ok(()),
        }
    }
}

/// Bits of the greatest magnitude. Magnitudes are in the order of their bits, so that no comparison waits for the one
/// before it.
fn magnitude(values: &[f32]) -> i32 {
    values.iter().map(|value| value.abs().to_bits().cast_signed()).fold(0, i32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(values: &[f32]) -> Option<f32> {
        let piece = Piece::of(values);
        assert_eq!(piece.values.len(), values.len());
        piece.peak
    }

    #[test]
    fn the_loudest_value_of_either_sign_is_the_peak_and_what_is_not_finite_has_none() {
        assert_eq!(peak(&[]), Some(0.0));
        assert_eq!(peak(&[0.25, -0.75, 0.5, -0.0]), Some(0.75));
        assert_eq!(peak(&[f32::MIN_POSITIVE, f32::MAX]), Some(f32::MAX));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(peak(&[0.5, bad, 0.25]), None, "{bad}");
        }
    }

    #[test]
    fn of_each_row_the_first_values_are_taken_and_what_follows_is_not_looked_at() {
        let mut block: Vec<f32> = (0..3 * 5_000).map(|at| at as f32).collect();
        block[4_999] = f32::NAN;
        let pieces = Piece::of_rows(&block, &[4_999, 0, 5_000]);
        assert_eq!(&pieces[0].values[..], &block[..4_999]);
        assert_eq!((pieces[0].peak, pieces[1].peak), (Some(4_998.0), Some(0.0)));
        assert_eq!((&pieces[2].values[..], pieces[2].peak), (&block[10_000..], Some(14_999.0)));
    }

    #[test]
    fn no_more_can_be_wanted_than_there_is() {
        assert!(Piece::check(&[3, 5], 2, 5).is_ok());
        assert!(Piece::check(&[3], 2, 5).is_err_and(|error| error.to_string().contains("has 1")));
        assert!(Piece::check(&[3, 6], 2, 5).is_err_and(|error| error.to_string().contains("has 6")));
    }
}
