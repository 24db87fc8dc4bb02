//! What a checkpoint says of its licence.

use crate::ModelSource;

const UNSTATED: &str = "not stated in the checkpoint";

/// The licence named in the checkpoint's own card: `license` in the front matter of README.md (the hub's
/// form), or the licence row of MODEL_CARD.md.
pub(crate) fn of(source: &ModelSource) -> String {
    let card = |name: &str| source.file(name).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let front = card("README.md").and_then(|text| front_matter(&text));
    front
        .or_else(|| card("MODEL_CARD.md").and_then(|text| table_row(&text)))
        .unwrap_or_else(|| UNSTATED.to_owned())
}

fn front_matter(text: &str) -> Option<String> {
    let mut lines = text.lines();
    if lines.next()?.trim() != "---" {
        return None;
    }
    lines.take_while(|line| line.trim() != "---").find_map(|line| named(line.strip_prefix("license:")?))
}

fn table_row(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut cells = line.trim().strip_prefix('|')?.split('|').map(str::trim);
        let label = cells.next()?.to_lowercase();
        if label.contains("licence") || label.contains("license") { named(cells.next()?) } else { None }
    })
}

fn named(value: &str) -> Option<String> {
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_card_names_it_in_its_front_matter() {
        let card = "---\ntags: [tts]\nlicense: apache-2.0\n---\nlicense: not this one\n";
        assert_eq!(front_matter(card).as_deref(), Some("apache-2.0"));
        assert_eq!(front_matter("license: apache-2.0\n"), None);
    }

    #[test]
    fn a_model_card_names_it_in_its_table() {
        let card = "| format | Base |\n| licence of the weights | Apache-2.0 |\n";
        assert_eq!(table_row(card).as_deref(), Some("Apache-2.0"));
    }

    #[test]
    fn a_checkpoint_without_a_card_states_none() {
        assert_eq!(of(&ModelSource::Embedded(&[])), UNSTATED);
    }
}
