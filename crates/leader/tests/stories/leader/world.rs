//! Candidates in one process and in paused time: each with its own way to the API, its own clock, its own node's
//! signals, and work that writes to a journal as long as it gets permits.
//!
//! Every write checks that no other term is valid at that instant, and so does [`World::pass`] every 50 ms.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_clock::{Clock, Moment};
use headgate_leader::{Elector, Fleet, LeaseName, Parts, Term, Timing, run};
use headgate_node::{Facts, Report};
use headgate_test_kubernetes::{ClientFaults, FakeApi};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const NAMESPACE: &str = "kube-system";
const NAME: &str = "headgate-leader";
const TICK: Duration = Duration::from_millis(50);

/// What a term's work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Writes until it is told that the term is leaving, and this much longer.
    Writes(Duration),
    /// Panics after this time.
    Panics(Duration),
    /// Gives an error after this time.
    Fails(Duration),
    /// Never ends of itself, whatever it is told.
    Deaf,
}

/// What was done in all terms.
#[derive(Default)]
pub(crate) struct Journal {
    /// Each term with its holder and its beginning.
    pub(crate) terms: Vec<(Term, String, Instant)>,
    /// The numbers that were given, each with the Lease that gave it.
    numbers: BTreeSet<(String, i32)>,
    /// Each write: when, in which term.
    pub(crate) writes: Vec<(Instant, i32)>,
}

impl Journal {
    /// The term that is valid now; there must not be two.
    pub(crate) fn valid(&self) -> Option<(i32, String)> {
        // No term lasts without a renewal, so only the latest can be.
        let recent = self.terms.iter().rev().take(12);
        let mut valid = recent.filter(|(term, ..)| term.permit().is_ok());
        let found = valid.next().map(|(term, holder, _)| (term.number(), holder.clone()));
        let second = valid.next().map(|(term, holder, _)| (term.number(), holder.clone()));
        assert_eq!(second, None, "two valid terms, beside {found:?}");
        found
    }
}

/// All candidates' surroundings.
pub(crate) struct World {
    pub(crate) fake: FakeApi,
    pub(crate) fleet: watch::Sender<Option<Fleet>>,
    pub(crate) journal: Arc<Mutex<Journal>>,
    anchor: Moment,
}

fn lease(fake: &FakeApi) -> Option<Lease> {
    fake.peek(NAMESPACE, NAME)
}

/// One candidate.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) line: ClientFaults,
    pub(crate) work: watch::Sender<Work>,
    stop: watch::Sender<bool>,
    reports: watch::Sender<Report>,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// A process that can be stopped, as by SIGSTOP: time goes on, it does not.
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

fn report(signalled: bool, now: Moment) -> Report {
    let keys = ["drain".to_owned()];
    let facts = Facts {
        uid: "u".to_owned(),
        taints: if signalled { keys.to_vec() } else { Vec::new() },
        ..Facts::default()
    };
    Report::initial(None, &keys, now).observed(facts, &keys, now)
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
        // Whoever makes a deleted Lease anew may not have seen its latest number.
        let uid = lease(&fake).and_then(|lease| lease.metadata.uid);
        let given = (uid.unwrap_or_default(), term.number());
        assert!(journal.numbers.insert(given.clone()), "{given:?} came again");
        journal.terms.push((term.clone(), holder, Instant::now()));
    }
    let began = Instant::now();
    let mut leave_by = None;
    loop {
        if let Ok(permit) = term.permit() {
            let mut journal = journal.lock().unwrap();
            assert_eq!(journal.valid().map(|valid| valid.0), Some(permit.number()));
            journal.writes.push((Instant::now(), permit.number()));
        }
        let kind = *kind.borrow_and_update();
        match kind {
            Work::Panics(after) if began.elapsed() >= after => panic!("a defect in the work"),
            Work::Fails(after) if began.elapsed() >= after => return Err("nothing but errors".to_owned()),
            Work::Writes(longer) => {
                if leave_by.is_some_and(|leave_by| Instant::now() >= leave_by) {
                    return Ok(());
                }
                tokio::select! {
                    () = term.ended() => return Ok(()),
                    () = term.leaving(), if leave_by.is_none() => leave_by = Some(Instant::now() + longer),
                    () = sleep(TICK * 2) => {}
                }
            }
            _ => sleep(TICK * 2).await,
        }
    }
}

