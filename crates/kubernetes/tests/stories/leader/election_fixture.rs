//! Candidates in one process and in paused time. Each has its own connection to the API, its own clock, its own node's signals, and
//! work that writes to a journal as long as it gets permits.
//!
//! Every write checks that no other term is valid at that instant; [`ElectionFixture::pass`] checks it every 50 ms.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{Node, NodeReport, SignalRules, Taint};
use headgate_kubernetes::leader::{
    CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaderMetrics, LeaseName, NodeSummary, Term,
};
use headgate_test_kubernetes::{ClientFaults, FakeApi};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const NAMESPACE: &str = "kube-system";
const NAME: &str = "headgate-leader";
const TICK: Duration = Duration::from_millis(50);

/// What the work of a term does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Writes until a handover is requested, and this much longer.
    Writes(Duration),
    /// Panics after this time.
    Panics(Duration),
    /// Returns an error after this time.
    Fails(Duration),
    /// Ignores the end of the term.
    IgnoresEnd,
}

/// What the work of a leader reports about the Nodes.
pub(crate) fn nodes(nodes: usize, has_healthy_peer: bool) -> NodeSummary {
    NodeSummary {
        nodes,
        has_healthy_peer,
    }
}

/// The terms and writes of all candidates.
#[derive(Default)]
pub(crate) struct Journal {
    /// Each term with its holder and the time of its beginning.
    pub(crate) terms: Vec<(Term, String, Instant)>,
    /// The numbers of the terms, each with the UID of its Lease.
    numbers: BTreeSet<(String, i32)>,
    /// The time and the term of each write.
    pub(crate) writes: Vec<(Instant, i32)>,
}

impl Journal {
    /// The valid term. Panics if there are two.
    pub(crate) fn valid(&self) -> Option<(i32, String)> {
        // A term ends without renewals, so only the latest can be valid.
        let recent = self.terms.iter().rev().take(12);
        let mut valid = recent.filter(|(term, ..)| term.permit().is_ok());
        let found = valid.next().map(|(term, holder, _)| (term.number(), holder.clone()));
        let second = valid.next().map(|(term, holder, _)| (term.number(), holder.clone()));
        assert_eq!(second, None, "two valid terms, beside {found:?}");
        found
    }
}

/// What the candidates of a test have in common.
pub(crate) struct ElectionFixture {
    pub(crate) fake: FakeApi,
    /// What the work of each term reports.
    pub(crate) nodes: watch::Sender<Option<NodeSummary>>,
    /// Where the candidates run.
    pub(crate) placement: CandidatePlacement,
    pub(crate) journal: Arc<Mutex<Journal>>,
    anchor: Moment,
}

fn lease(fake: &FakeApi) -> Option<Lease> {
    fake.peek(NAMESPACE, NAME)
}

