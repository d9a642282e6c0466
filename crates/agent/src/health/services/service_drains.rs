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
    pub fn drain(&self, service: &NamespacedName, now: Moment) -> ServiceDrain {
        let own = own_state(&self.inputs, now.mono);
        let reads = self.reads.borrow();
        let node = self.inputs.node.borrow();
        let reads = reads.as_deref().filter(|reads| reads.continues_with(node.signals()));
        service_drain(own, reads, service, now.mono)
    }

    /// Whether the node's state is known and, while it has signals, the other nodes of its Services are.
    pub(super) fn are_known(&self, table: &ServiceTable, now: Moment) -> bool {
        let is_read = |service| self.drain(service, now) != ServiceDrain::KeepsServing(HoldReason::NotRead);
        self.inputs.node.borrow().is_known() && table.with_endpoints().all(|service| is_read(service))
    }
}

impl KeptServicesView {
    /// These Services; none while the node has no signal.
    pub fn kept(&self, now: Moment) -> KeptServices {
        let table = self.tables.borrow();
        let here = table.iter().flat_map(|table| table.with_endpoints());
        let kept = here.filter_map(|service| {
            let because = match self.drains.drain(service, now) {
                ServiceDrain::KeepsServing(reason) => KeptBecause::Held(reason),
                ServiceDrain::Failing if !self.is_own_port(service) && !self.answers.has(service) => {
                    KeptBecause::AnsweredElsewhere
                }
                ServiceDrain::Failing | ServiceDrain::Eligible => return None,
            };
            Some((Arc::clone(service), because))
        });
        kept.collect()
    }

    /// Whether it is known to which Services load balancers keep sending.
    pub(crate) fn are_known(&self, now: Moment) -> bool {
        let table = self.tables.borrow();
        table.as_deref().is_some_and(|table| self.drains.are_known(table, now))
    }

    /// Takes the Services with endpoints here as asked about: the process before has seen to it, and a load balancer that has left asks no
    /// more. Not where each has a port: this process finds out itself which one it cannot open.
    pub(crate) fn adopt_answers(&self, now: Moment) {
        let table = self.tables.borrow();
        let here = table.iter().flat_map(|table| table.with_endpoints());
        for service in here.filter(|_| self.ports.is_none()) {
            self.answers.adopt(service, now.mono);
        }
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

#[cfg(test)]
mod tests {
    use headgate_core::clock::Clock;
    use headgate_core::node::{AzureNotice, Signal};
    use headgate_core::service::IpFamily;
    use jiff::Timestamp;

    use super::super::super::fixtures::{Channels, table, web};
    use super::super::ports::{PortFailure, PortKey};
    use super::*;

    /// What one Service is kept for, with endpoints here, an answer about it, and its own port open or failed.
    fn kept(signal: Option<Signal>, endpoints: u32, is_answered: bool, port: Option<bool>) -> Option<KeptBecause> {
        let (web, now, channels) = (web(), Clock::System.now(), Channels::default());
        channels.notices.send_replace(
            signal
                .into_iter()
                .map(|signal| (signal, Timestamp::UNIX_EPOCH))
                .collect(),
        );
        channels.tables.send_replace(Some(table(&[("web", endpoints)])));
        let mut ports = PortStates::default();
        if port == Some(false) {
            let key = PortKey {
                service: Arc::new(web.clone()),
                family: IpFamily::IPv4,
            };
            let failure = PortFailure {
                uid: "u".into(),
                port: 30_000,
                error: "in use".to_owned(),
            };
            ports.failed.insert(key, failure);
        }
        if is_answered {
            channels.answers.count(&web, false, now.mono);
        }
        let ports = port.map(|_| watch::Sender::new(ports).subscribe());
        let kept = channels.kept_services(ports).kept(now);
        assert!(kept.keys().all(|service| **service == web), "{kept:?}");
        kept.get(&web).copied()
    }

    #[test]
    fn a_service_is_kept_where_headgate_answers_200_or_another_process_answers() {
        let revocable = Some(Signal::Azure(AzureNotice::Reboot));
        let ends = Some(Signal::Azure(AzureNotice::Preempt));
        let is_revocable = |signal: &Option<Signal>| signal.as_ref().is_some_and(Signal::is_revocable);
        assert!(is_revocable(&revocable) && !is_revocable(&ends));
        let held = Some(KeptBecause::Held(HoldReason::Unpublished));
        let elsewhere = Some(KeptBecause::AnsweredElsewhere);
        for (signal, endpoints, is_answered, port, expected) in [
            (None, 1, false, None, None),
            (revocable.clone(), 1, false, None, held),
            (revocable.clone(), 1, true, Some(true), held),
            (revocable, 0, false, None, None),
            (ends.clone(), 1, false, None, elsewhere),
            (ends.clone(), 1, true, None, None),
            (ends.clone(), 1, false, Some(true), None),
            (ends.clone(), 1, false, Some(false), elsewhere),
            (ends, 0, false, None, None),
        ] {
            let found = kept(signal.clone(), endpoints, is_answered, port);
            assert_eq!(found, expected, "{signal:?} {endpoints} {is_answered} {port:?}");
        }
    }
}
