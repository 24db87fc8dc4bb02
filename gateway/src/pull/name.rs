//! Names of repositories, and of the files in them: what a hub says is a stranger's word.

use std::path::PathBuf;
use std::str::FromStr;

/// Longest name of an owner, a repository or a revision.
const NAME_MAX: usize = 96;
/// Longest path of a file in a repository.
const PATH_MAX: usize = 512;

/// `OWNER/NAME`, or `OWNER/NAME@REV`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoName {
    pub owner: String,
    pub name: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

/// A name that no repository has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no repository; write OWNER/NAME or OWNER/NAME@REVISION")]
pub struct NameError(String);

impl FromStr for RepoName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError(text.to_owned());
        let (repo, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = repo.split_once('/').ok_or_else(wrong)?;
        let plain = |part: &str| is_plain(part) && part.bytes().all(|byte| byte != b'/');
        let parts = revision.split('/').all(is_plain) && revision.len() <= NAME_MAX;
        if !(plain(owner) && plain(name) && parts) {
            return Err(wrong());
        }
        Ok(Self { owner: owner.to_owned(), name: name.to_owned(), revision: revision.to_owned() })
    }
}

/// Letters, digits and `._-`, and not only dots.
fn is_plain(part: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_MAX).contains(&part.len()) && part.bytes().all(known) && part.bytes().any(|byte| byte != b'.')
}

/// The path of a repository's file below the folder it is written to; `None` for one that could lie elsewhere,
/// or that another file system would read otherwise.
pub(super) fn below(path: &str) -> Option<PathBuf> {
    let strange = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
    if path.is_empty() || path.len() > PATH_MAX || path.contains(strange) {
        return None;
    }
    // Not by the path's components: those pass over dots in the middle.
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    path.split('/').all(plain).then(|| PathBuf::from(path))
}

/// Whether the server reads it: configuration, tokenizer, weights, voices, and the card that names the licence.
pub(super) fn is_wanted(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let hidden = path.split('/').any(|part| part.starts_with('.'));
    let ends = |ending: &str| name.len() > ending.len() && name.ends_with(ending);
    let card = matches!(name, "README.md" | "MODEL_CARD.md") || name.starts_with("LICENSE");
    !hidden && (card || [".json", ".safetensors", ".txt", ".wav"].into_iter().any(ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_named_by_owner_name_and_perhaps_revision() {
        let repo: RepoName = "Qwen/Qwen3-TTS-12Hz-1.7B-Base".parse().expect("a name");
        assert_eq!((repo.owner.as_str(), repo.revision.as_str()), ("Qwen", "main"));
        let at: RepoName = "a/b@refs/pr/1".parse().expect("a name");
        assert_eq!(at.revision, "refs/pr/1");
        for wrong in
            ["", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b@", "a/b@../c", "a b/c", "a/b?x", "a/b@x y"]
        {
            assert!(wrong.parse::<RepoName>().is_err(), "{wrong}");
        }
        assert!(format!("a/{}", "b".repeat(97)).parse::<RepoName>().is_err());
    }

    #[test]
    fn no_name_of_a_file_leads_out_of_its_folder() {
        assert_eq!(below("speech_tokenizer/config.json"), Some("speech_tokenizer/config.json".into()));
        for wrong in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a/./b",
            "a//b",
            "a/",
            "..",
            ".",
            "a\\..\\b",
            "C:\\x",
            "c:x",
            "a\0b",
            "a\nb",
        ] {
            assert_eq!(below(wrong), None, "{wrong:?}");
        }
        assert_eq!(below(&"a/".repeat(600)), None);
    }

    #[test]
    fn what_the_server_does_not_read_is_not_pulled() {
        let wanted =
            ["config.json", "model.safetensors", "speech_tokenizer/config.json", "merges.txt", "README.md"];
        assert!(wanted.into_iter().all(is_wanted));
        let others =
            [".gitattributes", "pytorch_model.bin", "assets/figure.png", ".git/config.json", ".json", "x.py"];
        assert!(!others.into_iter().any(is_wanted));
    }
}