/// A candidate of the test.
pub(crate) struct TestCandidate {
    pub(crate) name: String,
    pub(crate) line: ClientFaults,
    pub(crate) work: watch::Sender<Work>,
    stop: CancellationToken,
    reports: watch::Sender<NodeReport>,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Runs a process that can be stopped as by SIGSTOP, while time goes on.
async fn freezable<F: Future>(mut frozen: watch::Receiver<bool>, process: F) -> F::Output {
    let mut process = pin!(process);
    loop {
        if frozen.wait_for(|frozen| !*frozen).await.is_err() {
            return std::future::pending().await;
        }
        tokio::select! {
            biased;
            Ok(_) = frozen.wait_for(|frozen| *frozen) => {}
            output = &mut process => return output,
        }
    }
}

fn report(signalled: bool, now: Moment) -> NodeReport {
    let rules = SignalRules::new(["drain"], &[]);
    let taint = signalled.then(|| Taint::new("drain", "NoSchedule"));
    let node = Node {
        uid: "u".to_owned(),
        taints: taint.into_iter().collect(),
        ..Node::default()
    };
    NodeReport::initial(None, &rules, now).with_node(node.with_signals(&rules), now)
}

/// Reports what the test says about the Nodes, for as long as the work runs.
async fn report_nodes(term: Term, mut nodes: watch::Receiver<Option<NodeSummary>>) {
    loop {
        term.report_nodes(*nodes.borrow_and_update());
        if nodes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn work(
    term: Term,
    holder: String,
    mut kind: watch::Receiver<Work>,
    journal: Arc<Mutex<Journal>>,
    fake: FakeApi,
) -> Result<(), String> {
    {
        let mut journal = journal.lock().unwrap();
        // The creator of a new Lease may not have observed the latest number of the deleted one.
        let uid = lease(&fake).and_then(|lease| lease.metadata.uid);
        let number = (uid.unwrap_or_default(), term.number());
        assert!(journal.numbers.insert(number.clone()), "{number:?} was used twice");
        journal.terms.push((term.clone(), holder, Instant::now()));
    }
    let began = Instant::now();
    let mut stop_at = None;
    loop {
        if let Ok(permit) = term.permit() {
            let mut journal = journal.lock().unwrap();
            assert_eq!(journal.valid().map(|valid| valid.0), Some(term.number()));
            journal.writes.push((Instant::now(), term.number()));
            drop(permit);
        }
        let kind = *kind.borrow_and_update();
        match kind {
            Work::Panics(after) if began.elapsed() >= after => panic!("a defect in the work"),
            Work::Fails(after) if began.elapsed() >= after => return Err("nothing but errors".to_owned()),
            Work::Writes(longer) => {
                if stop_at.is_some_and(|stop_at| Instant::now() >= stop_at) {
                    return Ok(());
                }
                tokio::select! {
                    () = term.ended() => return Ok(()),
                    () = term.handover_requested(), if stop_at.is_none() => stop_at = Some(Instant::now() + longer),
                    () = sleep(TICK * 2) => {}
                }
            }
            _ => sleep(TICK * 2).await,
        }
    }
}

impl ElectionFixture {
    /// No Lease yet, and so many candidates, as the work of a leader counts them.
    pub(crate) fn new(candidates: usize) -> Self {
        let wall: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        Self {
            fake: FakeApi::default(),
            nodes: watch::Sender::new(Some(nodes(candidates, true))),
            placement: CandidatePlacement::EveryNode,
            journal: Arc::default(),
            anchor: Clock::anchored(wall).now(),
        }
    }

    /// The Lease as the fake API server stores it.
    pub(crate) fn lease(&self) -> Option<Lease> {
        lease(&self.fake)
    }

    /// The holder; empty if the Lease is released.
    pub(crate) fn holder(&self) -> String {
        let spec = self.lease().and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    /// Deletes the Lease, as an operator does with kubectl.
    pub(crate) fn delete_lease(&self) {
        self.fake.delete::<Lease>(NAMESPACE, NAME);
    }

    /// Annotates the Lease, as an operator does with kubectl.
    pub(crate) fn annotate(&self, annotation: &str, value: &str) {
        self.fake.annotate::<Lease>(NAMESPACE, NAME, annotation, value);
    }

    /// A candidate whose clock is wrong by so many seconds.
    pub(crate) fn candidate(&self, name: &str, clock_error: i64) -> TestCandidate {
        let (client, line) = self.fake.client();
        let (anchor, error) = (self.anchor, SignedDuration::from_secs(clock_error));
        let clock = Clock::Derived(Arc::new(move |now| anchor.wall_at(now) + error));
        let reports = watch::Sender::new(report(false, clock.now()));
        let stop = CancellationToken::new();
        let (frozen, thawed) = watch::channel(false);
        let kind = watch::Sender::new(Work::Writes(Duration::ZERO));
        let elector = LeaderElector::new(LeaderElectionConfig {
            client,
            lease: LeaseName::default(),
            identity: name.to_owned(),
            placement: self.placement,
            reports: reports.subscribe(),
            metrics: LeaderMetrics::default(),
            clock,
        });
        let (journal, holder) = (Arc::clone(&self.journal), name.to_owned());
        let (kinds, frozen_work) = (kind.subscribe(), thawed.clone());
        let (fake, nodes) = (self.fake.clone(), self.nodes.subscribe());
        let begin = move |term: Term| {
            let reports = report_nodes(term.clone(), nodes.clone());
            let work = work(term, holder.clone(), kinds.clone(), Arc::clone(&journal), fake.clone());
            let both = async move {
                tokio::select! {
                    outcome = work => outcome,
                    () = reports => Ok(()),
                }
            };
            freezable(frozen_work.clone(), both)
        };
        TestCandidate {
            name: name.to_owned(),
            line,
            work: kind,
            stop: stop.clone(),
            reports,
            frozen,
            task: tokio::spawn(freezable(thawed, elector.run(stop, begin))),
        }
    }

    /// Candidates `a`, `b` and so on, with correct clocks.
    pub(crate) fn candidates(&self, count: u8) -> Vec<TestCandidate> {
        let name = |index| char::from(b'a' + index).to_string();
        (0..count).map(|index| self.candidate(&name(index), 0)).collect()
    }

    /// Lets time pass, and checks that there are never two leaders.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.leader();
            sleep(TICK.min(end - Instant::now())).await;
        }
    }

    /// The number and the holder of the valid term.
    pub(crate) fn leader(&self) -> Option<(i32, String)> {
        self.journal.lock().unwrap().valid()
    }

    /// Waits for a valid term with a higher number than `after`. Returns its number, its holder, and how long it took.
    pub(crate) async fn leader_after(&self, after: i32, within: Duration) -> (i32, String, Duration) {
        let began = Instant::now();
        while began.elapsed() <= within {
            if let Some((number, holder)) = self.leader().filter(|(number, _)| *number > after) {
                return (number, holder, began.elapsed());
            }
            sleep(TICK).await;
        }
        panic!("no term after {after} within {within:?}: {:?}", self.lease());
    }

    /// The number of terms so far.
    pub(crate) fn terms(&self) -> usize {
        self.journal.lock().unwrap().terms.len()
    }

    /// The time of the last write in a term.
    pub(crate) fn last_write(&self, number: i32) -> Instant {
        let journal = self.journal.lock().unwrap();
        let last = journal.writes.iter().rev().find(|(_, of)| *of == number);
        last.unwrap().0
    }
}

impl TestCandidate {
    pub(crate) fn signal(&self, signalled: bool) {
        let now = Clock::System.now();
        self.reports.send_replace(report(signalled, now));
    }

    /// Stops and continues the process, as SIGSTOP and SIGCONT do.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Ends the process, as SIGKILL does.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }

    /// Asks the process to stop, as SIGTERM does.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for TestCandidate {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The candidate with this name.
pub(crate) fn named<'a>(candidates: &'a [TestCandidate], name: &str) -> &'a TestCandidate {
    candidates.iter().find(|candidate| candidate.name == name).unwrap()
}
