//! One election from the creation to the deletion of its Lease, on the fake API and on the real kube-apiserver.

use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{
    CANDIDATES_ANNOTATION, CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaseName, Term, candidate_identity,
};
use headgate_test_kubernetes::FakeApi;
use headgate_test_kubernetes::control_plane;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::election_fixture::nodes;

struct Candidate {
    terms: watch::Receiver<Option<Term>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn candidate(client: Client, lease: LeaseName, clock: Clock) -> Candidate {
    let (identity, placement) = (candidate_identity("node"), CandidatePlacement::EveryNode);
    let elector = LeaderElector::new(LeaderElectionConfig {
        lease,
        ..LeaderElectionConfig::new(client, identity, placement, clock)
    });
    let terms = elector.terms();
    let stop = CancellationToken::new();
    let work = |term: Term| async move {
        term.report_nodes(Some(nodes(2, true)));
        term.handover_requested().await;
        Ok::<_, String>(())
    };
    Candidate {
        terms,
        stop: stop.clone(),
        task: tokio::spawn(elector.run(stop, work)),
    }
}

fn current_term(candidate: &Candidate) -> Option<i32> {
    let term = candidate.terms.borrow().clone()?;
    term.permit().is_ok().then(|| term.number())
}

/// Waits for a term with a higher number than `after`. Returns the index of its holder, and its number.
async fn wait_for_leader(candidates: &[&Candidate], after: i32) -> (usize, i32) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_mins(1) {
        let terms: Vec<_> = candidates.iter().map(|candidate| current_term(candidate)).collect();
        assert!(terms.iter().flatten().count() <= 1, "{terms:?}");
        if let Some(index) = terms.iter().position(|term| term.is_some_and(|number| number > after)) {
            return (index, terms[index].unwrap());
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("no leader");
}

async fn run_election(client: impl Fn() -> Client, name: &str, clock: Clock) {
    let leases = Api::<Lease>::namespaced(client(), "kube-system");
    let lease = LeaseName {
        name: name.to_owned(),
        ..LeaseName::default()
    };
    let candidates = [
        candidate(client(), lease.clone(), clock.clone()),
        candidate(client(), lease, clock),
    ];
    let both = [&candidates[0], &candidates[1]];
    let (first, number) = wait_for_leader(&both, 0).await;
    assert_eq!(number, 1);

    // An annotation of others stays, and ends no term.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"other": "1"}}}));
    let patched = leases.patch(name, &PatchParams::default(), &patch).await;
    patched.unwrap();
    // Long enough for the other candidate to read term 1 as well: a candidate that has not seen it numbers its own term 1.
    sleep(Duration::from_secs(16)).await;
    assert_eq!(current_term(both[first]), Some(1));
    let annotations = leases.get(name).await.unwrap().metadata.annotations.unwrap();
    let found = ["other", CANDIDATES_ANNOTATION].map(|name| annotations[name].as_str());
    assert_eq!(found, ["1", "2"]);

    // The Lease is deleted: there are never two leaders, then there is one.
    leases.delete(name, &DeleteParams::default()).await.unwrap();
    let (second, number) = wait_for_leader(&both, 1).await;
    assert_eq!(number, 2);

    // The leader stops, and the other candidate leads. That stops too, and the Lease is released.
    candidates[second].stop.cancel();
    let other = &candidates[1 - second];
    assert_eq!(wait_for_leader(&[other], 2).await.1, 3);
    other.stop.cancel();
    for candidate in candidates {
        candidate.task.await.unwrap();
        assert!(candidate.terms.borrow().is_none());
    }
    let spec = leases.get(name).await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""));
    assert_eq!(spec.lease_transitions, Some(3));
}

#[tokio::test(start_paused = true)]
async fn an_election_on_the_fake() {
    let fake = FakeApi::default();
    // The wall clock has to follow the paused time: no permit is issued while the two clocks diverge.
    let clock = Clock::anchored(jiff::Timestamp::UNIX_EPOCH);
    run_election(|| fake.client().0, "headgate-leader", clock).await;
}

#[tokio::test]
async fn an_election_on_kube_apiserver() {
    run_election(|| control_plane().client(), "leader-election", Clock::System).await;
}
