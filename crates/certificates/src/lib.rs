//! Certificate authorities that live as long as the process that makes them, for servers on this machine.
//!
//! The sandbox's kube-apiserver and the ARM emulator are served with certificates of such authorities. The authority's
//! key is in memory only; where certificates are written is for the callers to say.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// A key or certificate cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make {what}: {source}")]
pub struct AuthorityError {
    /// Which.
    what: &'static str,
    /// Why.
    source: rcgen::Error,
}

/// A certificate authority that lives as long as the process.
#[derive(Debug)]
pub struct Authority {
    /// Its certificate, as PEM text.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority of this name.
    ///
    /// # Errors
    /// Its key or certificate cannot be made.
    pub fn new(name: &str) -> Result<Self, AuthorityError> {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = key("the authority's key")?;
        let certificate = params.self_signed(&key).map_err(|source| AuthorityError {
            what: "the authority",
            source,
        })?;
        let pem = certificate.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { pem, issuer })
    }

    /// A certificate for a server of these host names and addresses, and its key.
    ///
    /// # Errors
    /// Either cannot be made.
    pub fn serving(&self, name: &str, hosts: &[&str]) -> Result<(Certificate, KeyPair), AuthorityError> {
        let make = |source| AuthorityError {
            what: "a server's certificate",
            source,
        };
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).map_err(make)?;
        params.distinguished_name = named(name).distinguished_name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = key("a server's key")?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(make)?;
        Ok((certificate, key))
    }
}

/// Makes a key; `what` says in an error which one it is.
///
/// # Errors
/// The key cannot be made.
pub fn key(what: &'static str) -> Result<KeyPair, AuthorityError> {
    KeyPair::generate().map_err(|source| AuthorityError { what, source })
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
