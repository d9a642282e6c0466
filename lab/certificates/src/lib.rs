//! Temporary certificate authorities for servers on this machine: the sandbox's kube-apiserver and the ARM emulator.
//!
//! The key of an authority is in memory only. Callers decide where certificates are written.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// Why a key or a certificate cannot be generated.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be generated: {source}")]
pub struct CertificateError {
    /// The key or certificate, as a noun phrase.
    what: &'static str,
    /// The error of the generator.
    source: rcgen::Error,
}

/// A certificate authority whose key is in memory only.
#[derive(Debug)]
pub struct CertificateAuthority {
    /// The authority's own certificate as PEM text.
    pub certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// Generates an authority; `name` becomes the common name.
    ///
    /// # Errors
    /// When its key or certificate cannot be generated.
    pub fn new(name: &str) -> Result<Self, CertificateError> {
        let mut params = params_with_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = generate_key("the authority's key")?;
        let certificate = params.self_signed(&key).map_err(|source| CertificateError {
            what: "the authority",
            source,
        })?;
        let certificate_pem = certificate.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self {
            certificate_pem,
            issuer,
        })
    }

    /// Generates a key, and issues a server certificate for it with these host names and addresses.
    ///
    /// # Errors
    /// When either cannot be generated.
    pub fn issue_server_certificate(
        &self,
        name: &str,
        hosts: &[&str],
    ) -> Result<(Certificate, KeyPair), CertificateError> {
        let failed = |source| CertificateError {
            what: "a server's certificate",
            source,
        };
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).map_err(failed)?;
        params.distinguished_name = params_with_name(name).distinguished_name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = generate_key("a server's key")?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok((certificate, key))
    }
}

/// Generates a key pair; `what` names it in an error.
///
/// # Errors
/// When the key cannot be generated.
pub fn generate_key(what: &'static str) -> Result<KeyPair, CertificateError> {
    KeyPair::generate().map_err(|source| CertificateError { what, source })
}

fn params_with_name(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
