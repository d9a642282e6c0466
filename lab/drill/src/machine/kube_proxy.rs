//! kube-proxy of a node: its own process in nftables mode, or a model for drills without an API server.
//!
//! The process learns of Services, endpoints and its Node from the API server. The model gets its NAT rules, and the
//! answers of `/healthz` and `healthCheckNodePort`, from the drill, at once.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headgate_sandbox::process::{Process, ProcessError, command_in};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{Listener, MachineError};
use crate::endpoints::Backends;
use crate::files::write;
use crate::http;
use crate::network::addresses::{HEALTH_CHECK_NODE_PORT, KUBE_PROXY_HEALTH_PORT};
use crate::network::tool::ToolError;
use crate::network::{ruleset, tool};

/// kube-proxy's process.
#[derive(Clone, Debug)]
pub struct KubeProxyConfig {
    /// The path of its program.
    pub program: PathBuf,
    /// The kubeconfig by which it reaches the API server.
    pub kubeconfig: PathBuf,
    /// The name of its Node.
    pub node: String,
    /// Its directory; it is created if it is missing.
    pub directory: PathBuf,
    /// The file to which its output is appended.
    pub log: PathBuf,
    /// The shortest real time between two changes of its rules; its default is 1 s.
    pub min_sync_period: Duration,
}

impl KubeProxyConfig {
    /// Its configuration file. The shortest time between two syncs has no flag in nftables mode.
    fn configuration(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": self.kubeconfig},
            "hostnameOverride": self.node,
            "healthzBindAddress": SocketAddr::from((Ipv4Addr::UNSPECIFIED, KUBE_PROXY_HEALTH_PORT)),
            "metricsBindAddress": "127.0.0.1:10249",
            "bindAddressHardFail": true,
            "mode": "nftables",
            "nftables": {"minSyncPeriod": format!("{}ms", self.min_sync_period.as_millis().max(1))},
            // Zero leaves the kernel's connection tracking unchanged; a part of it is shared by the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
                "udpTimeout": "0s", "udpStreamTimeout": "0s"},
        })
    }

    fn start(&self) -> Result<Process, MachineError> {
        let file = self.directory.join("configuration.json");
        write(&file, &self.configuration().to_string())?;
        let mut command = command_in(&self.program, &self.directory);
        command.arg("--config").arg(file).env_remove("KUBECONFIG");
        let name = format!("kube-proxy of {}", self.node);
        Ok(Process::start(&name, command, &self.log)?)
    }
}

#[derive(Debug)]
pub(super) enum KubeProxy {
    Process(Box<Own>),
    Model(Model),
}

/// kube-proxy's own process.
#[derive(Debug)]
pub(super) struct Own {
    config: KubeProxyConfig,
    process: Option<Process>,
}

#[derive(Debug)]
pub(super) struct Model {
    is_eligible: Arc<AtomicBool>,
    has_ready_endpoint: Arc<AtomicBool>,
    _listeners: [Listener; 2],
}

impl KubeProxy {
    /// A process that does not run yet.
    pub(super) fn process(config: KubeProxyConfig) -> Self {
        Self::Process(Box::new(Own { config, process: None }))
    }

    /// The model, which listens from now on in the network namespace of the calling thread.
    pub(super) async fn model() -> io::Result<Self> {
        let (is_eligible, has_ready_endpoint) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let eligible = Arc::clone(&is_eligible);
        let healthz = listen(KUBE_PROXY_HEALTH_PORT, move |path| match path {
            "/livez" => StatusCode::OK,
            "/healthz" => ok_if(&eligible),
            _ => StatusCode::NOT_FOUND,
        });
        let ready = Arc::clone(&has_ready_endpoint);
        let health_check = listen(HEALTH_CHECK_NODE_PORT, move |_| ok_if(&ready));
        Ok(Self::Model(Model {
            is_eligible,
            has_ready_endpoint,
            _listeners: [healthz.await?, health_check.await?],
        }))
    }

    /// Starts the process, in the place of one that runs. It listens some time later.
    pub(super) async fn start(&mut self) -> Result<(), MachineError> {
        self.kill().await;
        if let Self::Process(own) = self {
            own.process = Some(own.config.start()?);
        }
        Ok(())
    }

    /// Fails if the process was started and has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), ProcessError> {
        match self {
            Self::Process(own) => own.process.as_mut().and_then(Process::try_wait).map_or(Ok(()), Err),
            Self::Model(_) => Ok(()),
        }
    }

    pub(super) async fn kill(&mut self) {
        if let Self::Process(own) = self
            && let Some(process) = own.process.take()
        {
            process.kill().await;
        }
    }

    pub(super) async fn forward(&self, backends: &Backends, has_ready_endpoint: bool) -> Result<(), ToolError> {
        if let Self::Model(model) = self {
            tool::nft(&ruleset::kube_proxy(backends)).await?;
            model.has_ready_endpoint.store(has_ready_endpoint, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn set_eligible(&self, eligible: bool) {
        if let Self::Model(model) = self {
            model.is_eligible.store(eligible, Ordering::Relaxed);
        }
    }
}

async fn listen(port: u16, answer: impl Fn(&str) -> StatusCode + Send + Sync + 'static) -> io::Result<Listener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    Ok(Listener(tokio::spawn(http::serve(listener, Arc::new(answer)))))
}

fn ok_if(flag: &AtomicBool) -> StatusCode {
    if flag.load(Ordering::Relaxed) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_of_the_node_and_leaves_the_machines_connection_tracking() {
        let config = KubeProxyConfig {
            program: "kube-proxy".into(),
            kubeconfig: "/drill/kubeconfig".into(),
            node: "node-3".to_owned(),
            directory: "/drill".into(),
            log: "/drill/log".into(),
            min_sync_period: Duration::from_micros(10),
        };
        let configuration = config.configuration();
        for (field, expected) in [
            ("/hostnameOverride", json!("node-3")),
            ("/clientConnection/kubeconfig", json!("/drill/kubeconfig")),
            ("/healthzBindAddress", json!("0.0.0.0:10256")),
            ("/nftables/minSyncPeriod", json!("1ms")),
            ("/conntrack/maxPerCore", json!(0)),
        ] {
            assert_eq!(configuration.pointer(field), Some(&expected), "{field}");
        }
    }
}
