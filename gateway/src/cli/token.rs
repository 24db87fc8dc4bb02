//! `voxlane token`: signs a token, for tests, for small set-ups, and for services that ask this binary.

use std::path::PathBuf;

use clap::Args;
use jsonwebtoken::Header;
use serde_json::json;

use super::{CommandError, layers};
use crate::auth::{Scope, Scopes, is_name, key_file, signing_key};

/// Longest life of a token made here, in seconds: a year.
const TTL_MAX: u64 = 366 * 24 * 3_600;

/// Flags of `token`.
#[derive(Args, Debug)]
pub(super) struct TokenFlags {
    /// Whom the token names (claim sub)
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// Whose voices and quotas it stands for [default: the subject]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Whom it is for (claim aud) [default: auth.audience]
    #[arg(long, value_name = "NAME")]
    aud: Option<String>,
    /// Who signs it (claim iss) [default: auth.issuer]
    #[arg(long, value_name = "NAME")]
    iss: Option<String>,
    /// File with a secret (HS256) or a private key in PEM (RS256, ES256)
    /// [default: VOXLANE_AUTH_SECRET, or auth.secret_file]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Id of the key, where the server has several (header kid)
    #[arg(long, value_name = "ID")]
    kid: Option<String>,
    /// What it allows: speak, voices, observe, admin, with spaces or commas between them; may be given more than once
    #[arg(long, value_name = "SCOPE", default_value = "speak")]
    scope: Vec<String>,
    /// How long it lives: a number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "1h")]
    ttl: String,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Prints the token, and nothing else, to standard output.
pub(super) fn run(flags: &TokenFlags) -> Result<(), CommandError> {
    let config = layers(flags.config.as_deref())?.resolve()?.config()?;
    let auth = &config.auth;
    let bytes = match (&flags.key, &auth.secret, &auth.secret_file) {
        (Some(path), _, _) | (None, None, Some(path)) => key_file(path).map_err(CommandError::Failed)?,
        (None, Some(secret), _) => secret.bytes().to_vec(),
        (None, None, None) => {
            let what =
                "nothing to sign with: give --key FILE, or set VOXLANE_AUTH_SECRET or auth.secret_file";
            return Err(CommandError::Usage(what.to_owned()));
        }
    };
    let (algorithm, key) = signing_key(&bytes).map_err(CommandError::Failed)?;
    let scopes = scopes(&flags.scope).map_err(CommandError::Usage)?;
    for (flag, name) in [("--subject", Some(&flags.subject)), ("--tenant", flags.tenant.as_ref())] {
        if name.is_some_and(|name| !is_name(name)) {
            let what = format!("{flag} must be 1 to 128 characters, none of them a control character");
            return Err(CommandError::Usage(what));
        }
    }
    let ttl = seconds(&flags.ttl).ok_or_else(|| {
        CommandError::Usage(format!(
            "--ttl is {:?}, but must be a number and s, m, h or d, at most a year",
            flags.ttl
        ))
    })?;
    let now = crate::clock::unix_seconds();
    let claims = json!({
        "iss": flags.iss.as_deref().unwrap_or(&auth.issuer),
        "aud": flags.aud.as_deref().unwrap_or(&auth.audience),
        "sub": flags.subject,
        (auth.tenant_claim.as_str()): flags.tenant.as_deref().unwrap_or(&flags.subject),
        "scope": scopes.names(),
        "iat": now,
        "nbf": now,
        "exp": now + ttl,
    });
    let header = Header { kid: flags.kid.clone(), ..Header::new(algorithm) };
    let token = jsonwebtoken::encode(&header, &claims, &key)
        .map_err(|error| CommandError::Failed(format!("signing failed: {error}")))?;
    say!("{token}");
    Ok(())
}

/// Names as the claim has them, with spaces, or with commas, between them.
fn scopes(given: &[String]) -> Result<Scopes, String> {
    let names: Vec<&str> = given.iter().flat_map(|names| names.split([' ', ','])).collect();
    let mut names = names.into_iter().filter(|name| !name.is_empty()).peekable();
    if names.peek().is_none() {
        return Err("--scope names none; there are speak, voices, observe and admin".to_owned());
    }
    names.try_fold(Scopes::default(), |scopes, name| match Scope::named(name) {
        Some(scope) => Ok(scopes.with(scope)),
        None => Err(format!("unknown scope {name:?}; there are speak, voices, observe and admin")),
    })
}

fn seconds(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    let seconds = number.parse::<u64>().ok()?.checked_mul(scale)?;
    (1..=TTL_MAX).contains(&seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_with_spaces_or_commas_and_a_wrong_one_is_named() {
        let read = |given: &[&str]| scopes(&given.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        for given in [&["speak voices"][..], &["speak,voices"], &["speak", "voices"], &[" voices, speak "]] {
            assert_eq!(read(given).map(Scopes::names).as_deref(), Ok("speak voices"), "{given:?}");
        }
        for (given, named) in
            [("speak sing", "\"sing\""), ("", "none"), (" , ", "none"), ("Speak", "\"Speak\"")]
        {
            assert!(read(&[given]).is_err_and(|error| error.contains(named)), "{given}");
        }
    }

    #[test]
    fn a_time_to_live_has_a_unit_and_a_bound() {
        assert_eq!(seconds("1h"), Some(3_600));
        assert_eq!(seconds("90s"), Some(90));
        assert_eq!(seconds("30d"), Some(2_592_000));
        for wrong in ["", "h", "1", "0s", "-1s", "1w", "1.5h", "400d", "99999999999999999999d", "1ü"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
