//! What the verdict, the answers about Services and the marker are made from, for several tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeReport, Signal, SignalSettings, Taint};
use headgate_core::service::NamespacedName;
use jiff::Timestamp;
use tokio::sync::watch;

use super::failed_probes::ServiceAnswers;
use super::proxy_status::ProxyStatus;
use super::services::{DrainReads, KeptServicesView, PortStates, ServedService, ServiceDrains, ServiceTable};
use super::verdict::VerdictInputs;

/// A signal that may be taken back.
pub(super) const MAINTENANCE: &str = "headgate.dev/maintenance";

/// The Service `default/web`.
pub(super) fn web() -> NamespacedName {
    NamespacedName::new("default", "web")
}

/// Services of the namespace `default`, each with so many endpoints here.
pub(super) fn table(services: &[(&str, u32)]) -> Arc<ServiceTable> {
    let services = services.iter();
    let served =
        services.map(|(name, endpoints)| (NamespacedName::new("default", name), ServedService::example(*endpoints)));
    Arc::new(served.collect())
}

/// A Node with these taints, and their signals.
pub(super) fn tainted(taints: &[&str]) -> Node {
    let node = Node {
        name: "n1".into(),
        uid: "u".into(),
        taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
        ..Node::default()
    };
    node.with_signals(&SignalSettings::default().health())
}

/// Before the first Node was observed.
pub(super) fn initial() -> NodeReport {
    NodeReport::initial(None, &SignalSettings::default().health(), Clock::System.now())
}

/// With an observed Node.
pub(super) fn report(node: Node) -> NodeReport {
    initial().with_node(node, Clock::System.now())
}

/// What the parts of an agent that has just started tell each other.
pub(super) struct Channels {
    pub(super) node: watch::Sender<NodeReport>,
    pub(super) proxy: watch::Sender<ProxyStatus>,
    pub(super) notices: watch::Sender<BTreeMap<Signal, Timestamp>>,
    pub(super) tables: watch::Sender<Option<Arc<ServiceTable>>>,
    pub(super) reads: watch::Sender<Option<Arc<DrainReads>>>,
    pub(super) answers: ServiceAnswers,
}

impl Default for Channels {
    fn default() -> Self {
        Self {
            node: watch::Sender::new(initial()),
            proxy: watch::Sender::new(ProxyStatus::new(Duration::from_mins(1))),
            notices: watch::Sender::default(),
            tables: watch::Sender::default(),
            reads: watch::Sender::default(),
            answers: ServiceAnswers::default(),
        }
    }
}

impl Channels {
    pub(super) fn inputs(&self) -> VerdictInputs {
        VerdictInputs {
            node: self.node.subscribe(),
            proxy: self.proxy.subscribe(),
            notices: self.notices.subscribe(),
        }
    }

    pub(super) fn drains(&self) -> ServiceDrains {
        ServiceDrains {
            inputs: self.inputs(),
            reads: self.reads.subscribe(),
        }
    }

    pub(super) fn kept_services(&self, ports: Option<watch::Receiver<PortStates>>) -> KeptServicesView {
        KeptServicesView {
            drains: self.drains(),
            tables: self.tables.subscribe(),
            answers: self.answers.clone(),
            ports,
        }
    }
}
