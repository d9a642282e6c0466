//! The flags of each component. Relative paths are relative to `control-plane/`, the working directory of all
//! components.

use std::path::Path;

use super::{ProxyAddresses, SERVICE_CIDR};
use crate::certificates::Certificates;

/// etcd's sockets. They are relative because the path of a socket has at most 108 bytes. etcd requires a port in every
/// URL; for a Unix socket it is part of the file name.
const ETCD_CLIENTS: &str = "unix://etcd.sock:0";
const ETCD_PEERS: &str = "unix://etcd-peers.sock:0";

pub(super) fn etcd() -> Vec<String> {
    vec![
        "--name=sandbox".to_owned(),
        "--data-dir=etcd".to_owned(),
        format!("--listen-client-urls={ETCD_CLIENTS}"),
        format!("--advertise-client-urls={ETCD_CLIENTS}"),
        format!("--listen-peer-urls={ETCD_PEERS}"),
        format!("--initial-advertise-peer-urls={ETCD_PEERS}"),
        format!("--initial-cluster=sandbox={ETCD_PEERS}"),
        // The data is not used again.
        "--unsafe-no-fsync".to_owned(),
        // Four times the default, which the revisions of 50,000 Nodes fill.
        "--quota-backend-bytes=8589934592".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

pub(super) fn apiserver(port: u16, certificates: &Certificates) -> Vec<String> {
    vec![
        format!("--etcd-servers={ETCD_CLIENTS}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        // Required to bind the port that is reserved for it.
        "--permit-port-sharing=true".to_owned(),
        // Without these two it requires a default route, which a new network namespace does not have.
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--tls-cert-file={}", certificates.serving_certificate_file.display()),
        format!("--tls-private-key-file={}", certificates.serving_key_file.display()),
        format!("--token-auth-file={}", certificates.token_file.display()),
        format!(
            "--service-account-key-file={}",
            certificates.service_account_public_key_file.display()
        ),
        format!(
            "--service-account-signing-key-file={}",
            certificates.service_account_key_file.display()
        ),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--service-cluster-ip-range={SERVICE_CIDR}"),
        // The plugin taints every new Node not-ready, and without a node lifecycle controller the taint would stay.
        "--disable-admission-plugins=TaintNodesByCondition".to_owned(),
        "--profiling=false".to_owned(),
    ]
}

pub(super) fn controller_manager(kubeconfig: &Path, certificates: &Certificates) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!(
            "--service-account-private-key-file={}",
            certificates.service_account_key_file.display()
        ),
        format!("--root-ca-file={}", certificates.authority_file.display()),
        format!("--service-cluster-ip-range={SERVICE_CIDR}"),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ]
}

pub(super) fn scheduler(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ]
}

/// kwok's configuration.
pub(super) const KWOK_CONFIG: &str = "kwok.yaml";

pub(super) fn kwok(kubeconfig: &Path, label: &str) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--config={KWOK_CONFIG}"),
        format!("--manage-nodes-with-label-selector={label}"),
        // One range for the Pods of all Nodes.
        "--cidr=10.244.0.1/16".to_owned(),
        // As kubelet: renewed four times as often.
        "--node-lease-duration-seconds=40".to_owned(),
        // Otherwise it logs each renewal.
        "-v=WARN".to_owned(),
    ]
}

pub(super) fn proxy(kubeconfig: &Path, node: &str, addresses: ProxyAddresses) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={node}"),
        format!("--healthz-bind-address={}", addresses.healthz),
        format!("--metrics-bind-address={}", addresses.metrics),
        "--bind-address-hard-fail=true".to_owned(),
        "--proxy-mode=iptables".to_owned(),
        // Zero leaves the kernel's connection tracking unchanged; it is shared by the whole machine.
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-min=0".to_owned(),
        "--conntrack-tcp-timeout-established=0s".to_owned(),
        "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
        "--conntrack-udp-timeout=0s".to_owned(),
        "--conntrack-udp-timeout-stream=0s".to_owned(),
    ]
}
