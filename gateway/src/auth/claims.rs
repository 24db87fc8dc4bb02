//! What a token's signature and claims must be. Time is an argument.

use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, TokenData, Validation};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::keys::{Key, KeySet};
use super::principal::{Kind, Principal, Scopes, is_name};

/// Longest token, in bytes: what one header of a request may hold.
pub(crate) const TOKEN_BYTES_MAX: usize = 8_192;
/// The last second of the year 9999: a later time is no time.
const LAST_SECOND: u64 = 253_402_300_799;

/// Why a token is not taken. The name goes into a metric; the peer hears only whether it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Malformed,
    Algorithm,
    UnknownKey,
    /// As [`Refusal::UnknownKey`], while the service that may know the key does not answer.
    KeysUnreachable,
    Signature,
    Issuer,
    Audience,
    Claims,
    NotYet,
    Expired,
}

/// What every token must say.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) issuer: String,
    pub(crate) audience: String,
    pub(crate) tenant_claim: String,
    pub(crate) leeway_s: u64,
}

impl Refusal {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::KeysUnreachable => "keys_unreachable",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Claims => "claims",
            Self::NotYet => "not_yet",
            Self::Expired => "expired",
        }
    }
}

/// The claims of `token`, if a key has signed it and it is for us, now (seconds since 1970).
///
/// `exp` and `nbf` are checked here and not by the library, because it rounds fractions, takes the time
/// itself, and checks `nbf` only where it stands.
pub(crate) fn verify(
    token: &str,
    keys: &KeySet,
    rules: &Rules,
    now: u64,
) -> Result<Map<String, Value>, Refusal> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Refusal::Malformed);
    }
    // Reads alg and kid only; jku, x5u and jwk are never followed.
    let header = jsonwebtoken::decode_header(token).map_err(|_| Refusal::Malformed)?;
    if ![Algorithm::HS256, Algorithm::RS256, Algorithm::ES256].contains(&header.alg) {
        return Err(Refusal::Algorithm);
    }
    let mut refusal = Refusal::UnknownKey;
    for key in keys.candidates(header.kid.as_deref(), header.alg) {
        match read(token, key, rules) {
            Ok(claims) => {
                in_time(&claims, rules, now)?;
                return Ok(claims);
            }
            // Another key of the same id or none may be the one.
            Err(Refusal::Signature) => refusal = Refusal::Signature,
            Err(other) => return Err(other),
        }
    }
    Err(refusal)
}

/// The principal a token's claims name.
pub(crate) fn principal(claims: &Map<String, Value>, tenant_claim: &str) -> Result<Principal, Refusal> {
    let name = |value: &Value| value.as_str().filter(|text| is_name(text)).map(Arc::<str>::from);
    let subject = claims.get("sub").and_then(name).ok_or(Refusal::Claims)?;
    let tenant = match claims.get(tenant_claim) {
        Some(value) => name(value).ok_or(Refusal::Claims)?,
        None => Arc::clone(&subject),
    };
    let scopes = match claims.get("scope") {
        None => Scopes::default(),
        Some(Value::String(names)) => names.split(' ').collect(),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            names.iter().filter_map(Value::as_str).collect()
        }
        Some(_) => return Err(Refusal::Claims),
    };
    let expires = claims.get("exp").and_then(Value::as_u64);
    Ok(Principal { subject, tenant, scopes, expires, kind: Kind::Token })
}

fn read(token: &str, key: &Key, rules: &Rules) -> Result<Map<String, Value>, Refusal> {
    let mut validation = Validation::new(key.algorithm);
    validation.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
    validation.set_issuer(&[&rules.issuer]);
    validation.set_audience(&[&rules.audience]);
    validation.validate_exp = false;
    match jsonwebtoken::decode(token, &key.decoding, &validation) {
        // The library takes a list that holds the issuer, which RFC 7519 section 4.1.1 knows nothing of.
        Ok(TokenData { claims: Claims(claims), .. }) => match claims.get("iss") {
            Some(Value::String(issuer)) if *issuer == rules.issuer => Ok(claims),
            _ => Err(Refusal::Issuer),
        },
        Err(error) => Err(match error.kind() {
            ErrorKind::InvalidSignature => Refusal::Signature,
            ErrorKind::InvalidAlgorithm => Refusal::Algorithm,
            ErrorKind::InvalidIssuer => Refusal::Issuer,
            ErrorKind::InvalidAudience => Refusal::Audience,
            ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => Refusal::Claims,
            _ => Refusal::Malformed,
        }),
    }
}

/// Claims of which none stands twice: who checks the first and who uses the last would see different tokens.
struct Claims(Map<String, Value>);

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = Claims;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of claims")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Claims, A::Error> {
                let mut claims = Map::new();
                while let Some((name, value)) = entries.next_entry::<String, Value>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(serde::de::Error::custom("a claim stands twice"));
                    }
                }
                Ok(Claims(claims))
            }
        }
        deserializer.deserialize_map(Once)
    }
}

/// `exp` and `nbf` are whole seconds; both sides of each bound are widened by the leeway.
fn in_time(claims: &Map<String, Value>, rules: &Rules, now: u64) -> Result<(), Refusal> {
    let time = |name: &str| {
        let value = claims.get(name).and_then(Value::as_u64);
        value.filter(|seconds| *seconds <= LAST_SECOND).ok_or(Refusal::Claims)
    };
    let (exp, nbf) = (time("exp")?, time("nbf")?);
    if now >= exp + rules.leeway_s {
        return Err(Refusal::Expired);
    }
    if now + rules.leeway_s < nbf {
        return Err(Refusal::NotYet);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::json;

    use super::*;

    const SECRET: &[u8] = &[7; 32];

    fn judge(exp: u64, nbf: u64, leeway_s: u64, now: u64) -> Result<(), Refusal> {
        let rules = Rules {
            issuer: "i".to_owned(),
            audience: "a".to_owned(),
            tenant_claim: "tenant".to_owned(),
            leeway_s,
        };
        let claims = json!({ "iss": "i", "aud": "a", "sub": "s", "exp": exp, "nbf": nbf });
        let key = EncodingKey::from_secret(SECRET).expect("a key");
        let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).expect("signed");
        verify(&token, &KeySet::secret(SECRET).expect("a key"), &rules, now).map(drop)
    }

    #[test]
    fn a_token_ends_in_the_very_second_that_exp_and_leeway_name() {
        for leeway in [0, 30] {
            assert_eq!(judge(1_000, 0, leeway, 999 + leeway), Ok(()));
            assert_eq!(judge(1_000, 0, leeway, 1_000 + leeway), Err(Refusal::Expired));
            assert_eq!(judge(2_000, 1_000, leeway, 1_000 - leeway), Ok(()));
            assert_eq!(judge(2_000, 1_000, leeway, 999 - leeway), Err(Refusal::NotYet));
        }
        assert_eq!(judge(LAST_SECOND, 0, 30, 1_000), Ok(()));
        assert_eq!(judge(LAST_SECOND + 1, 0, 30, 1_000), Err(Refusal::Claims));
    }
}
