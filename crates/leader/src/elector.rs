//! Carries out what a candidate decides: reads and writes the Lease, waits, and owns the term's work.
//!
//! Invariant: one request at a time, each bounded, none repeated here or below; what an answer leaves open counts
//! as open. The API client must not retry of itself: `node::api_server`'s does not.

use std::collections::hash_map::RandomState;
use std::fmt::Display;
use std::future::Future;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _};

use headgate_clock::Clock;
use headgate_node::Report;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::candidate::{Action, Candidate, Circumstances, Event, Fleet};
use super::office::Office;
use super::record::Record;
use super::term::Term;
use super::timing::Timing;

/// Which Lease is fought for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Default for LeaseName {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "headgate-leader".to_owned(),
        }
    }
}

/// What an elector is made of.
pub struct LeaderElectionConfig {
    /// A client that does not retry of itself.
    pub client: Client,
    /// The Lease.
    pub lease: LeaseName,
    /// A name that no other process has or had: see [`identity`].
    pub identity: String,
    /// The Lease's times, the same for all candidates.
    pub timing: Timing,
    /// What this node is told: with a signal on it, it leads only if nobody else can.
    pub reports: watch::Receiver<Report>,
    /// What the term's work knows of the candidates; `None` until it knows, and for no longer than it does.
    pub fleet: watch::Receiver<Option<Fleet>>,
    /// Its time.
    pub clock: Clock,
}

/// One candidate.
pub struct LeaderElector {
    leases: Api<Lease>,
    name: String,
    /// The Lease as last answered, so that what others keep in it survives.
    last: Option<Lease>,
    candidate: Candidate,
    reports: watch::Receiver<Report>,
    fleet: watch::Receiver<Option<Fleet>>,
    terms: watch::Sender<Option<Term>>,
    clock: Clock,
    /// The trouble that was last told of.
    told: Option<String>,
}

/// A name for one process's candidate on a node.
#[must_use]
pub fn candidate_identity(node_name: &str) -> String {
    // Seeded by the system, once in each process and differently for each call.
    let chance = RandomState::new().build_hasher().finish();
    format!("{node_name}_{chance:016x}")
}

impl LeaderElector {
    /// A candidate that has not begun: see [`run`].
    #[must_use]
    pub fn new(parts: LeaderElectionConfig) -> Self {
        let mut seed = DefaultHasher::new();
        parts.identity.hash(&mut seed);
        let now = parts.clock.now();
        Self {
            leases: Api::namespaced(parts.client, &parts.lease.namespace),
            name: parts.lease.name,
            last: None,
            candidate: Candidate::new(parts.identity, parts.timing, seed.finish(), now),
            reports: parts.reports,
            fleet: parts.fleet,
            terms: watch::Sender::new(None),
            clock: parts.clock,
            told: None,
        }
    }

    /// The present term of this instance, if it leads. Whether it still lasts is for the term to say.
    #[must_use]
    pub fn terms(&self) -> watch::Receiver<Option<Term>> {
        self.terms.subscribe()
    }

    fn circumstances(&mut self, stop: &mut watch::Receiver<bool>) -> Circumstances {
        let gone = stop.has_changed().is_err();
        Circumstances {
            stopping: *stop.borrow_and_update() || gone,
            signalled: !self.reports.borrow_and_update().eligible(),
            fleet: *self.fleet.borrow_and_update(),
        }
    }

    async fn read(&mut self, by: Instant) -> Event {
        let answer = timeout_at(by, self.leases.get_opt(&self.name)).await;
        match answer {
            Ok(Ok(lease)) => {
                self.told = None;
                let record = lease.as_ref().map(Record::of);
                self.last = lease;
                Event::Seen(record)
            }
            Ok(Err(error)) => self.trouble("read", &error),
            Err(_) => self.no_answer("read"),
        }
    }

    async fn write(&mut self, record: &Record, by: Instant) -> Event {
        let lease = record.lease(self.last.as_ref(), &self.name);
        let params = PostParams::default();
        let write = async {
            if record.resource_version.is_some() {
                self.leases.replace(&self.name, &params, &lease).await
            } else {
                self.leases.create(&params, &lease).await
            }
        };
        let answer = timeout_at(by, write).await;
        match answer {
            Ok(Ok(lease)) => {
                self.told = None;
                let record = Record::of(&lease);
                self.last = Some(lease);
                Event::Written(record)
            }
            Ok(Err(error)) => self.trouble("written", &error),
            Err(_) => self.no_answer("written"),
        }
    }

