//! `voxlane inspect DIR`: what a checkpoint holds, needs, and its licence.

use std::path::Path;

use runtime::{Inspection, ModelSource};

use super::CommandError;

const MIB: f64 = 1_048_576.0;

pub(super) fn run(folder: &Path) -> Result<(), CommandError> {
    let name = crate::native::name_of(folder);
    let found = runtime::inspect(ModelSource::Dir(folder.to_owned()), &name)
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    super::put(format_args!("{}", describe(&found)));
    Ok(())
}

fn describe(found: &Inspection) -> String {
    let info = &found.info;
    let mut lines = vec![
        ("name on the wire".to_owned(), info.name.clone()),
        ("family".to_owned(), format!("{} ({})", info.family, found.variant)),
        ("licence".to_owned(), info.licence.clone()),
        ("sound".to_owned(), format!("{} Hz, {} samples a frame", info.sample_rate, info.samples_per_frame)),
        (
            "layouts".to_owned(),
            info.layouts.iter().map(|layout| layout.name()).collect::<Vec<_>>().join(", "),
        ),
        ("languages".to_owned(), or_none(&info.languages)),
        (
            "voices".to_owned(),
            or_none(&info.voices.iter().map(|voice| voice.name.clone()).collect::<Vec<_>>()),
        ),
        ("reference clips".to_owned(), yes_or_no(info.takes_reference)),
        ("instructions".to_owned(), yes_or_no(info.takes_instructions)),
        ("positions".to_owned(), found.positions_max.to_string()),
    ];
    for part in &found.parts {
        let millions = part.parameters as f64 / 1e6;
        lines.push((part.name.clone(), format!("{millions:.2} M parameters in {} tensors", part.tensors)));
    }
    let memory = found.memory;
    lines.push(("weights need".to_owned(), format!("{:.1} MiB", memory.weights_bytes as f64 / MIB)));
    lines.push(("each slot needs".to_owned(), format!("{:.2} MiB", memory.slot_bytes as f64 / MIB)));
    lines.push(("each position needs".to_owned(), format!("{} bytes", memory.position_bytes)));
    let width = lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    lines.iter().map(|(label, text)| format!("{label:width$}  {text}\n")).collect()
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}
