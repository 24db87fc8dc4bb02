//! How the cores are shared between lanes.

use contract::{Lane, Partition};
use device::DeviceError;

use crate::thread;

/// Cores of each partition. With two cores or more, lm and background are disjoint; with one they share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) lm: Vec<usize>,
    pub(crate) background: Vec<usize>,
}

impl Topology {
    /// # Errors
    /// No core, a core this process may not use, or a share that leaves a partition empty.
    pub(crate) fn new(cores: Option<Vec<usize>>, lm_cores: Option<usize>) -> Result<Self, DeviceError> {
        let allowed = thread::allowed_cores();
        let mut cores = cores.unwrap_or_else(|| allowed.clone());
        cores.sort_unstable();
        cores.dedup();
        if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
            let what = format!("core {core} is not among those this process may use ({allowed:?})");
            return Err(DeviceError::BadSetting { setting: "engine.device", what });
        }
        let count = cores.len();
        match (count, lm_cores) {
            (0, _) => {
                Err(DeviceError::BadSetting { setting: "engine.device", what: "names no core".to_owned() })
            }
            (1, _) => Ok(Self { lm: cores.clone(), background: cores }),
            (_, Some(share)) if share == 0 || share >= count => {
                let what = format!("the lm lane can have 1 to {} of {count} cores, not {share}", count - 1);
                Err(DeviceError::BadSetting { setting: "engine.split", what })
            }
            (_, share) => {
                let background = cores.split_off(share.unwrap_or(count.div_ceil(2)));
                Ok(Self { lm: cores, background })
            }
        }
    }

    fn shared(&self) -> bool {
        self.lm == self.background
    }

    /// All cores, the lm partition's first.
    pub(crate) fn all(&self) -> Vec<usize> {
        let mut all = self.lm.clone();
        if !self.shared() {
            all.extend(&self.background);
        }
        all
    }

    /// Cores of a lane's threads. A launch uses the first [`Topology::members`] of them.
    pub(crate) fn lane(&self, lane: Lane) -> Vec<usize> {
        match lane {
            Lane::Background => self.background.clone(),
            Lane::Lm | Lane::Urgent => self.all(),
        }
    }

    /// How many of a lane's threads work on an executable of `partition`.
    pub(crate) fn members(&self, lane: Lane, partition: Partition) -> usize {
        match (lane, partition) {
            (Lane::Background, _) => self.background.len(),
            (Lane::Lm, Partition::Whole) | (Lane::Urgent, _) => self.all().len(),
            (Lane::Lm, _) => self.lm.len(),
        }
    }

    pub(crate) fn describe(&self) -> String {
        if self.shared() {
            return format!("every lane on {}", list(&self.lm));
        }
        format!("lm on {}, background on {}, urgent on both", list(&self.lm), list(&self.background))
    }
}

fn list(cores: &[usize]) -> String {
    let numbers: Vec<String> = cores.iter().map(usize::to_string).collect();
    format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, numbers.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_are_split_and_one_is_shared() {
        let two = Topology { lm: vec![0], background: vec![1] };
        assert_eq!(two.members(Lane::Lm, Partition::Lm), 1);
        assert_eq!(two.members(Lane::Lm, Partition::Whole), 2);
        assert_eq!(two.members(Lane::Urgent, Partition::Whole), 2);
        assert_eq!(two.lane(Lane::Background), [1]);
        assert_eq!(two.describe(), "lm on core 0, background on core 1, urgent on both");
        let one = Topology { lm: vec![3], background: vec![3] };
        assert_eq!(one.all(), [3]);
        assert_eq!(one.describe(), "every lane on core 3");
    }

    #[test]
    fn settings_that_cannot_be_met_say_so_by_the_name_they_have_in_a_configuration() {
        let first = thread::allowed_cores()[0];
        assert!(Topology::new(Some(vec![]), None).is_err());
        let error = Topology::new(Some(vec![100_000]), None).unwrap_err().to_string();
        assert!(error.contains("core 100000 is not among"), "{error}");
        assert!(error.starts_with("engine.device: "), "{error}");
        assert_eq!(Topology::new(Some(vec![first]), Some(1)).unwrap().lm, [first]);
        let all = thread::allowed_cores().len();
        if all > 1 {
            let error = Topology::new(None, Some(100_000)).unwrap_err().to_string();
            let least = format!("engine.split: the lm lane can have 1 to {} of {all} cores", all - 1);
            assert!(error.starts_with(&least), "{error}");
        }
    }
}
