//! Random lives of a Deployment under maintenances: its rollout is restarted once at most for each, and never while anything else is
//! in progress, whenever a leader ends and whatever it had seen.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::doc_markdown,
    reason = "a failed precondition fails the test"
)]

use std::collections::{BTreeMap, BTreeSet};

use headgate_maintenance::rollout::facts::{AutoscalerFacts, DeploymentFacts, ReplicaSetFacts};
use headgate_maintenance::rollout::record::Record;
use headgate_maintenance::rollout::{Decision, NodeFacts, Protection, Situation, decide};
use headgate_maintenance::snapshot::{Owner, PodFacts};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const NODES: usize = 3;
const MAINTENANCES: usize = 4;

#[derive(Clone, Debug)]
enum Happening {
    /// The evacuator looks at a pod. A leader that ends then writes no status.
    Looks {
        pod: usize,
        leader_ends: bool,
    },
    /// The Deployment controller begins, goes on, or gives up.
    Observes,
    GoesOn,
    GivesUp,
    /// Somebody else changes the Deployment.
    ChangedByOther,
    Scales(i32),
    Pauses(bool),
    AutoscalerWants(i32),
    /// A node is drained by a maintenance, or a maintenance ends.
    Drains {
        node: usize,
        maintenance: usize,
        allows: bool,
    },
    Ends(usize),
    BudgetSays(Protection),
}

fn happenings() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => (0..6_usize, any::<bool>()).prop_map(|(pod, leader_ends)| Happening::Looks { pod, leader_ends }),
        4 => Just(Happening::Observes),
        6 => Just(Happening::GoesOn),
        1 => Just(Happening::GivesUp),
        1 => Just(Happening::ChangedByOther),
        1 => (0..4_i32).prop_map(Happening::Scales),
        1 => any::<bool>().prop_map(Happening::Pauses),
        1 => (0..3_i32).prop_map(Happening::AutoscalerWants),
        4 => (0..NODES, 0..MAINTENANCES, any::<bool>())
            .prop_map(|(node, maintenance, allows)| Happening::Drains { node, maintenance, allows }),
        1 => (0..MAINTENANCES).prop_map(Happening::Ends),
        1 => select(vec![Protection::None, Protection::NoRoom, Protection::NeedsAll, Protection::NeedsAll])
            .prop_map(Happening::BudgetSays),
    ]
}

#[derive(Clone)]
struct Replica {
    revision: usize,
    node: usize,
    /// What its Evacuation says.
    was_restarted: bool,
}

struct Life {
    deployment: DeploymentFacts,
    /// The record of each revision's template; the last one is the present.
    revisions: Vec<Record>,
    pods: Vec<Replica>,
    nodes: Vec<NodeFacts>,
    /// The present UID of each maintenance: one that ended never comes back.
    generation: Vec<usize>,
    autoscaler: AutoscalerFacts,
    protection: Protection,
    restarts: BTreeMap<String, usize>,
    next_node: usize,
}

impl Life {
    fn new() -> Self {
        let deployment = DeploymentFacts {
            name: "web".to_owned(),
            uid: "d".to_owned(),
            resource_version: None,
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
            record: Record::default(),
        };
        Self {
            deployment,
            revisions: vec![Record::default()],
            pods: vec![Replica {
                revision: 0,
                node: 0,
                was_restarted: false,
            }],
            nodes: vec![NodeFacts::default(); NODES],
            generation: vec![0; MAINTENANCES],
            autoscaler: AutoscalerFacts {
                name: "web".to_owned(),
                current: 1,
                desired: 1,
            },
            protection: Protection::NeedsAll,
            restarts: BTreeMap::new(),
            next_node: 0,
        }
    }

    fn uid(&self, maintenance: usize) -> String {
        format!("{maintenance}-{}", self.generation[maintenance])
    }

    fn count(&mut self) {
        let last = self.revisions.len() - 1;
        let count = |pods: &mut dyn Iterator<Item = &Replica>| i32::try_from(pods.count()).unwrap();
        self.deployment.existing = count(&mut self.pods.iter());
        self.deployment.updated = count(&mut self.pods.iter().filter(|pod| pod.revision == last));
        self.deployment.available = self.deployment.existing;
    }

    fn new_revision(&mut self, record: Record) {
        self.deployment.record = record.clone();
        self.deployment.is_observed = false;
        self.revisions.push(record);
    }

    /// Starts one pod of the present revision, or ends one that is not wanted.
    fn go_on(&mut self) {
        let last = self.revisions.len() - 1;
        let wanted = usize::try_from(self.deployment.replicas).unwrap();
        let updated = self.pods.iter().filter(|pod| pod.revision == last).count();
        if self.deployment.is_paused && updated < wanted && self.pods.len() >= wanted {
            return;
        }
        if updated < wanted {
            self.next_node += 1;
            self.pods.push(Replica {
                revision: last,
                node: self.next_node % NODES,
                was_restarted: false,
            });
        } else if self.pods.len() > wanted {
            self.pods.sort_by_key(|pod| pod.revision);
            self.pods.remove(0);
        }
        self.deployment.failure = None;
    }

