//! Decisions as a table: one thing is other than in a situation in which the rollout is restarted.

use super::{
    AutoscalerFacts, BTreeSet, BudgetFacts, Decision, DeploymentFacts, MAX_EVACUATORS, NodeFacts, PodFacts, Protection,
    Record, ReplicaSetFacts, Situation, decide, evacuator, protection,
};
use crate::drain_plan::{Labels, PodSelector};
use crate::snapshot::Owner;

/// All that a situation borrows.
#[derive(Clone)]
struct Scene {
    pod: PodFacts,
    protection: Protection,
    node: NodeFacts,
    replica_set: Option<ReplicaSetFacts>,
    deployment: Option<DeploymentFacts>,
    autoscalers: Vec<AutoscalerFacts>,
    replicas_leaving: usize,
    successor_problem: Option<&'static str>,
    was_restarted: bool,
    maintenances: BTreeSet<String>,
}

fn set(uids: &[&str]) -> BTreeSet<String> {
    uids.iter().map(|uid| (*uid).to_owned()).collect()
}

fn owner(kind: &str, name: &str) -> Owner {
    Owner {
        api_version: "apps/v1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    }
}

/// One that has one replica and wants so many.
fn autoscaler(desired: i32) -> AutoscalerFacts {
    AutoscalerFacts {
        name: "web".to_owned(),
        current: 1,
        desired,
    }
}

fn record(uids: &[&str]) -> Record {
    Record::default().with(&set(uids), &BTreeSet::new())
}

/// One replica on a cordoned node of maintenance `m`, which allows rollouts.
fn scene() -> Scene {
    Scene {
        pod: PodFacts {
            namespace: "shop".to_owned(),
            name: "web-1-a".to_owned(),
            node: "one".to_owned(),
            labels: Labels::from([("app".to_owned(), "web".to_owned())]),
            owner: Some(owner("ReplicaSet", "web-1")),
            is_ready: true,
            ..PodFacts::default()
        },
        protection: Protection::NeedsAll,
        node: NodeFacts {
            drained_by: set(&["m"]),
            is_allowed: true,
            is_cordoned: true,
        },
        replica_set: Some(ReplicaSetFacts {
            name: "web-1".to_owned(),
            uid: "uid-of-web-1".to_owned(),
            owner: Some(owner("Deployment", "web")),
            record: Record::default(),
        }),
        deployment: Some(DeploymentFacts {
            name: "web".to_owned(),
            uid: "uid-of-web".to_owned(),
            resource_version: Some("7".to_owned()),
            is_deleted: false,
            is_allowed: false,
            is_paused: false,
            can_surge: Ok(()),
            replicas: 1,
            is_observed: true,
            existing: 1,
            updated: 1,
            available: 1,
            failure: None,
            record: record(&["gone", "other"]),
        }),
        autoscalers: Vec::new(),
        replicas_leaving: 1,
        successor_problem: None,
        was_restarted: false,
        maintenances: set(&["m", "other"]),
    }
}

impl Scene {
    fn decide(&self) -> Decision {
        decide(&Situation {
            pod: &self.pod,
            protection: self.protection,
            node: &self.node,
            replica_set: self.replica_set.as_ref(),
            deployment: self.deployment.as_ref(),
            autoscalers: &self.autoscalers,
            replicas_leaving: self.replicas_leaving,
            successor_problem: self.successor_problem,
            was_restarted: self.was_restarted,
            maintenances: &self.maintenances,
        })
    }

    fn deployment(&mut self) -> &mut DeploymentFacts {
        self.deployment.as_mut().unwrap()
    }

    /// So many replicas at rest, of which so many have to leave.
    fn replicas(&mut self, replicas: i32, leaving: usize) {
        let one = self.deployment();
        (one.replicas, one.existing, one.updated, one.available) = (replicas, replicas, replicas, replicas);
        self.replicas_leaving = leaving;
    }
}

struct Case {
    what: &'static str,
    decision: Decision,
}

/// What is decided after a change.
fn case(what: &'static str, change: impl FnOnce(&mut Scene)) -> Case {
    let mut scene = scene();
    change(&mut scene);
    let decision = scene.decide();
    Case { what, decision }
}

impl Case {
    /// Kind and reason, and what the message contains.
    #[track_caller]
    fn is(self, expected: &str) {
        let (decision, message) = match self.decision {
            Decision::Restart(record) => (format!("restart {}", record.to_annotation()), String::new()),
            Decision::Wait(why) => (format!("wait {}", why.reason.as_str()), why.message),
            Decision::NotOurs(why) => (format!("not ours {}", why.reason.as_str()), why.message),
        };
        let (expected, text) = expected.split_once(": ").unwrap_or((expected, ""));
        assert_eq!(decision, expected, "{}: {message}", self.what);
        assert!(message.contains(text), "{}: {message}", self.what);
    }
}

#[test]
fn a_protected_replica_of_a_deployment_that_allows_it_is_replaced_first() {
    case("the record keeps maintenances that exist", |_| {}).is("restart m,other");
    case("only the Deployment allows it", |scene| {
        scene.node.is_allowed = false;
        scene.deployment().is_allowed = true;
    })
    .is("restart m,other");
    case("all replicas have to leave", |scene| {
        scene.replicas(3, 3);
    })
    .is("restart m,other");
    case("an autoscaler at rest", |scene| {
        scene.autoscalers = vec![autoscaler(1)];
    })
    .is("restart m,other");
}

#[test]
fn what_no_rollout_can_replace_is_left_to_the_eviction_api() {
    case("no budget", |scene| scene.protection = Protection::None).is("not ours NotProtected: Eviction API");
    case("others are unhealthy", |scene| scene.protection = Protection::NoRoom).is("not ours NotProtected");
    case("nobody allows it", |scene| scene.node.is_allowed = false)
        .is("not ours NotAllowed: annotate it with headgate.dev/rollout: Allow, or set spec.evacuation.rollout");
    case("a StatefulSet", |scene| {
        scene.pod.owner = Some(owner("StatefulSet", "db"));
    })
    .is("not ours NoDeployment: StatefulSet db ends a pod before it starts the next one: add a replica");
    case("a kind that headgate does not know", |scene| {
        scene.pod.owner = Some(owner("CloneSet", "db"));
    })
    .is("not ours NoDeployment: headgate cannot have CloneSet db start a replacement first");
    case("no owner", |scene| scene.pod.owner = None).is("not ours NoDeployment: nothing replaces the pod");
    case("another kind of rollout", |scene| {
        let of = scene.replica_set.as_mut().unwrap().owner.as_mut().unwrap();
        "Rollout".clone_into(&mut of.kind);
        "argoproj.io/v1alpha1".clone_into(&mut of.api_version);
    })
    .is("not ours NoDeployment: headgate cannot have Rollout web start a replacement first");
    case("a ReplicaSet of its own", |scene| {
        scene.replica_set.as_mut().unwrap().owner = None;
    })
    .is("not ours NoDeployment: headgate cannot have ReplicaSet web-1 start");
    case("no surge", |scene| {
        scene.deployment().can_surge = Err("its maxSurge is 0".to_owned());
    })
    .is("not ours CannotSurge: Deployment web cannot start a replacement first: its maxSurge is 0");
    case("replicas elsewhere", |scene| {
        scene.replicas(3, 2);
    })
    .is("not ours ReplicasElsewhere: 2 of 3 replicas of Deployment web are on nodes under maintenance");
}

#[test]
fn nothing_is_restarted_while_something_else_is_in_progress() {
    let message = "wait InProgress: waits for the rollout of Deployment web: 1 of 1 replicas updated, 1 available; pod web-2-b: container c: ImagePullBackOff";
    case("a rollout", |scene| {
        scene.deployment().existing = 2;
        scene.successor_problem = Some("pod web-2-b: container c: ImagePullBackOff");
    })
    .is(message);
    case("a spec that its controller has not seen", |scene| {
        scene.deployment().is_observed = false;
    })
    .is("wait InProgress");
    case("a rollout that fails", |scene| {
        scene.deployment().available = 0;
        scene.deployment().failure = Some("timed out".to_owned());
    })
    .is("wait ProgressDeadlineExceeded: the rollout of Deployment web does not succeed: timed out");
    case("a pause", |scene| scene.deployment().is_paused = true)
        .is("wait Paused: kubectl rollout resume deployment/web");
    case("an autoscaler", |scene| {
        scene.autoscalers = vec![autoscaler(3)];
    })
    .is("wait Scaling: HorizontalPodAutoscaler web, which changes the replicas from 1 to 3");
    case("no cordon", |scene| {
        scene.node.is_cordoned = false;
        scene.replicas_leaving = 0;
    })
    .is("wait NotCordoned: the cordon of node one");
    case("the ReplicaSet is gone", |scene| scene.replica_set = None).is("wait Leaving: ReplicaSet web-1 is gone");
    case("another ReplicaSet of that name", |scene| {
        scene.replica_set.as_mut().unwrap().uid = "later".to_owned();
    })
    .is("wait Leaving");
    case("the Deployment is gone", |scene| scene.deployment = None).is("wait Leaving: Deployment web is gone");
    case("it is being deleted", |scene| scene.deployment().is_deleted = true).is("wait Leaving");
}

fn restarted(scene: &mut Scene) {
    scene.deployment().record = record(&["m"]);
}

fn is_restarting(scene: &mut Scene) {
    restarted(scene);
    scene.deployment().existing = 2;
}

#[test]
fn a_restart_is_followed_to_its_end_and_not_repeated() {
    case("it goes on, also where the budget has room for a moment", |scene| {
        is_restarting(scene);
        scene.protection = Protection::None;
    })
    .is("wait InProgress");
    let message = "wait ProgressDeadlineExceeded: does not succeed: pod web-2-b: container c: ImagePullBackOff; ProgressDeadlineExceeded: timed out";
    case("the successor does not start", |scene| {
        is_restarting(scene);
        scene.deployment().failure = Some("ProgressDeadlineExceeded: timed out".to_owned());
        scene.successor_problem = Some("pod web-2-b: container c: ImagePullBackOff");
    })
    .is(message);
    case("the same, and the budget counts the successor", |scene| {
        is_restarting(scene);
        scene.deployment().failure = Some("timed out".to_owned());
        scene.protection = Protection::NoRoom;
    })
    .is("wait ProgressDeadlineExceeded");
    case("the same, and the budget has room", |scene| {
        is_restarting(scene);
        scene.deployment().failure = Some("timed out".to_owned());
        scene.protection = Protection::None;
    })
    .is("not ours NotProtected");
    case("its successors are available", restarted).is("wait Leaving: waits until Deployment web ends the pod");
    case("the successor has to leave, too", |scene| {
        restarted(scene);
        scene.replica_set.as_mut().unwrap().record = record(&["m"]);
    })
    .is("not ours AlreadyRestarted: kubectl rollout restart deployment/web");
    case("somebody has undone it", |scene| scene.was_restarted = true)
        .is("not ours AlreadyRestarted: was already restarted for this maintenance");
}

#[test]
fn only_a_ready_pod_of_one_budget_that_needs_all_is_protected() {
    use Protection::{NeedsAll, NoRoom};
    let budget = |needs_all, disruptions_allowed| BudgetFacts {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        selector: PodSelector::label("app", "web"),
        disruptions_allowed,
        needs_all,
        ..BudgetFacts::default()
    };
    let of = |change: fn(&mut PodFacts)| {
        let mut pod = scene().pod;
        change(&mut pod);
        pod
    };
    let (ready, not_ready) = (scene().pod, of(|pod| pod.is_ready = false));
    let pending = of(|pod| (pod.is_ready, pod.is_pending) = (false, true));
    let bare = of(|pod| pod.owner = None);
    let (all, room) = (budget(true, 0), budget(true, 1));
    let (two, unhealthy) = (vec![all.clone(), all.clone()], budget(false, 0));
    let all = vec![all];
    for (what, pod, budgets, has_evacuator, expected) in [
        ("it needs all", &ready, all.clone(), true, NeedsAll),
        ("no budget", &ready, vec![], false, Protection::None),
        ("others are unhealthy", &ready, vec![unhealthy], false, NoRoom),
        ("it has room", &ready, vec![room], false, Protection::None),
        ("two budgets", &ready, two, false, Protection::None),
        ("not Ready", &not_ready, all.clone(), true, Protection::None),
        ("not started", &pending, all.clone(), true, Protection::None),
        ("no ReplicaSet", &bare, all.clone(), false, NeedsAll),
    ] {
        assert_eq!(evacuator(pod, &budgets, 0).is_some(), has_evacuator, "{what}");
        assert_eq!(protection(pod, &budgets), expected, "{what}");
    }
    assert_eq!(evacuator(&ready, &all, MAX_EVACUATORS), None);
}
