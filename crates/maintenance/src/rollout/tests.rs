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
}

/// Kind and reason of the decision after a change, and its message.
fn decided(change: impl FnOnce(&mut Scene)) -> (String, String) {
    let mut scene = scene();
    change(&mut scene);
    match scene.decide() {
        Decision::Restart(record) => (format!("restart {}", record.to_annotation()), String::new()),
        Decision::Wait(why) => (format!("wait {}", why.reason.as_str()), why.message),
        Decision::NotOurs(why) => (format!("not ours {}", why.reason.as_str()), why.message),
    }
}

type Case = (&'static str, fn(&mut Scene), &'static str, &'static str);

fn check(cases: &[Case]) {
    for (what, change, expected, text) in cases {
        let (decision, message) = decided(change);
        assert_eq!(decision, *expected, "{what}: {message}");
        assert!(message.contains(text), "{what}: {message}");
    }
}

#[test]
fn a_protected_replica_of_a_deployment_that_allows_it_is_replaced_first() {
    check(&[
        (
            "the record keeps maintenances that exist",
            |_| {},
            "restart m,other",
            "",
        ),
        (
            "only the Deployment allows it",
            |scene| {
                scene.node.is_allowed = false;
                scene.deployment().is_allowed = true;
            },
            "restart m,other",
            "",
        ),
        (
            "all replicas have to leave",
            |scene| {
                let one = scene.deployment();
                (one.replicas, one.existing, one.updated, one.available) = (3, 3, 3, 3);
                scene.replicas_leaving = 3;
            },
            "restart m,other",
            "",
        ),
        (
            "an autoscaler at rest",
            |scene| {
                scene.autoscalers = vec![AutoscalerFacts {
                    name: "web".to_owned(),
                    current: 1,
                    desired: 1,
                }];
            },
            "restart m,other",
            "",
        ),
    ]);
}

#[test]
fn what_no_rollout_can_replace_is_left_to_the_eviction_api() {
    check(&[
        (
            "no budget",
            |scene| scene.protection = Protection::None,
            "not ours NotProtected",
            "Eviction API",
        ),
        (
            "others are unhealthy",
            |scene| scene.protection = Protection::NoRoom,
            "not ours NotProtected",
            "",
        ),
        (
            "nobody allows it",
            |scene| scene.node.is_allowed = false,
            "not ours NotAllowed",
            "annotate it with headgate.dev/rollout: Allow, or set spec.evacuation.rollout",
        ),
        (
            "a StatefulSet",
            |scene| scene.pod.owner = Some(owner("StatefulSet", "db")),
            "not ours NoDeployment",
            "StatefulSet db ends a pod before it starts the next one: add a replica",
        ),
        (
            "a kind that headgate does not know",
            |scene| scene.pod.owner = Some(owner("CloneSet", "db")),
            "not ours NoDeployment",
            "headgate cannot have CloneSet db start a replacement first",
        ),
        (
            "no owner",
            |scene| scene.pod.owner = None,
            "not ours NoDeployment",
            "nothing replaces the pod",
        ),
        (
            "another kind of rollout",
            |scene| {
                let of = scene.replica_set.as_mut().unwrap().owner.as_mut().unwrap();
                "Rollout".clone_into(&mut of.kind);
                "argoproj.io/v1alpha1".clone_into(&mut of.api_version);
            },
            "not ours NoDeployment",
            "headgate cannot have Rollout web start a replacement first",
        ),
        (
            "a ReplicaSet of its own",
            |scene| scene.replica_set.as_mut().unwrap().owner = None,
            "not ours NoDeployment",
            "headgate cannot have ReplicaSet web-1 start",
        ),
        (
            "no surge",
            |scene| scene.deployment().can_surge = Err("its maxSurge is 0".to_owned()),
            "not ours CannotSurge",
            "Deployment web cannot start a replacement first: its maxSurge is 0",
        ),
        (
            "replicas elsewhere",
            |scene| {
                let one = scene.deployment();
                (one.replicas, one.existing, one.updated, one.available) = (3, 3, 3, 3);
                scene.replicas_leaving = 2;
            },
            "not ours ReplicasElsewhere",
            "2 of 3 replicas of Deployment web are on nodes under maintenance",
        ),
    ]);
}

#[test]
fn nothing_is_restarted_while_something_else_is_in_progress() {
    check(&[
        (
            "a rollout",
            |scene| {
                scene.deployment().existing = 2;
                scene.successor_problem = Some("pod web-2-b: container c: ImagePullBackOff");
            },
            "wait InProgress",
            "waits for the rollout of Deployment web: 1 of 1 replicas updated, 1 available; pod web-2-b: container c: ImagePullBackOff",
        ),
        (
            "a spec that its controller has not seen",
            |scene| scene.deployment().is_observed = false,
            "wait InProgress",
            "",
        ),
        (
            "a rollout that fails",
            |scene| {
                scene.deployment().available = 0;
                scene.deployment().failure = Some("timed out".to_owned());
            },
            "wait ProgressDeadlineExceeded",
            "the rollout of Deployment web does not succeed: timed out",
        ),
        (
            "a pause",
            |scene| scene.deployment().is_paused = true,
            "wait Paused",
            "kubectl rollout resume deployment/web",
        ),
        (
            "an autoscaler",
            |scene| {
                scene.autoscalers = vec![AutoscalerFacts {
                    name: "h".to_owned(),
                    current: 1,
                    desired: 3,
                }];
            },
            "wait Scaling",
            "HorizontalPodAutoscaler h, which changes the replicas from 1 to 3",
        ),
        (
            "no cordon",
            |scene| {
                scene.node.is_cordoned = false;
                scene.replicas_leaving = 0;
            },
            "wait NotCordoned",
            "the cordon of node one",
        ),
        (
            "the ReplicaSet is gone",
            |scene| scene.replica_set = None,
            "wait Leaving",
            "ReplicaSet web-1 is gone",
        ),
        (
            "another ReplicaSet of that name",
            |scene| scene.replica_set.as_mut().unwrap().uid = "later".to_owned(),
            "wait Leaving",
            "",
        ),
        (
            "the Deployment is gone",
            |scene| scene.deployment = None,
            "wait Leaving",
            "Deployment web is gone",
        ),
        (
            "it is being deleted",
            |scene| scene.deployment().is_deleted = true,
            "wait Leaving",
            "",
        ),
    ]);
}

fn restarted(scene: &mut Scene) {
    scene.deployment().record = record(&["m"]);
}

#[test]
fn a_restart_is_followed_to_its_end_and_not_repeated() {
    check(&[
        (
            "it goes on, also where the budget has room for a moment",
            |scene| {
                restarted(scene);
                scene.deployment().existing = 2;
                scene.protection = Protection::None;
            },
            "wait InProgress",
            "",
        ),
        (
            "the successor does not start",
            |scene| {
                restarted(scene);
                scene.deployment().existing = 2;
                scene.deployment().failure = Some("ProgressDeadlineExceeded: timed out".to_owned());
                scene.successor_problem = Some("pod web-2-b: container c: ImagePullBackOff");
            },
            "wait ProgressDeadlineExceeded",
            "does not succeed: pod web-2-b: container c: ImagePullBackOff; ProgressDeadlineExceeded: timed out",
        ),
        (
            "the same, and the budget counts the successor",
            |scene| {
                restarted(scene);
                scene.deployment().existing = 2;
                scene.deployment().failure = Some("timed out".to_owned());
                scene.protection = Protection::NoRoom;
            },
            "wait ProgressDeadlineExceeded",
            "",
        ),
        (
            "the same, and the budget has room",
            |scene| {
                restarted(scene);
                scene.deployment().existing = 2;
                scene.deployment().failure = Some("timed out".to_owned());
                scene.protection = Protection::None;
            },
            "not ours NotProtected",
            "",
        ),
        (
            "its successors are available",
            restarted,
            "wait Leaving",
            "waits until Deployment web ends the pod",
        ),
        (
            "the successor has to leave, too",
            |scene| {
                restarted(scene);
                scene.replica_set.as_mut().unwrap().record = record(&["m"]);
            },
            "not ours AlreadyRestarted",
            "kubectl rollout restart deployment/web",
        ),
        (
            "somebody has undone it",
            |scene| scene.was_restarted = true,
            "not ours AlreadyRestarted",
            "was already restarted for this maintenance",
        ),
    ]);
}

#[test]
fn only_a_ready_pod_of_one_budget_that_needs_all_is_protected() {
    let budget = |needs_all, disruptions_allowed| BudgetFacts {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        selector: PodSelector::label("app", "web"),
        disruptions_allowed,
        needs_all,
    };
    let of = |change: fn(&mut PodFacts)| {
        let mut pod = scene().pod;
        change(&mut pod);
        pod
    };
    let all = || budget(true, 0);
    for (what, pod, budgets, has_evacuator, expected) in [
        ("it needs all", scene().pod, vec![all()], true, Protection::NeedsAll),
        ("no budget", scene().pod, vec![], false, Protection::None),
        (
            "others are unhealthy",
            scene().pod,
            vec![budget(false, 0)],
            false,
            Protection::NoRoom,
        ),
        (
            "it has room",
            scene().pod,
            vec![budget(true, 1)],
            false,
            Protection::None,
        ),
        ("two budgets", scene().pod, vec![all(), all()], false, Protection::None),
        (
            "not Ready",
            of(|pod| pod.is_ready = false),
            vec![all()],
            true,
            Protection::None,
        ),
        (
            "no ReplicaSet",
            of(|pod| pod.owner = None),
            vec![all()],
            false,
            Protection::NeedsAll,
        ),
    ] {
        assert_eq!(evacuator(&pod, &budgets, 0).is_some(), has_evacuator, "{what}");
        assert_eq!(protection(&pod, &budgets), expected, "{what}");
    }
    assert_eq!(evacuator(&scene().pod, &[all()], MAX_EVACUATORS), None);
}