    fn look(&mut self, pod: usize, leader_ends: bool) {
        if self.pods.is_empty() {
            return;
        }
        let index = pod % self.pods.len();
        let pod = self.pods[index].clone();
        let node = self.nodes[pod.node].clone();
        if node.drained_by.is_empty() {
            return;
        }
        let owner = |kind: &str, uid: String| {
            Some(Owner {
                api_version: "apps/v1".to_owned(),
                kind: kind.to_owned(),
                name: uid.clone(),
                uid,
            })
        };
        let uid = format!("rs-{}", pod.revision);
        let facts = PodFacts {
            owner: owner("ReplicaSet", uid.clone()),
            is_ready: true,
            ..PodFacts::default()
        };
        let replica_set = ReplicaSetFacts {
            name: uid.clone(),
            uid,
            owner: owner("Deployment", "d".to_owned()),
            record: self.revisions[pod.revision].clone(),
        };
        let is_leaving = |one: &&Replica| one.revision == pod.revision && !self.nodes[one.node].drained_by.is_empty();
        let maintenances: BTreeSet<_> = (0..MAINTENANCES).map(|maintenance| self.uid(maintenance)).collect();
        let decision = decide(&Situation {
            pod: &facts,
            protection: self.protection,
            node: &node,
            replica_set: Some(&replica_set),
            deployment: Some(&self.deployment),
            autoscalers: std::slice::from_ref(&self.autoscaler),
            replicas_leaving: self.pods.iter().filter(is_leaving).count(),
            successor_problem: None,
            was_restarted: pod.was_restarted,
            maintenances: &maintenances,
        });
        match decision {
            Decision::Restart(record) => {
                assert!(!self.is_in_progress(), "restarted while something else is in progress");
                assert!(node.is_allowed && self.protection == Protection::NeedsAll);
                for uid in &node.drained_by {
                    *self.restarts.entry(uid.clone()).or_default() += 1;
                }
                let twice: Vec<_> = self.restarts.iter().filter(|(_, count)| **count > 1).collect();
                assert!(twice.is_empty(), "{twice:?}");
                assert!(record.has_any(&node.drained_by));
                self.new_revision(record);
            }
            Decision::Wait(why) | Decision::NotOurs(why) => {
                assert!(!why.message.is_empty());
                assert!(why.is_restarted || !pod.was_restarted, "what was restarted stays so");
                if !leader_ends {
                    self.pods[index].was_restarted = why.is_restarted;
                }
            }
        }
    }

    /// By the pods, where the decision reads the counters of the Deployment.
    fn is_in_progress(&self) -> bool {
        let last = self.revisions.len() - 1;
        let wanted = usize::try_from(self.deployment.replicas).unwrap();
        let is_rolling = self.pods.iter().any(|pod| pod.revision != last) || self.pods.len() != wanted;
        is_rolling || !self.deployment.is_observed || self.deployment.is_paused || {
            let AutoscalerFacts { current, desired, .. } = self.autoscaler;
            desired > 0 && desired != current
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match *happening {
            Happening::Looks { pod, leader_ends } => self.look(pod, leader_ends),
            Happening::Observes => self.deployment.is_observed = true,
            Happening::GoesOn if self.deployment.is_observed => self.go_on(),
            Happening::GoesOn => {}
            Happening::GivesUp => self.deployment.failure = Some("timed out".to_owned()),
            Happening::ChangedByOther => self.new_revision(self.deployment.record.clone()),
            Happening::Scales(replicas) => {
                self.deployment.replicas = replicas;
                self.deployment.is_observed = false;
            }
            Happening::Pauses(is_paused) => self.deployment.is_paused = is_paused,
            Happening::AutoscalerWants(desired) => self.autoscaler.desired = desired,
            Happening::Drains {
                node,
                maintenance,
                allows,
            } => {
                let uid = self.uid(maintenance);
                let node = &mut self.nodes[node];
                node.drained_by.insert(uid);
                node.is_allowed |= allows;
                node.is_cordoned = true;
            }
            Happening::Ends(maintenance) => {
                let uid = self.uid(maintenance);
                self.generation[maintenance] += 1;
                for node in &mut self.nodes {
                    node.drained_by.remove(&uid);
                    if node.drained_by.is_empty() {
                        *node = NodeFacts::default();
                    }
                }
            }
            Happening::BudgetSays(protection) => self.protection = protection,
        }
        if self.deployment.is_observed {
            self.count();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_rollout_is_restarted_once_for_a_maintenance_and_never_during_another(happenings in vec(happenings(), 1..80)) {
        let mut life = Life::new();
        for happening in &happenings {
            life.happen(happening);
        }
    }

    /// With nothing else going on, a drain of the node ends with the pod elsewhere.
    #[test]
    fn a_single_replica_leaves_once_its_successor_is_available(leader_ends in vec(any::<bool>(), 8)) {
        let mut life = Life::new();
        life.happen(&Happening::Drains { node: 0, maintenance: 0, allows: true });
        for leader_ends in leader_ends {
            life.happen(&Happening::Looks { pod: 0, leader_ends });
            life.happen(&Happening::Observes);
            life.happen(&Happening::GoesOn);
            assert!(!life.pods.is_empty(), "there is a replica at any time");
        }
        prop_assert!(life.pods.iter().all(|pod| pod.node != 0));
    }
}
