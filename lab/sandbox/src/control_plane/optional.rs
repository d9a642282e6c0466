//! Components that only some control planes have: kube-controller-manager, kube-scheduler, kwok and kube-proxy.
//!
//! They stop with the control plane, or all together before it.

use std::net::{Ipv4Addr, SocketAddr};

use super::{ControlPlane, ControlPlaneError, ProxyAddresses, START_TIMEOUT, STOP_TIMEOUT};
use super::{arguments, data_directory, readiness, start};
use crate::files::write_private_file;

/// The Stages by which kwok plays kubelets.
const KWOK_STAGES: &str = include_str!("kwok_stages.yaml");

impl ControlPlane {
    /// Starts kube-controller-manager as administrator. `arguments` come last, so they override its flags, such as
    /// `--controllers=*,-node-lifecycle-controller` where no kubelet reports the Nodes ready.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start_controller_manager(&mut self, arguments: &[&str]) -> Result<(), ControlPlaneError> {
        let mut all = arguments::controller_manager(&self.kubeconfig, &self.certificates);
        all.extend(arguments.iter().map(ToString::to_string));
        self.start_optional("kube-controller-manager", all)
    }

    /// Starts kube-scheduler as administrator.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start_scheduler(&mut self) -> Result<(), ControlPlaneError> {
        self.start_optional("kube-scheduler", arguments::scheduler(&self.kubeconfig))
    }

    /// Starts kube-proxy for a Node and waits until its health server accepts connections.
    ///
    /// It writes iptables rules, so call this only in an own network namespace. The Node needs an `InternalIP`; without
    /// one kube-proxy waits half a minute for it.
    ///
    /// # Errors
    /// It cannot be run, ends, or does not listen within a minute.
    pub async fn start_kube_proxy(&mut self, node: &str) -> Result<ProxyAddresses, ControlPlaneError> {
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // Its defaults, which are taken by nobody else in the namespace.
        let addresses = ProxyAddresses {
            healthz: address(10256),
            metrics: address(10249),
        };
        let arguments = arguments::proxy(&self.kubeconfig, node, addresses);
        let mut proxy = start(&self.assets, &self.directory, "kube-proxy", arguments)?;
        tokio::select! {
            ready = readiness::wait_for_listener("kube-proxy", addresses.healthz, START_TIMEOUT, proxy.log().to_owned()) => ready?,
            end = proxy.wait_for_exit() => return Err(end.into()),
        }
        self.optional.push(proxy);
        Ok(addresses)
    }

    /// Stops all of them that are running.
    pub async fn stop_optional_components(&mut self) {
        for process in self.optional.drain(..).rev() {
            process.stop(STOP_TIMEOUT).await;
        }
    }

    /// Starts kwok as administrator, in place of the kubelets of all Nodes with the label `label`: it renews their Leases, runs
    /// their Pods, and removes those that are deleted a second later. The kubelet of a Node that loses the label is dead.
    ///
    /// # Errors
    /// Its Stages cannot be written, or it cannot be run.
    pub fn start_kwok(&mut self, label: &str) -> Result<(), ControlPlaneError> {
        let path = data_directory(&self.directory).join(arguments::KWOK_CONFIG);
        write_private_file(&path, KWOK_STAGES)?;
        self.start_optional("kwok", arguments::kwok(&self.kubeconfig, label))
    }

    fn start_optional(&mut self, program: &str, arguments: Vec<String>) -> Result<(), ControlPlaneError> {
        self.optional
            .push(start(&self.assets, &self.directory, program, arguments)?);
        Ok(())
    }
}
