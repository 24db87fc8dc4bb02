//! Which processors several engines of one process get: pure.

use std::collections::BTreeSet;

use contract::DeviceId;

use crate::DeviceChoice;

/// Engines of one process.
pub(crate) const DEVICES_MAX: usize = 64;

/// Gives each engine a processor of its own. CPU engines that name no cores share out, evenly and in
/// order, those that no other names; beside GPUs a CPU engine may take all.
///
/// # Errors
/// Why the list cannot be had, naming the entry at fault.
pub(crate) fn share_out(
    mut devices: Vec<DeviceChoice>,
    allowed: &[usize],
) -> Result<Vec<DeviceChoice>, String> {
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        return Err(format!("{} devices were named; name 1 to {DEVICES_MAX}", devices.len()));
    }
    let (mut named, mut cards) = (BTreeSet::new(), BTreeSet::new());
    for device in &devices {
        match device {
            DeviceChoice::Cpu { cores } => {
                for core in cores.iter().flatten() {
                    if !named.insert(*core) {
                        return Err(format!("core {core} is named twice; no core can serve two engines"));
                    }
                }
            }
            DeviceChoice::Cuda { ordinal, .. } => {
                if !cards.insert(*ordinal) {
                    return Err(format!("cuda:{ordinal} is named twice; a card has one engine"));
                }
            }
        }
    }
    let left: Vec<usize> = allowed.iter().copied().filter(|core| !named.contains(core)).collect();
    let sharing: Vec<&mut Option<Vec<usize>>> = devices
        .iter_mut()
        .filter_map(|device| match device {
            DeviceChoice::Cpu { cores } if cores.is_none() => Some(cores),
            _ => None,
        })
        .collect();
    let engines = sharing.len();
    if engines > left.len() {
        let (left, many) = (left.len(), if engines == 1 { "" } else { "s" });
        return Err(format!("{engines} CPU engine{many} need a core each, but {left} are left"));
    }
    for (index, cores) in sharing.into_iter().enumerate() {
        let at = |index: usize| index * left.len() / engines;
        *cores = Some(left[at(index)..at(index + 1)].to_vec());
    }
    Ok(devices)
}

/// How messages name a device.
pub(crate) fn name(device: DeviceId, choice: &DeviceChoice) -> String {
    match choice {
        DeviceChoice::Cpu { .. } => format!("device {} (cpu)", device.0),
        DeviceChoice::Cuda { ordinal, .. } => format!("device {} (cuda:{ordinal})", device.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;

    fn cpu(cores: &[usize]) -> DeviceChoice {
        DeviceChoice::Cpu { cores: Some(cores.to_vec()) }
    }

    const ANY: DeviceChoice = DeviceChoice::Cpu { cores: None };

    fn card(ordinal: u32) -> DeviceChoice {
        DeviceChoice::Cuda { ordinal, precision: Precision::Bf16, background_sms: 56, kernels: None }
    }

    #[test]
    fn engines_that_name_no_core_share_out_those_left() {
        assert_eq!(share_out(vec![ANY], &[0, 1]), Ok(vec![cpu(&[0, 1])]));
        assert_eq!(share_out(vec![ANY, ANY], &[0, 1, 2, 3, 4]), Ok(vec![cpu(&[0, 1]), cpu(&[2, 3, 4])]));
        let beside = share_out(vec![ANY, cpu(&[1]), ANY], &[0, 1, 2]);
        assert_eq!(beside, Ok(vec![cpu(&[0]), cpu(&[1]), cpu(&[2])]));
        assert_eq!(share_out(vec![card(1), ANY], &[3]), Ok(vec![card(1), cpu(&[3])]));
    }

    #[test]
    fn lists_that_cannot_be_had_are_refused_by_name() {
        let refused = |devices: &[DeviceChoice]| share_out(devices.to_vec(), &[0, 1]).expect_err("refused");
        assert!(refused(&[card(0), card(1), card(0)]).contains("cuda:0 is named twice"));
        assert!(refused(&[cpu(&[0, 1]), cpu(&[1])]).contains("core 1 is named twice"));
        assert!(refused(&[ANY, ANY, ANY]).contains("3 CPU engines need a core each, but 2 are left"));
        assert!(refused(&[]).contains("name 1 to 64"));
    }
}
