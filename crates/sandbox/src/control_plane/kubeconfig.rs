//! The administrator's kubeconfig.

use k8s_openapi::ByteString;

use crate::certificates::Certificates;

/// A self-contained kubeconfig: clients verify the server against the authority in it.
pub(super) fn text(server: &str, certificates: &Certificates) -> String {
    // A JSON string is a YAML scalar too.
    let authority = serde_json::json!(ByteString(certificates.authority.clone().into_bytes()));
    let token = &certificates.token;
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
