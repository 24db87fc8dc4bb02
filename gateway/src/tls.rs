//! TLS of the public listener: certificates from files, read again at a reload, or made at start for phones
//! in a lab.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use crate::auth::key_file;
use crate::config::{Config, ConfigError, TlsConfig};

/// The certificate in force. A reload replaces it; connections that stand keep theirs.
pub(crate) struct Tls {
    server: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// What the configuration asks for; `None` is plain HTTP.
    ///
    /// # Errors
    /// [`ConfigError::Unusable`] naming the file and what is wrong with it.
    pub(crate) fn load(config: &Config) -> Result<Option<Self>, ConfigError> {
        let server = match &config.server.tls {
            TlsConfig::Off => return Ok(None),
            TlsConfig::Files { cert, key } => from_files(cert, key)?,
            TlsConfig::SelfSigned => self_signed(config)?,
        };
        Ok(Some(Self { server: RwLock::new(server) }))
    }

    /// Reads files again; a certificate made at start stays, for visitors have accepted it.
    ///
    /// # Errors
    /// As [`Tls::load`]; the old one then serves on.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), ConfigError> {
        if let TlsConfig::Files { cert, key } = &config.server.tls {
            *self.server.write().unwrap_or_else(PoisonError::into_inner) = from_files(cert, key)?;
        }
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.server.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn from_files(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, ConfigError> {
    let unusable = |name: &'static str| move |what: String| ConfigError::Unusable { key: name, what };
    let pem = key_file(cert).map_err(unusable("server.tls_cert"))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| {
        unusable("server.tls_cert")(format!("{} holds no certificate in PEM", cert.display()))
    })?;
    let pem = key_file(key).map_err(unusable("server.tls_key"))?;
    let private = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| unusable("server.tls_key")(format!("{} holds no private key in PEM", key.display())))?;
    serving(chain, private).map_err(|error| {
        unusable("server.tls_key")(format!("{} does not fit the certificate: {error}", key.display()))
    })
}

fn self_signed(config: &Config) -> Result<Arc<ServerConfig>, ConfigError> {
    let unusable = |what: String| ConfigError::Unusable { key: "server.tls_self_signed", what };
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(config.server.hosts.iter().cloned());
    let listen = config.server.listen.ip();
    names.extend(Some(listen).filter(|ip| !ip.is_unspecified()).or_else(outward).map(|ip| ip.to_string()));
    names.sort();
    names.dedup();
    let make = || -> Result<_, rcgen::Error> {
        let pair = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.clone())?;
        params.distinguished_name.push(DnType::CommonName, "voxlane, self-signed");
        let certificate = params.self_signed(&pair)?;
        Ok((certificate.der().clone(), pair.serialize_der()))
    };
    let (certificate, key) = make().map_err(|error| unusable(error.to_string()))?;
    let print: Vec<String> =
        digest(&SHA256, &certificate).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    tracing::warn!(
        names = names.join(", "),
        sha256 = print.join(":"),
        "SELF-SIGNED: a certificate for a lab, made now; compare its fingerprint before a device accepts it"
    );
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
    serving(vec![certificate], key).map_err(|error| unusable(error.to_string()))
}

fn serving(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The address by which a lab would reach this machine. Connecting a datagram socket sends nothing.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // TEST-NET-1 (RFC 5737): a place nobody has, on the way out.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
