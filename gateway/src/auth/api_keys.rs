//! Static keys: the simplest way to let a program in.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use serde::Deserialize;

use super::principal::{Kind, Principal, Scopes, is_name};

/// Static keys of one file.
const KEYS_MAX: usize = 4_096;
/// Characters a key needs: 144 bits in base64.
const KEY_CHARACTERS_MIN: usize = 24;

/// Static keys as hashes.
#[derive(Clone, Default)]
pub(crate) struct ApiKeys(Vec<([u8; 32], Principal)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "key")]
    keys: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Goes into logs in the key's stead.
    name: String,
    key: Option<String>,
    /// Of the key, in hexadecimal, for files that should not hold the key itself.
    sha256: Option<String>,
    /// The name where it is absent.
    tenant: Option<String>,
    scopes: Vec<String>,
}

impl ApiKeys {
    /// Reads a TOML file of `[[key]]` tables.
    ///
    /// # Errors
    /// What is wrong, by the entry's place; never a key.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        // The library quotes the line at fault, which may hold a key.
        let file: File = toml::from_str(text).map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| text[..span.start].lines().count());
            format!(
                "line {at}: not as expected; each [[key]] has name, key or sha256, scopes, and if wanted tenant"
            )
        })?;
        if file.keys.len() > KEYS_MAX {
            return Err(format!("{} keys; at most {KEYS_MAX} are taken", file.keys.len()));
        }
        let read = file.keys.into_iter().enumerate();
        let read = read.map(|(at, entry)| entry.read().map_err(|what| format!("key {}: {what}", at + 1)));
        read.collect::<Result<Vec<_>, _>>().map(Self)
    }

    /// The principal of this key. Every key is compared, in constant time, and by its hash: how long this
    /// takes says nothing about which bytes were right.
    pub(crate) fn find(&self, key: &str) -> Option<&Principal> {
        let given = digest(&SHA256, key.as_bytes());
        let mut found = None;
        for (hash, principal) in &self.0 {
            if verify_slices_are_equal(hash, given.as_ref()).is_ok() {
                found = Some(principal);
            }
        }
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Entry {
    fn read(self) -> Result<([u8; 32], Principal), String> {
        let hash = match (&self.key, &self.sha256) {
            (Some(key), None) if key.chars().count() >= KEY_CHARACTERS_MIN => {
                let mut hash = [0; 32];
                hash.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
                hash
            }
            (Some(_), None) => return Err(format!("a key needs at least {KEY_CHARACTERS_MIN} characters")),
            (None, Some(hex)) => unhex(hex).ok_or("sha256 must be 64 hexadecimal digits")?,
            _ => return Err("give either key or sha256".to_owned()),
        };
        let tenant = self.tenant.as_deref().unwrap_or(&self.name);
        if !is_name(&self.name) || !is_name(tenant) {
            return Err("name and tenant have 1 to 128 characters, none of them control".to_owned());
        }
        let unknown = self.scopes.iter().find(|name| super::Scope::named(name).is_none());
        if let Some(unknown) = unknown {
            return Err(format!("unknown scope {unknown:?}; there are speak, voices, observe and admin"));
        }
        let principal = Principal {
            subject: self.name.as_str().into(),
            tenant: tenant.into(),
            scopes: self.scopes.iter().map(String::as_str).collect::<Scopes>(),
            expires: None,
            kind: Kind::ApiKey,
        };
        Ok((hash, principal))
    }
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_key_is_found_by_itself_or_by_its_hash() {
        let hash: String = digest(&SHA256, b"another-key-of-some-length")
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let text = format!(
            "[[key]]\nname = \"ci\"\nkey = \"a-key-of-decent-length-1\"\ntenant = \"acme\"\nscopes = [\"speak\"]\n\
             [[key]]\nname = \"ops\"\nsha256 = \"{hash}\"\nscopes = [\"admin\"]\n"
        );
        let keys = ApiKeys::read(&text).expect("valid");
        let tenant = |key: &str| keys.find(key).map(|principal| principal.tenant.to_string());
        assert_eq!(tenant("a-key-of-decent-length-1").as_deref(), Some("acme"));
        assert_eq!(tenant("another-key-of-some-length").as_deref(), Some("ops"));
        for wrong in ["", "a-key-of-decent-length-", "a-key-of-decent-length-12", hash.as_str()] {
            assert_eq!(tenant(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_that_is_wrong_says_where_and_never_shows_a_key() {
        for (text, says) in [
            ("[[key]]\nname = \"a\"\nkey = \"hunter2-hunter2\"\nscopes = []\n", "24 characters"),
            ("[[key]]\nname = \"a\"\nkey = \"hunter2\n", "line"),
            ("[[key]]\nname = \"a\"\nkey = 7\nscopes = []\nhunter2 = 1\n", "line"),
            ("[[key]]\nname = \"a\"\nscopes = []\n", "either key or sha256"),
            ("[[key]]\nname = \"a\"\nsha256 = \"xy\"\nscopes = []\n", "64 hexadecimal"),
            (
                "[[key]]\nname = \"a\"\nkey = \"a-key-of-decent-length-1\"\nscopes = [\"sing\"]\n",
                "unknown scope",
            ),
        ] {
            let error = ApiKeys::read(text).err().expect("refused");
            assert!(error.contains(says) && !error.contains("hunter2"), "{error}");
        }
    }
}
