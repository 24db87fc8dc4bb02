//! Keys that signatures are checked with. Each key is for one algorithm: what a token's header says can
//! choose between keys, never what a key is used for.

use std::path::Path;

use aws_lc_rs::rand::SecureRandom;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};

/// Keys of one set that are looked at.
const KEYS_MAX: usize = 64;
/// Bytes of a key file or key set.
pub(crate) const FILE_BYTES_MAX: u64 = 262_144;
/// Bytes of an HS256 secret: the hash's own length (RFC 7518 section 3.2).
const SECRET_BYTES_MIN: usize = 32;
/// Bytes of the modulus of an RSA key: 2048 bits (RFC 7518 section 3.3).
const RSA_BYTES_MIN: usize = 256;
/// An uncompressed point of P-256.
const P256_POINT_BYTES: usize = 65;

/// A key and the one algorithm it is for.
#[derive(Clone)]
pub(crate) struct Key {
    id: Option<String>,
    pub(crate) algorithm: Algorithm,
    pub(crate) decoding: DecodingKey,
}

/// Keys from one source or from several.
#[derive(Clone, Default)]
pub(crate) struct KeySet(Vec<Key>);

impl KeySet {
    /// Keys that could have signed a token with this key id and algorithm. Keys without an id of their own
    /// serve any id: a PEM file has none.
    pub(crate) fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &Key> {
        self.0.iter().filter(move |key| {
            key.algorithm == algorithm
                && match (id, &key.id) {
                    (Some(asked), Some(own)) => asked == own,
                    _ => true,
                }
        })
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// # Errors
    /// A secret that is shorter than the hash.
    pub(crate) fn secret(secret: &[u8]) -> Result<Self, String> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "the secret has {} bytes; at least {SECRET_BYTES_MIN} are needed (openssl rand -hex 32)",
                secret.len()
            ));
        }
        let decoding =
            DecodingKey::from_secret(secret).map_err(|_| "the secret cannot be used".to_owned())?;
        Ok(Self(vec![Key { id: None, algorithm: Algorithm::HS256, decoding }]))
    }

    /// A public key in PEM: RSA for RS256, or P-256 for ES256.
    ///
    /// # Errors
    /// What else the file holds.
    pub(crate) fn pem(pem: &[u8]) -> Result<Self, String> {
        if pem.windows(11).any(|window| window == b"PRIVATE KEY") {
            return Err("this is a private key; give the public one (openssl pkey -pubout)".to_owned());
        }
        if let Ok(decoding) = DecodingKey::from_rsa_pem(pem) {
            return Ok(Self(vec![Key { id: None, algorithm: Algorithm::RS256, decoding }]));
        }
        match DecodingKey::from_ec_pem(pem) {
            Ok(decoding) if decoding.try_get_as_bytes().is_ok_and(|key| key.len() == P256_POINT_BYTES) => {
                Ok(Self(vec![Key { id: None, algorithm: Algorithm::ES256, decoding }]))
            }
            _ => Err("this is no public key in PEM that is RSA or on the curve P-256".to_owned()),
        }
    }

    /// A key set (RFC 7517). Keys for other uses or algorithms are passed over, and so are secrets unless
    /// `secrets` says that the set came from a place where they can be kept.
    ///
    /// # Errors
    /// Bytes that are no key set, or hold no key for us.
    pub(crate) fn jwks(json: &[u8], secrets: bool) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set =
            serde_json::from_slice(json).map_err(|_| "this is no key set (JSON with keys)".to_owned())?;
        let readable = set.keys.into_iter().take(KEYS_MAX);
        let readable = readable.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let keys: Vec<Key> = readable.filter_map(|jwk| Key::of(&jwk, secrets)).collect();
        if keys.is_empty() {
            return Err("the key set holds no key for RS256, ES256 or HS256".to_owned());
        }
        Ok(Self(keys))
    }
}

impl Key {
    fn of(jwk: &Jwk, secrets: bool) -> Option<Self> {
        if jwk.common.public_key_use.as_ref().is_some_and(|using| *using != PublicKeyUse::Signature) {
            return None;
        }
        let (algorithm, stated) = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
                (Algorithm::ES256, KeyAlgorithm::ES256)
            }
            AlgorithmParameters::OctetKey(_) if secrets => (Algorithm::HS256, KeyAlgorithm::HS256),
            _ => return None,
        };
        if jwk.common.key_algorithm.is_some_and(|given| given != stated) {
            return None;
        }
        let decoding = DecodingKey::from_jwk(jwk).ok()?;
        let long_enough = match decoding.kind() {
            jsonwebtoken::DecodingKeyKind::RsaModulusExponent { n, .. } => n.len() >= RSA_BYTES_MIN,
            jsonwebtoken::DecodingKeyKind::SecretOrDer(bytes) => bytes.len() >= SECRET_BYTES_MIN,
        };
        let id = jwk.common.key_id.clone();
        long_enough.then_some(Self { id, algorithm, decoding })
    }
}

/// A key file's bytes.
///
/// # Errors
/// A file that cannot be read, or is too large to be one.
pub(crate) fn file(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(path).map_err(failed)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{} is longer than {FILE_BYTES_MAX} bytes", path.display()));
    }
    Ok(bytes)
}

/// A secret as files hold it: without the line end that editors add.
pub(crate) fn trimmed(secret: &[u8]) -> &[u8] {
    secret.trim_ascii_end()
}

/// The key that signs: a private key in PEM, or else a secret.
///
/// # Errors
/// What the bytes are instead.
pub(crate) fn signing_key(bytes: &[u8]) -> Result<(Algorithm, EncodingKey), String> {
    if bytes.windows(11).any(|window| window == b"PRIVATE KEY") {
        if let Ok(key) = EncodingKey::from_rsa_pem(bytes) {
            return Ok((Algorithm::RS256, key));
        }
        return EncodingKey::from_ec_pem(bytes).map(|key| (Algorithm::ES256, key)).map_err(|_| {
            "the private key must be RSA, or on P-256 in PKCS#8 (openssl pkcs8 -topk8 -nocrypt)".to_owned()
        });
    }
    if bytes.starts_with(b"-----BEGIN") {
        return Err("this is no private key; signing needs one, or a secret".to_owned());
    }
    let secret = trimmed(bytes);
    KeySet::secret(secret)?;
    let key = EncodingKey::from_secret(secret).map_err(|_| "the secret cannot be used".to_owned())?;
    Ok((Algorithm::HS256, key))
}

/// 32 bytes nobody can guess.
pub(super) fn random_secret() -> std::io::Result<[u8; 32]> {
    let mut secret = [0_u8; 32];
    let random = aws_lc_rs::rand::SystemRandom::new();
    random.fill(&mut secret).map_err(|_| std::io::Error::other("no random bytes"))?;
    Ok(secret)
}
