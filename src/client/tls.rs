//! Encrypted connections: which certificates are trusted, which is presented, and what a refusal
//! means.
//!
//! Certificates that do not fit are a configuration error: retrying does not help, so the node
//! counts as refusing, not as unreachable.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls;

use super::printable::{Printable, plain};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Certificates or a key, as PEM.
#[derive(Clone)]
pub(super) enum Pem {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// Without the bytes: they may be a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Bytes(_) => f.write_str("Bytes"),
            Pem::File(path) => path.fmt(f),
        }
    }
}

impl Pem {
    fn read(&self, setting: &str) -> Result<Vec<u8>, String> {
        match self {
            Pem::Bytes(bytes) => Ok(bytes.clone()),
            Pem::File(path) => std::fs::read(path)
                .map_err(|error| format!("cannot read {setting} {path:?}: {}", plain(&error))),
        }
    }

    fn certificates(
        &self,
        setting: &str,
        what: &str,
    ) -> Result<Vec<CertificateDer<'static>>, String> {
        CertificateDer::pem_slice_iter(&self.read(setting)?)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{what} in {}: {error}", self.name()))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let pem = self.read("key")?;
        let has = |mark: &str| String::from_utf8_lossy(&pem).contains(mark);
        PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
            let name = self.name();
            if has("ENCRYPTED") {
                format!("the key in {name} is encrypted: decrypt it, with `openssl pkey`")
            } else if has("BEGIN CERTIFICATE") {
                format!("there is a certificate and no key in {name}: are the files swapped?")
            } else {
                format!("there is no key in {name}: {error}")
            }
        })
    }

    fn name(&self) -> String {
        match self {
            Pem::Bytes(_) => "the PEM given".to_owned(),
            Pem::File(path) => Printable(path.as_os_str().as_bytes()).to_string(),
        }
    }
}

/// What a client trusts and presents.
#[derive(Clone, Debug, Default)]
pub(super) struct Tls {
    /// Those that the operating system trusts, unless given.
    pub(super) roots: Option<Pem>,
    pub(super) chain: Option<Pem>,
    pub(super) key: Option<Pem>,
}

impl Tls {
    /// Whether any certificate or key was given.
    pub(super) const fn is_given(&self) -> bool {
        self.roots.is_some() || self.chain.is_some() || self.key.is_some()
    }

    /// Reads the files, and checks what is in them.
    ///
    /// # Errors
    /// What is wrong with the certificates.
    pub(super) fn config(&self) -> Result<Arc<rustls::ClientConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.roots()?);
        let config = match (&self.chain, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(chain), Some(key)) => {
                let certificates = chain.certificates("cert", "client certificate")?;
                if certificates.is_empty() {
                    return Err(format!("there is no certificate in {}", chain.name()));
                }
                let config = config.with_client_auth_cert(certificates, key.key()?);
                config.map_err(|error| match error.to_string() {
                    text if text.contains("UnsupportedCertVersion") => {
                        format!("{} is of X.509 version 1: TLS needs version 3", chain.name())
                    }
                    text => format!("{} and {} do not fit: {text}", chain.name(), key.name()),
                })?
            }
            (Some(_), None) | (None, Some(_)) => {
                return Err("give both the certificate and its key".into());
            }
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<rustls::RootCertStore, String> {
        let mut store = rustls::RootCertStore::empty();
        match &self.roots {
            Some(pem) => {
                let what = "cacert: a root certificate";
                for certificate in pem.certificates("cacert", what)? {
                    let refused = |error| format!("{what} in {}: {error}", pem.name());
                    store.add(certificate).map_err(refused)?;
                }
                if store.is_empty() {
                    let name = pem.name();
                    return Err(format!("cacert: no root certificates, as PEM, in {name}"));
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                store.add_parsable_certificates(found.certs);
            }
        }
        if store.is_empty() {
            return Err("this system has no root certificates: give a cacert, as PEM".into());
        }
        Ok(store)
    }
}

/// Why a handshake was refused, by either side; `None` if the error is of another kind.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    use rustls::{AlertDescription, CertificateError, Error};
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "TLS: the node asks for a client certificate".into()
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "TLS: the client certificate has expired, says the node".into()
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::CertificateUnknown,
        ) => "TLS: the node does not trust the client certificate".into(),
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "TLS: the node's certificate has expired".into(),
        // Its own text has the time in it, which differs with each attempt.
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "TLS: the node's certificate is not valid yet: is a clock wrong?".into(),
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "TLS: the node's certificate is of no authority that is trusted".into(),
        // From a library below rustls, whose error type is not available here.
        Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            "TLS: the node shows the certificate of an authority: it needs one of its own, which \
             the authority has signed"
                .into()
        }
        other => format!("TLS: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{AlertDescription, CertificateError, Error};

    /// The texts were the library's: "received fatal alert: UnknownCA".
    #[test]
    fn a_refused_certificate_is_told_of_in_words() {
        let said = |error| refusal(&io::Error::other(error));
        for (error, expected) in [
            (Error::AlertReceived(AlertDescription::UnknownCA), "does not trust the client"),
            (Error::AlertReceived(AlertDescription::CertificateExpired), "client certificate has"),
            (Error::InvalidCertificate(CertificateError::Expired), "node's certificate has"),
            (Error::InvalidCertificate(CertificateError::NotValidYet), "is not valid yet"),
        ] {
            let said = said(error);
            assert!(said.as_deref().is_some_and(|said| said.contains(expected)), "{said:?}");
        }
        assert_eq!(refusal(&io::Error::other("else")), None);
    }
}
