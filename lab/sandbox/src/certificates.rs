//! Credentials of an own control plane: a certificate authority, kube-apiserver's serving certificate, the key that
//! signs service account tokens, the administrator's token and kubeconfig.
//!
//! They are made for each control plane, in files that only their owner can read. So no two sandboxes accept each
//! other's credentials, and no other user of the machine has access.

use std::io;
use std::path::{Path, PathBuf};

use headgate_certificates::{CertificateAuthority, CertificateError, generate_key};
use k8s_openapi::ByteString;

use super::files::{WriteError, create_private_directory, unwritable, write_private_file};

/// Names and addresses in kube-apiserver's certificate; the last is the first address of the Service CIDR.
const SERVING_NAMES: [&str; 8] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
    super::control_plane::FIRST_SERVICE_IP,
];

/// Credentials cannot be made or written.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// A key or a certificate cannot be made.
    #[error(transparent)]
    Make(#[from] CertificateError),
    /// The system has no random bytes.
    #[error("cannot get random bytes for a token: {0}")]
    Random(io::Error),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The credentials of a control plane.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate, as PEM text.
    pub authority: String,
    /// File with the authority's certificate.
    pub authority_file: PathBuf,
    /// File with kube-apiserver's serving certificate.
    pub serving_certificate_file: PathBuf,
    /// File with the key of the serving certificate.
    pub serving_key_file: PathBuf,
    /// File with the key that signs service account tokens.
    pub service_account_key_file: PathBuf,
    /// File with its public key, which verifies them.
    pub service_account_public_key_file: PathBuf,
    /// The administrator's bearer token.
    pub token: String,
    /// kube-apiserver's token file, with only the administrator's token.
    pub token_file: PathBuf,
}

impl Certificates {
    /// Makes all credentials in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// A key cannot be made or a file cannot be written.
    pub fn generate(directory: &Path) -> Result<Self, CertificatesError> {
        create_private_directory(directory).map_err(unwritable(directory))?;
        let authority = CertificateAuthority::new("headgate-lab sandbox CA")?;
        let (serving_certificate, serving_key) =
            authority.issue_server_certificate("kube-apiserver", &SERVING_NAMES)?;
        let service_account_key = generate_key("the service-account key")?;
        let token = random_hex()?;
        Ok(Self {
            authority_file: write(directory, "ca.crt", &authority.certificate_pem)?,
            authority: authority.certificate_pem,
            serving_certificate_file: write(directory, "kube-apiserver.crt", &serving_certificate.pem())?,
            serving_key_file: write(directory, "kube-apiserver.key", &serving_key.serialize_pem())?,
            service_account_key_file: write(directory, "service-account.key", &service_account_key.serialize_pem())?,
            service_account_public_key_file: write(
                directory,
                "service-account.pub",
                &service_account_key.public_key_pem(),
            )?,
            token_file: write(
                directory,
                "tokens.csv",
                &format!("{token},admin,admin,\"system:masters\"\n"),
            )?,
            token,
        })
    }

    /// The administrator's kubeconfig for the server at this URL. Clients verify the server by the authority in it.
    pub(crate) fn kubeconfig(&self, server: &str) -> String {
        // A JSON string is valid YAML.
        let authority = serde_json::json!(ByteString(self.authority.clone().into_bytes()));
        let token = &self.token;
        format!(
            "apiVersion: v1
kind: Config
current-context: sandbox
contexts:
- name: sandbox
  context:
    cluster: sandbox
    user: admin
clusters:
- name: sandbox
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: admin
  user:
    token: {token:?}
"
        )
    }
}

fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf, WriteError> {
    let file = directory.join(name);
    write_private_file(&file, text)?;
    Ok(file)
}

/// 128 random bits in hexadecimal.
///
/// # Errors
/// The system has no random bytes.
pub(crate) fn random_hex() -> Result<String, CertificatesError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| CertificatesError::Random(error.into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_the_owner_can_read_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("pki");
        let made = Certificates::generate(&pki).unwrap();
        assert_eq!(fs::metadata(&pki).unwrap().permissions().mode() & 0o777, 0o700);
        let mut files = 0;
        for entry in fs::read_dir(&pki).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(
                entry.metadata().unwrap().permissions().mode() & 0o777,
                0o600,
                "{entry:?}"
            );
            files += 1;
        }
        assert_eq!(files, 6);
        assert!(
            fs::read_to_string(&made.service_account_key_file)
                .unwrap()
                .contains("PRIVATE KEY")
        );
        assert!(made.authority.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(made.token.len(), 32);

        let again = Certificates::generate(&pki).unwrap();
        assert_ne!(again.token, made.token);
        assert_ne!(again.authority, made.authority);
    }
}