    fn trouble(&mut self, done: &str, error: &kube::Error) -> Event {
        let event = outcome(error);
        if event != Event::Conflict {
            self.tell(done, headgate_telemetry::chain(error), &event);
        }
        event
    }

    fn no_answer(&mut self, done: &str) -> Event {
        self.tell(
            done,
            "the API server did not answer in time".to_owned(),
            &Event::Unanswered,
        );
        Event::Unanswered
    }

    /// Says what is wrong, once until it is something else.
    fn tell(&mut self, done: &str, error: String, event: &Event) {
        if self.told.as_ref() != Some(&error) {
            let lease = &self.name;
            if *event == Event::Refused {
                tracing::warn!(
                    lease,
                    error,
                    "the leader's Lease may not be {done}: this instance cannot lead"
                );
            } else {
                tracing::warn!(lease, error, "the leader's Lease could not be {done}; trying again");
            }
            self.told = Some(error);
        }
    }
}

/// What a failure says about the Lease.
fn outcome(error: &kube::Error) -> Event {
    match error {
        kube::Error::Api(status) => match status.code {
            // A write of a Lease that is gone.
            404 | 409 => Event::Conflict,
            408 | 429 => Event::Unanswered,
            400..=499 => Event::Refused,
            _ => Event::Unanswered,
        },
        _ => Event::Unanswered,
    }
}

/// Waits for a value to be another one; for ever once nobody can change it.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Stands for election until `stop` says so or is gone, and has `work` done in each term that is won.
///
/// The work is a task of its own, given its term. It should come to its end when the term is
/// [`handover_requested`](Term::handover_requested) or has [`ended`](Term::ended), and gets 3 s for it before it is ended. Work that ends
/// otherwise, by an error, a panic or a return, has failed: the Lease is given back, and this instance rests for
/// a time that doubles from one lease duration to 10 minutes. When this returns no work runs, and the Lease is
/// another's, nobody's, or about to expire.
pub async fn run<W, F, E>(mut elector: LeaderElector, mut stop: watch::Receiver<bool>, work: W)
where
    W: Fn(Term) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    let mut office = Office::new(work, elector.terms.clone());
    let mut event = Event::Woke;
    loop {
        let here = elector.circumstances(&mut stop);
        let action = elector.candidate.step(event, here, elector.clock.now());
        if let Some(at_once) = office.perform(elector.candidate.duty()) {
            event = at_once;
            continue;
        }
        event = match action {
            Action::Read(by) => elector.read(by).await,
            Action::Write(record, by) => elector.write(&record, by).await,
            Action::Wait(until) => tokio::select! {
                biased;
                () = office.work_ended() => Event::WorkEnded,
                _ = stop.changed(), if !here.stopping => Event::Woke,
                () = changed(&mut elector.reports) => Event::Woke,
                () = changed(&mut elector.fleet) => Event::Woke,
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => Event::Woke,
            },
            Action::Done => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn what_a_failure_leaves_open() {
        for (code, event) in [
            (400, Event::Refused),
            (401, Event::Refused),
            (403, Event::Refused),
            (404, Event::Conflict),
            (408, Event::Unanswered),
            (409, Event::Conflict),
            (422, Event::Refused),
            (429, Event::Unanswered),
            (500, Event::Unanswered),
            (503, Event::Unanswered),
        ] {
            let status = Status::failure("", "").with_code(code);
            assert_eq!(outcome(&kube::Error::Api(status.boxed())), event, "{code}");
        }
        let cut_off = kube::Error::Service("connection closed".into());
        assert_eq!(outcome(&cut_off), Event::Unanswered);
    }

    #[test]
    fn each_process_has_a_name_of_its_own() {
        assert_ne!(candidate_identity("n"), candidate_identity("n"));
        assert!(candidate_identity("n").starts_with("n_"));
    }
}
