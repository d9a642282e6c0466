//! One election from the first install to a deleted Lease, told on the fake and on the real kube-apiserver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_clock::Clock;
use headgate_leader::{
    CANDIDATES_ANNOTATION, Fleet, LeaderElectionConfig, LeaderElector, LeaseName, Term, Timing, candidate_identity, run,
};
use headgate_node::Report;
use headgate_test_kubernetes::FakeApi;
use headgate_test_kubernetes::control_plane;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

struct Candidate {
    terms: watch::Receiver<Option<Term>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

fn candidate(client: Client, name: &str) -> Candidate {
    let second = Duration::from_secs(1);
    let (fleet, known) = watch::channel(None);
    let elector = LeaderElector::new(LeaderElectionConfig {
        client,
        lease: LeaseName {
            name: name.to_owned(),
            ..LeaseName::default()
        },
        identity: candidate_identity("node"),
        timing: Timing::new(2 * second, second, second / 4).unwrap(),
        reports: watch::channel(Report::initial(None, &[], Clock::System.now())).1,
        fleet: known,
        clock: Clock::System,
    });
    let terms = elector.terms();
    let (stop, stopping) = watch::channel(false);
    let fleet = Arc::new(Mutex::new(fleet));
    let work = move |term: Term| {
        let fleet = Arc::clone(&fleet);
        async move {
            fleet.lock().unwrap().send_replace(Some(Fleet {
                candidates: 2,
                has_healthy_peer: true,
            }));
            term.handover_requested().await;
            Ok::<_, String>(())
        }
    };
    Candidate {
        terms,
        stop,
        task: tokio::spawn(run(elector, stopping, work)),
    }
}

fn led_by(candidate: &Candidate) -> Option<i32> {
    let term = candidate.terms.borrow().clone()?;
    term.permit().ok().map(|permit| permit.number())
}

/// Waits for a later term than `after`; which candidate has it, and its number.
async fn leads(candidates: &[&Candidate], after: i32) -> (usize, i32) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_mins(1) {
        let terms: Vec<_> = candidates.iter().map(|candidate| led_by(candidate)).collect();
        assert!(terms.iter().flatten().count() <= 1, "{terms:?}");
        if let Some(index) = terms.iter().position(|term| term.is_some_and(|number| number > after)) {
            return (index, terms[index].unwrap());
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("no leader");
}

async fn goes_its_way(client: impl Fn() -> Client, name: &str) {
    let leases = Api::<Lease>::namespaced(client(), "kube-system");
    let candidates = [candidate(client(), name), candidate(client(), name)];
    let both = [&candidates[0], &candidates[1]];
    let (first, number) = leads(&both, 0).await;
    assert_eq!(number, 1);

    // What others note on it stays, and ends no term.
    let note = json!({"metadata": {"annotations": {"other": "1"}}});
    leases
        .patch(name, &PatchParams::default(), &Patch::Merge(note))
        .await
        .unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(led_by(both[first]), Some(1));
    let annotations = leases.get(name).await.unwrap().metadata.annotations.unwrap();
    assert_eq!(
        (
            annotations["other"].as_str(),
            annotations[CANDIDATES_ANNOTATION].as_str()
        ),
        ("1", "2")
    );

    // Deleted: never two, then one.
    leases.delete(name, &DeleteParams::default()).await.unwrap();
    let (second, number) = leads(&both, 1).await;
    assert_eq!(number, 2);

    // Stopped: the other one takes it over; stopped too, it is nobody's.
    candidates[second].stop.send_replace(true);
    let other = &candidates[1 - second];
    assert_eq!(leads(&[other], 2).await.1, 3);
    other.stop.send_replace(true);
    for candidate in candidates {
        candidate.task.await.unwrap();
        assert!(candidate.terms.borrow().is_none());
    }
    let spec = leases.get(name).await.unwrap().spec.unwrap();
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_transitions),
        (Some(""), Some(3))
    );
}

#[tokio::test(start_paused = true)]
async fn an_election_on_the_fake() {
    let fake = FakeApi::default();
    goes_its_way(|| fake.client().0, "headgate-leader").await;
}

#[tokio::test]
async fn an_election_on_kube_apiserver() {
    goes_its_way(|| control_plane().client(), "leader-election").await;
}
