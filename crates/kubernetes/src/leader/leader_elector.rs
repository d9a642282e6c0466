//! The leader elector: carries out what its candidate decides, and owns the task that does the work of a term.
//!
//! Invariant: one request to the Lease at a time, and no other task writes it.

use std::fmt::Display;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use headgate_core::clock::Clock;
use headgate_core::node::{NodeReport, SignalRules};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::candidate::{Action, Candidate, Event, Inputs};
use super::election_record::ElectionRecord;
use super::fleet::{CandidatePlacement, Fleet};
use super::leader_task::LeaderTask;
use super::lease_client::{LeaseClient, LeaseError};
use super::lease_state::LeaseName;
use super::metrics::LeaderMetrics;
use super::term::Term;

/// What a leader elector needs.
pub struct LeaderElectionConfig {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// The Lease that the candidates contend for.
    pub lease: LeaseName,
    /// A name that no other candidate has or had; [`candidate_identity`] makes one.
    pub identity: String,
    /// Where the candidates run.
    pub placement: CandidatePlacement,
    /// The reports about the own node. A signalled instance leads only if no other one can.
    pub reports: watch::Receiver<NodeReport>,
    /// Counts the terms of this instance.
    pub metrics: LeaderMetrics,
    /// The clock of the candidate.
    pub clock: Clock,
}

impl LeaderElectionConfig {
    /// A candidate for the Lease of all leaders that knows of no signal of its Node, and whose terms nothing counts.
    pub fn new(client: Client, identity: String, placement: CandidatePlacement, clock: Clock) -> Self {
        // The report never changes, so nobody has to keep the sender.
        let (_, reports) = watch::channel(NodeReport::initial(None, &SignalRules::default(), clock.now()));
        Self {
            client,
            lease: LeaseName::default(),
            identity,
            placement,
            reports,
            metrics: LeaderMetrics::default(),
            clock,
        }
    }
}

/// One candidate of the election.
pub struct LeaderElector {
    leases: LeaseClient,
    name: String,
    /// The Lease of the last response. A write keeps its fields that headgate does not know.
    last_lease: Option<Lease>,
    candidate: Candidate,
    placement: CandidatePlacement,
    reports: watch::Receiver<NodeReport>,
    terms: watch::Sender<Option<Term>>,
    metrics: LeaderMetrics,
    clock: Clock,
}

/// An identity for the candidate of one process on a node. As in client-go, a random suffix distinguishes the processes.
pub fn candidate_identity(node_name: &str) -> String {
    format!("{node_name}_{:016x}", fastrand::u64(..))
}

impl LeaderElector {
    /// A candidate that starts with [`LeaderElector::run`].
    pub fn new(config: LeaderElectionConfig) -> Self {
        // Candidates with different identities draw different numbers.
        let mut seed = DefaultHasher::new();
        config.identity.hash(&mut seed);
        let now = config.clock.now();
        Self {
            leases: LeaseClient::new(config.client, &config.lease),
            name: config.lease.name,
            last_lease: None,
            candidate: Candidate::new(config.identity, seed.finish(), now),
            placement: config.placement,
            reports: config.reports,
            terms: watch::Sender::new(None),
            metrics: config.metrics,
            clock: config.clock,
        }
    }

    /// The current term of this instance; `None` while it does not lead. The term itself shows whether it is still valid.
    pub fn terms(&self) -> watch::Receiver<Option<Term>> {
        self.terms.subscribe()
    }

    /// Contends for the Lease until `stop` is cancelled, and runs `work` in each term.
    ///
    /// The work is a task of its own. It must end when the term [requests a handover](Term::handover_requested) or has
    /// [ended](Term::ended); after 3 s it is aborted. Work that ends in another way, by an error, a panic or a return, has
    /// failed: the Lease is released, and this instance abstains for a time that doubles from one lease duration to 10
    /// minutes. When this function returns, no work runs, and the Lease is released, held by another, or about to expire.
    pub async fn run<W, F, E>(mut self, stop: CancellationToken, work: W)
    where
        W: Fn(Term) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let mut task = LeaderTask::new(work, self.terms.clone(), self.metrics.clone(), self.clock.clone());
        let mut event = Event::Woke;
        self.metrics.stands_for_election(true);
        loop {
            let reports = task.reports();
            let inputs = Inputs {
                now: self.clock.now(),
                is_stopping: stop.is_cancelled(),
                is_signalled: !self.reports.borrow_and_update().is_eligible(),
                fleet: Fleet::new(self.placement, reports.nodes),
                unable: reports.unable,
                throttle: reports.throttle,
            };
            let action = self.candidate.step(event, inputs);
            if let Some(immediate) = task.reconcile(self.candidate.task_target()) {
                event = immediate;
                continue;
            }
            event = match action {
                Action::Read(deadline) => self.read(deadline).await.unwrap_or_else(Event::from),
                Action::CreateLedger(deadline) => {
                    let created = self.leases.create_ledger(deadline).await;
                    created.map_or_else(Event::from, |()| Event::LedgerCreated)
                }
                Action::Write(record, deadline) => self.write(&record, deadline).await.unwrap_or_else(Event::from),
                Action::Wait(until) => tokio::select! {
                    biased;
                    event = task.changed() => event,
                    () = stop.cancelled(), if !inputs.is_stopping => Event::Woke,
                    Ok(()) = self.reports.changed() => Event::Woke,
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => Event::Woke,
                },
                Action::Stop => {
                    self.metrics.stands_for_election(false);
                    return;
                }
            };
        }
    }

    async fn read(&mut self, deadline: Instant) -> Result<Event, LeaseError> {
        self.last_lease = self.leases.read(deadline).await?;
        Ok(Event::Read(self.last_lease.as_ref().map(ElectionRecord::from_lease)))
    }

    async fn write(&mut self, record: &ElectionRecord, deadline: Instant) -> Result<Event, LeaseError> {
        let lease = record.to_lease(self.last_lease.as_ref(), &self.name);
        let written = self.leases.write(&lease, deadline).await?;
        let record = ElectionRecord::from_lease(&written);
        self.last_lease = Some(written);
        Ok(Event::Written(record))
    }
}

impl From<LeaseError> for Event {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Conflict => Self::Conflict,
            LeaseError::Refused(_) => Self::Refused,
            LeaseError::NoResponse(_) => Self::NoResponse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_an_identity_of_its_own() {
        assert_ne!(candidate_identity("n"), candidate_identity("n"));
        assert!(candidate_identity("n").starts_with("n_"));
    }
}
