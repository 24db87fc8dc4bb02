//! How a processor is shared out between the lm and the background lane.

use std::fmt;
use std::str::FromStr;

/// Parts (cores of a CPU, SMs of a GPU) of the two lanes, written `LM/BACKGROUND`. A GPU rounds the background
/// lane's up to its step, and gives the lm lane the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Split {
    pub lm: u32,
    pub background: u32,
}

/// A split that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no split; write the parts of the lm and of the background lane, both above 0, as 100/32")]
pub struct SplitError(String);

impl FromStr for Split {
    type Err = SplitError;

    fn from_str(text: &str) -> Result<Self, SplitError> {
        let part = |text: &str| text.trim().parse().ok().filter(|parts: &u32| (1..=1_024).contains(parts));
        let parts = text.split_once('/').and_then(|(lm, background)| part(lm).zip(part(background)));
        let (lm, background) = parts.ok_or_else(|| SplitError(text.to_owned()))?;
        Ok(Self { lm, background })
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.lm, self.background)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_two_numbers_of_parts() {
        let split: Split = "100/32".parse().expect("a split");
        assert_eq!((split.lm, split.background, split.to_string().as_str()), (100, 32, "100/32"));
        for wrong in ["", "100", "100/", "0/32", "100/0", "a/b", "1/2/3", "-1/2", "2000/1"] {
            assert!(wrong.parse::<Split>().is_err(), "{wrong}");
        }
    }
}
