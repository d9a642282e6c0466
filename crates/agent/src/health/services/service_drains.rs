//! What the node's signals make of the answers about its Services now, and the Services that load balancers keep sending to the node.

use headgate_core::service::NamespacedName;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use headgate_core::clock::Moment;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::failed_probes::ServiceAnswers;
use super::super::verdict::VerdictInputs;
use super::drain::{DrainReads, HoldReason, OwnState, ServiceDrain, service_drain};
use super::index::ServiceTable;
use super::ports::PortStates;

/// The latest value of what decides whether the answer about a Service fails because of the node's signals.
#[derive(Clone, Debug)]
pub struct ServiceDrains {
    /// The signals of the node, and kube-proxy's health.
    pub inputs: VerdictInputs,
    /// What is known of the other nodes.
    pub reads: watch::Receiver<Option<Arc<DrainReads>>>,
}

/// Why a load balancer keeps sending connections of a Service to a node with signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBecause {
    /// headgate answers 200.
    Held(HoldReason),
    /// headgate's 503 was never asked for, and another process answers on the Service's `healthCheckNodePort`.
    AnsweredElsewhere,
}

impl fmt::Display for KeptBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(reason) => reason.fmt(f),
            Self::AnsweredElsewhere => {
                f.write_str("its probes do not reach headgate; kube-proxy answers them with 200")
            }
        }
    }
}

/// The Services with ready endpoints on this node that load balancers keep sending to it.
pub type KeptServices = BTreeMap<Arc<NamespacedName>, KeptBecause>;

/// What says to which Services load balancers keep sending.
#[derive(Clone, Debug)]
pub struct KeptServicesView {
    /// What signals make of the answers.
    pub drains: ServiceDrains,
    /// The Services.
    pub tables: watch::Receiver<Option<Arc<ServiceTable>>>,
    /// The answers so far.
    pub answers: ServiceAnswers,
    /// The Services' own ports, if this process opens them.
    pub ports: Option<watch::Receiver<PortStates>>,
}

impl ServiceDrains {
    /// What the node's signals make of the answer about a Service with endpoints here.
    #[must_use]
    pub fn drain(&self, service: &NamespacedName, now: Moment) -> ServiceDrain {
        let own = own_state(&self.inputs, now.mono);
        let reads = self.reads.borrow();
        let node = self.inputs.node.borrow();
        let reads = reads.as_deref().filter(|reads| reads.continues_with(node.signals()));
        service_drain(own, reads, service, now.mono)
    }
}

impl KeptServicesView {
    /// These Services; none while the node has no signal.
    #[must_use]
    pub fn kept(&self, now: Moment) -> KeptServices {
        let table = self.tables.borrow();
        let here = table.iter().flat_map(|table| table.iter());
        let here = here.filter(|(_, served)| served.endpoints_of_any_family() > 0);
        let kept = here.filter_map(|(service, _)| {
            let because = match self.drains.drain(service, now) {
                ServiceDrain::HeldBack(reason) => KeptBecause::Held(reason),
                ServiceDrain::Failing if !self.is_own_port(service) && !self.answers.has(service) => {
                    KeptBecause::AnsweredElsewhere
                }
                ServiceDrain::Failing | ServiceDrain::Eligible => return None,
            };
            Some((Arc::clone(service), because))
        });
        kept.collect()
    }

    /// Whether no other process answers on the Service's port.
    fn is_own_port(&self, service: &NamespacedName) -> bool {
        let ports = self.ports.as_ref().map(watch::Receiver::borrow);
        ports.is_some_and(|ports| ports.failed.keys().all(|failed| *failed.service != *service))
    }
}

/// The own state, from all sources of signals.
pub(super) fn own_state(inputs: &VerdictInputs, now: Instant) -> OwnState {
    let (report, notices) = (inputs.node.borrow(), inputs.notices.borrow());
    let others: Vec<_> = notices.keys().collect();
    OwnState::read(&report, &others, now)
}
