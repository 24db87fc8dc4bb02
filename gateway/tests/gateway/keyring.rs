//! Keys of every kind, and tokens signed with them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::support::{Answer, Running, request, start};

/// A secret that must be found nowhere.
pub(crate) const SECRET: &str = "canary-secret-0123456789-0123456789-0123456789";
pub(crate) const API_KEY: &str = "canary-key-of-a-program-in-ci";

pub(crate) struct Keyring {
    pub(crate) folder: PathBuf,
    pub(crate) rsa_private: String,
    pub(crate) rsa_public: String,
    pub(crate) rsa_der: Vec<u8>,
    /// Modulus and exponent, as a key set has them.
    pub(crate) rsa_parts: (String, String),
    ec_private: String,
}

impl Keyring {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keys-{}-{count}", std::process::id());
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let rsa = KeyPair::generate(KeySize::Rsa2048).expect("a key");
        let rsa_private: Pkcs8V1Der = rsa.as_der().expect("DER");
        let rsa_public: PublicKeyX509Der = rsa.public_key().as_der().expect("DER");
        let modulus = rsa.public_key().modulus().big_endian_without_leading_zero().to_vec();
        let exponent = rsa.public_key().exponent().big_endian_without_leading_zero().to_vec();
        let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let ec_private = ec.to_pkcs8v1().expect("DER");
        let ec_public: PublicKeyX509Der = ec.public_key().as_der().expect("DER");
        let ring = Self {
            rsa_private: pem("PRIVATE KEY", rsa_private.as_ref()),
            rsa_public: pem("PUBLIC KEY", rsa_public.as_ref()),
            rsa_der: rsa_public.as_ref().to_vec(),
            rsa_parts: (URL_SAFE_NO_PAD.encode(modulus), URL_SAFE_NO_PAD.encode(exponent)),
            ec_private: pem("PRIVATE KEY", ec_private.as_ref()),
            folder,
        };
        ring.write("secret", &format!("{SECRET}\n"));
        ring.write("rsa.pem", &ring.rsa_public);
        ring.write("rsa-private.pem", &ring.rsa_private);
        ring.write("ec.pem", &pem("PUBLIC KEY", ec_public.as_ref()));
        ring.write("ec-private.pem", &ring.ec_private);
        ring.write(
            "keys.toml",
            &format!(
                "[[key]]\nname = \"ci\"\nkey = \"{API_KEY}\"\ntenant = \"acme\"\nscopes = [\"speak\"]\n"
            ),
        );
        ring
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).expect("a key file");
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// A server that takes all of these keys, with more lines for `[auth]`.
    pub(crate) async fn serve(&self, more: &str) -> Running {
        start(&self.config(more)).await
    }

    pub(crate) fn config(&self, more: &str) -> String {
        format!(
            "[auth]\nsecret_file = {:?}\npublic_keys = [{:?}, {:?}]\napi_keys_file = {:?}\n{more}\n",
            self.path("secret"),
            self.path("rsa.pem"),
            self.path("ec.pem"),
            self.path("keys.toml"),
        )
    }

    pub(crate) fn rs256(&self, claims: &Value) -> String {
        let key = EncodingKey::from_rsa_pem(self.rsa_private.as_bytes()).expect("a key");
        jsonwebtoken::encode(&Header::new(Algorithm::RS256), claims, &key).expect("signed")
    }

    /// The RSA key under an id, as a key set has it.
    pub(crate) fn jwk(&self, id: &str) -> Value {
        let (n, e) = &self.rsa_parts;
        json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": id, "n": n, "e": e })
    }

    pub(crate) fn rs256_named(&self, id: &str, claims: &Value) -> String {
        let key = EncodingKey::from_rsa_pem(self.rsa_private.as_bytes()).expect("a key");
        let header = Header { kid: Some(id.to_owned()), ..Header::new(Algorithm::RS256) };
        jsonwebtoken::encode(&header, claims, &key).expect("signed")
    }

    pub(crate) fn es256(&self, claims: &Value) -> String {
        let key = EncodingKey::from_ec_pem(self.ec_private.as_bytes()).expect("a key");
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &key).expect("signed")
    }
}

impl Drop for Keyring {
    fn drop(&mut self) {
        let _kept = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn now() -> u64 {
    gateway::clock::unix_seconds()
}

/// Claims that are good for an hour.
pub(crate) fn claims() -> Value {
    json!({
        "iss": "voxlane", "aud": "voxlane", "sub": "ann", "tenant": "acme", "scope": "speak",
        "nbf": now() - 1, "exp": now() + 3_600,
    })
}

/// The same with one claim set, or taken away by null.
pub(crate) fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    let map = claims.as_object_mut().expect("an object");
    match value {
        Value::Null => drop(map.remove(name)),
        value => drop(map.insert(name.to_owned(), value)),
    }
    claims
}

pub(crate) fn hs256(claims: &Value) -> String {
    hs256_by(SECRET.as_bytes(), &Header::new(Algorithm::HS256), claims)
}

pub(crate) fn hs256_by(secret: &[u8], header: &Header, claims: &Value) -> String {
    jsonwebtoken::encode(header, claims, &EncodingKey::from_secret(secret).expect("a key")).expect("signed")
}

/// A token with a header written by hand, signed by the right secret.
pub(crate) fn forged(header: &str, claims: &Value) -> String {
    signed(header, &claims.to_string())
}

/// The same with its claims written by hand as well.
pub(crate) fn signed(header: &str, claims: &str) -> String {
    let head = URL_SAFE_NO_PAD.encode(header);
    let body = URL_SAFE_NO_PAD.encode(claims);
    let message = format!("{head}.{body}");
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = aws_lc_rs::hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

/// `GET /v1/models` with this token: status, and code if it is an error.
pub(crate) async fn ask(server: &Running, token: &str) -> (u16, String) {
    let answer = get_with(server, "/v1/models", &[("authorization", &format!("Bearer {token}"))]).await;
    let code = if answer.status == 200 { String::new() } else { answer.code() };
    (answer.status, code)
}

pub(crate) async fn get_with(server: &Running, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(server, "GET", path, headers, "").await
}

pub(crate) async fn send(
    server: &Running,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let host = server.public;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    }
    request(host, &format!("{head}\r\n{body}")).await
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("ASCII")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
