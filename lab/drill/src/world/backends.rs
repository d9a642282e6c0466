//! What the load balancer sends flows to and probes, as the strategy says.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::phase::Schedule;
use super::{RunSettings, World};
use crate::controller::ControllerSettings;
use crate::draining::{Deregistration, DrainRules};
use crate::http::Probe;
use crate::machine::DeletedMachines;
use crate::network::addresses;
use crate::strategy::{ProbeTarget, Removal, Target};

impl World {
    pub(super) fn pod_address(&self, node: usize) -> Ipv4Addr {
        match self.settings.plan.target {
            Target::HostPort => addresses::node(node),
            Target::NodePort | Target::Pod => addresses::pod(node),
        }
    }

    pub(super) fn controller_settings(&self, run: &RunSettings, schedule: &Schedule) -> ControllerSettings {
        let backend = |node: usize| {
            let address = match self.settings.plan.target {
                Target::NodePort => SocketAddrV4::new(addresses::node(node), addresses::NODE_PORT),
                Target::Pod => SocketAddrV4::new(addresses::pod(node), addresses::POD_PORT),
                Target::HostPort => SocketAddrV4::new(addresses::node(node), addresses::POD_PORT),
            };
            (address, self.probe(node), schedule.first(node))
        };
        let healthz = |node: usize| Probe {
            address: SocketAddrV4::new(addresses::node(node), addresses::HEADGATE_HEALTH_PORT),
            path: Some("/healthz"),
        };
        ControllerSettings {
            other_probes: if self.settings.plan.probe == ProbeTarget::HeadgateService {
                (0..self.settings.nodes).map(healthz).collect()
            } else {
                Vec::new()
            },
            backends: (0..self.settings.nodes).map(backend).collect(),
            probe: self.settings.probe,
            no_healthy: self.settings.no_healthy,
            propagation: self.settings.propagation,
            drain_rules: self.drain_rules(run),
            seed: run.seed,
        }
    }

    /// With a label, cloud-controller-manager removes a node by an operation of ARM, and so does the platform with a machine that
    /// is deleted. Established flows go on.
    fn drain_rules(&self, run: &RunSettings) -> DrainRules {
        let mut rules = self.settings.drain_rules;
        let by_operation = match self.settings.plan.removal {
            Removal::Label => true,
            Removal::Never => self.settings.deleted_machines == DeletedMachines::Leave,
            Removal::AutoscalerSignal => false,
        };
        if by_operation {
            rules.deregistration = Some(Deregistration {
                new_flows_stop: run.operation + self.settings.propagation,
                established: None,
            });
        }
        rules
    }

    pub(super) fn probe(&self, node: usize) -> Probe {
        let (address, port, path) = match self.settings.plan.probe {
            ProbeTarget::NodePort => (addresses::node(node), addresses::NODE_PORT, None),
            ProbeTarget::KubeProxy => (
                addresses::node(node),
                addresses::KUBE_PROXY_HEALTH_PORT,
                Some("/healthz"),
            ),
            ProbeTarget::HealthCheckNodePort => (
                addresses::node(node),
                addresses::HEALTH_CHECK_NODE_PORT,
                Some("/healthz"),
            ),
            ProbeTarget::Headgate => (addresses::node(node), addresses::HEADGATE_HEALTH_PORT, Some("/healthz")),
            ProbeTarget::HeadgateService => (
                addresses::node(node),
                addresses::HEADGATE_HEALTH_PORT,
                Some("/healthz/services/default/drill"),
            ),
            ProbeTarget::PodReady => (self.pod_address(node), addresses::POD_READY_PORT, Some("/ready")),
        };
        Probe {
            address: SocketAddrV4::new(address, port),
            path,
        }
    }
}