impl World {
    /// No Lease yet, and `candidates` of them as a leader's work would count.
    pub(crate) fn new(candidates: u32) -> Self {
        let wall: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        Self {
            fake: FakeApi::default(),
            fleet: watch::Sender::new(Some(Fleet {
                candidates,
                relief: true,
            })),
            journal: Arc::default(),
            anchor: Clock::anchored(wall).now(),
        }
    }

    /// The Lease as it is.
    pub(crate) fn lease(&self) -> Option<Lease> {
        lease(&self.fake)
    }

    /// Who holds it; empty if nobody.
    pub(crate) fn holder(&self) -> String {
        let spec = self.lease().and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    /// What people do with kubectl.
    pub(crate) fn delete_lease(&self) {
        self.fake.delete::<Lease>(NAMESPACE, NAME);
    }

    /// What people do with kubectl, too.
    pub(crate) fn annotate(&self, annotation: &str, value: &str) {
        self.fake.annotate::<Lease>(NAMESPACE, NAME, annotation, value);
    }

    /// A candidate whose clock is this many seconds off.
    pub(crate) fn member(&self, name: &str, off: i64) -> Member {
        let (client, line) = self.fake.client();
        let clock = Clock::Anchored(Moment {
            wall: self.anchor.wall + SignedDuration::from_secs(off),
            ..self.anchor
        });
        let reports = watch::Sender::new(report(false, clock.now()));
        let (stop, stopping) = watch::channel(false);
        let (frozen, thawed) = watch::channel(false);
        let kind = watch::Sender::new(Work::Writes(Duration::ZERO));
        let elector = Elector::new(Parts {
            client,
            lease: LeaseName::default(),
            identity: name.to_owned(),
            timing: Timing::default(),
            reports: reports.subscribe(),
            fleet: self.fleet.subscribe(),
            clock,
        });
        let (journal, holder, kinds, frozen_work) = (
            Arc::clone(&self.journal),
            name.to_owned(),
            kind.subscribe(),
            thawed.clone(),
        );
        let fake = self.fake.clone();
        let begin = move |term| {
            freezable(
                frozen_work.clone(),
                work(term, holder.clone(), kinds.clone(), Arc::clone(&journal), fake.clone()),
            )
        };
        Member {
            name: name.to_owned(),
            line,
            work: kind,
            stop,
            reports,
            frozen,
            task: tokio::spawn(freezable(thawed, run(elector, stopping, begin))),
        }
    }

    /// Members `a`, `b` and so on, with right clocks.
    pub(crate) fn members(&self, count: u8) -> Vec<Member> {
        let name = |index| char::from(b'a' + index).to_string();
        (0..count).map(|index| self.member(&name(index), 0)).collect()
    }

    /// Lets time pass, watching that there are never two leaders.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.leader();
            sleep(TICK.min(end - Instant::now())).await;
        }
    }

    /// The valid term's number and holder.
    pub(crate) fn leader(&self) -> Option<(i32, String)> {
        self.journal.lock().unwrap().valid()
    }

    /// Waits for a valid term later than `after`; gives its number, its holder, and how long it took.
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

    /// How many terms there were so far.
    pub(crate) fn terms(&self) -> usize {
        self.journal.lock().unwrap().terms.len()
    }

    /// When something was last written in a term.
    pub(crate) fn last_write(&self, number: i32) -> Instant {
        let journal = self.journal.lock().unwrap();
        let last = journal.writes.iter().rev().find(|(_, of)| *of == number);
        last.unwrap().0
    }
}

impl Member {
    pub(crate) fn signal(&self, signalled: bool) {
        let now = Clock::System.now();
        self.reports.send_replace(report(signalled, now));
    }

    /// SIGSTOP, and SIGCONT.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }

    /// SIGTERM.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The member of this name.
pub(crate) fn named<'a>(members: &'a [Member], name: &str) -> &'a Member {
    members.iter().find(|member| member.name == name).unwrap()
}
