//! A cluster as a value, and the API server's side of each action.

use std::collections::BTreeSet;
use std::sync::Arc;

use headgate_core::clock::whole_seconds;
use headgate_core::node::{
    AzureNotice, Condition as NodeCondition, DRAINING_TAINT, Node, NodeTraffic, RecordedNotice, Taint,
    UPGRADE_STATUS_LABEL,
};
use headgate_maintenance::api::names::{COMPLETION_FINALIZER, INSTIGATOR_FINALIZER};
use headgate_maintenance::api::{
    CancellationPolicy, DrainPlanEntry, Evacuation, EvacuationStatus, NodeMaintenance, NodeMaintenanceNodeStatus,
    NodeMaintenanceSpec, NodeMaintenanceStatus, PodType, Stage,
};
use headgate_maintenance::plan::action::{Action, Change, EvacuationChange, Event, EventReason};
use headgate_maintenance::plan::{Plan, plan};
use headgate_maintenance::snapshot::{PodFacts, Snapshot};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde_json::json;

/// What a node in no load balancer has.
pub(super) const OUT: NodeTraffic = NodeTraffic::Out { since: None };

/// More plans than any story here takes until nothing is left to do.
const MOST_ROUNDS: usize = 50;

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) snapshot: Snapshot,
    pub(super) now: Timestamp,
    pub(super) events: Vec<Event>,
    made: u32,
}

impl Default for World {
    fn default() -> Self {
        Self {
            snapshot: Snapshot::default(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            events: Vec::new(),
            made: 0,
        }
    }
}

pub(super) fn entry(pod_type: PodType, priority: i32) -> DrainPlanEntry {
    DrainPlanEntry::new(pod_type, priority, None)
}

/// Whether an action adds the finalizer to this maintenance.
pub(super) fn adds_finalizer(to: &str) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::AddFinalizer { maintenance } if maintenance == to)
}

pub(super) fn in_service() -> NodeTraffic {
    NodeTraffic::InService {
        detail: "pool web still sends traffic".to_owned(),
    }
}

fn is_named(name: &str, one: &NodeMaintenance) -> bool {
    one.metadata.name.as_deref() == Some(name)
}

/// A node that is expected to be gone in 30 s.
pub(super) fn announce_eviction(world: &mut World, node: &str) {
    let at = world.after(30);
    announce(world.node(node), AzureNotice::Preempt, Some(at));
}

pub(super) fn announce(node: &mut Node, event_type: AzureNotice, not_before: Option<Timestamp>) {
    node.taints.push(Taint::new(DRAINING_TAINT, "NoSchedule"));
    node.notice = Some(RecordedNotice {
        event_type,
        not_before,
        is_tainted: true,
    });
}

impl World {
    /// Nodes in no load balancer.
    pub(super) fn nodes(mut self, names: &[&str]) -> Self {
        for name in names {
            self.snapshot.nodes.push(Arc::new(Node {
                name: (*name).to_owned(),
                ready: true,
                ..Node::default()
            }));
            self.observe(name, OUT);
        }
        self
    }

    pub(super) fn observe(&mut self, node: &str, observation: NodeTraffic) -> &mut Self {
        self.snapshot.load_balancers.insert(node.to_owned(), observation);
        self
    }

    pub(super) fn after(&self, seconds: i64) -> Timestamp {
        self.now + SignedDuration::from_secs(seconds)
    }

    /// Lets so many seconds pass, and settles.
    pub(super) fn pass(&mut self, seconds: i64) {
        self.now = self.after(seconds);
        self.settle();
    }

    /// Pods of a node with a priority.
    pub(super) fn pods(mut self, node: &str, count: usize, pod_type: PodType, priority: i32) -> Self {
        for _ in 0..count {
            self.made += 1;
            self.snapshot.pods.push(PodFacts {
                namespace: "shop".to_owned(),
                name: format!("pod-{:04}", self.made),
                uid: format!("uid-{:04}", self.made),
                node: node.to_owned(),
                priority,
                pod_type,
                ..PodFacts::default()
            });
        }
        self
    }

    /// A maintenance of nodes by name, created now, a second after the one before.
    pub(super) fn maintain(&mut self, name: &str, stage: Stage, nodes: &[&str], plan: &[DrainPlanEntry]) -> &mut Self {
        self.now += SignedDuration::from_secs(1);
        let terms: Vec<_> = nodes
            .iter()
            .map(|node| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}))
            .collect();
        let spec: NodeMaintenanceSpec = serde_json::from_value(json!({
            "nodeSelector": {"nodeSelectorTerms": terms}, "stage": stage, "drainPlan": plan,
        }))
        .unwrap();
        let mut object = NodeMaintenance::new(name, spec);
        object.metadata.uid = Some(format!("uid-of-{name}"));
        object.metadata.creation_timestamp = Some(Time(self.now));
        self.snapshot.maintenances.push(object);
        self
    }

    pub(super) fn maintenance(&self, name: &str) -> &NodeMaintenance {
        self.find(name).unwrap_or_else(|| panic!("{name} is gone"))
    }

    pub(super) fn find(&self, name: &str) -> Option<&NodeMaintenance> {
        self.snapshot.maintenances.iter().find(|one| is_named(name, one))
    }

    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut NodeMaintenance)) -> &mut Self {
        let mut maintenances = self.snapshot.maintenances.iter_mut();
        change(maintenances.find(|one| is_named(name, one)).unwrap());
        self
    }

    pub(super) fn set_stage(&mut self, name: &str, stage: Stage) -> &mut Self {
        self.change(name, |one| one.spec.stage = stage)
    }

    /// Gives a maintenance so many seconds from now on.
    pub(super) fn set_deadline(&mut self, name: &str, seconds: i64) -> &mut Self {
        let deadline = self.after(seconds);
        self.change(name, |one| one.spec.deadline = Some(Time(deadline)))
    }

    /// Makes the nodes of these names the only ones that a maintenance selects.
    pub(super) fn select(&mut self, name: &str, nodes: &[&str]) -> &mut Self {
        self.change(name, |one| {
            let terms = &mut one.spec.node_selector.node_selector_terms;
            let names = nodes.iter().map(|node| (*node).to_owned()).collect();
            terms[0].match_fields.as_mut().unwrap()[0].values = Some(names);
        })
    }

    pub(super) fn delete(&mut self, name: &str) -> &mut Self {
        let now = self.now;
        self.change(name, |one| one.metadata.deletion_timestamp = Some(Time(now)));
        self.collect();
        self
    }

    /// The machine of a node goes, and with it its Node.
    pub(super) fn remove_node(&mut self, name: &str) -> &mut Self {
        self.snapshot.nodes.retain(|node| node.name != name);
        self
    }

    pub(super) fn maintenance_status(&self, name: &str) -> &NodeMaintenanceStatus {
        self.maintenance(name).status.as_ref().unwrap()
    }

    pub(super) fn status(&self, name: &str, node: &str) -> &NodeMaintenanceNodeStatus {
        let mut statuses = self.maintenance_status(name).node_statuses.iter();
        statuses.find(|status| status.node_ref.name == node).unwrap()
    }

    pub(super) fn message(&self, name: &str, node: &str) -> &str {
        &self.status(name, node).drain_message
    }

    /// Status and reason.
    pub(super) fn condition(&self, name: &str, kind: &str) -> (&str, &str) {
        let condition = self.whole_condition(name, kind);
        (&condition.status, &condition.reason)
    }

    pub(super) fn whole_condition(&self, name: &str, kind: &str) -> &Condition {
        let mut conditions = self.maintenance_status(name).conditions.iter();
        conditions.find(|condition| condition.type_ == kind).unwrap()
    }

    pub(super) fn is_drained(&self, name: &str) -> bool {
        self.condition(name, "Drained").0 == "True"
    }

    /// The Events of a reason so far.
    pub(super) fn recorded(&self, reason: EventReason) -> Vec<&Event> {
        self.events.iter().filter(|event| event.reason == reason).collect()
    }

    pub(super) fn node(&mut self, name: &str) -> &mut Node {
        let mut nodes = self.snapshot.nodes.iter_mut();
        Arc::make_mut(nodes.find(|node| node.name == name).unwrap())
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.snapshot, self.now)
    }

    /// Plans and carries out until nothing is left to do.
    pub(super) fn settle(&mut self) {
        self.settle_with(|_| {});
    }

    /// The same, and looks at the world after each action.
    pub(super) fn settle_with(&mut self, look: impl Fn(&Self)) {
        self.carry_out(|_| false, look);
    }

    /// The same, while the API server refuses some writes.
    pub(super) fn settle_refusing(&mut self, is_refused: impl Fn(&Action) -> bool) {
        self.carry_out(is_refused, |_| {});
    }

    fn carry_out(&mut self, is_refused: impl Fn(&Action) -> bool, look: impl Fn(&Self)) {
        for _ in 0..MOST_ROUNDS {
            let mut actions = self.plan().actions;
            actions.retain(|action| !is_refused(action));
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.apply(action);
                look(self);
            }
        }
        panic!("still to do: {:#?}", self.plan().actions);
    }

    /// So many pods with an Evacuation leave a node, and their Evacuations with them.
    pub(super) fn leave(&mut self, node: &str, count: usize) -> &mut Self {
        let evacuations = self.snapshot.evacuations.iter();
        let evacuating: BTreeSet<_> = evacuations.map(|one| one.spec.pod_ref.uid.as_str()).collect();
        let of_node = self.snapshot.pods.iter().filter(|pod| pod.node == node);
        let of_node = of_node.filter(|pod| evacuating.contains(pod.uid.as_str()));
        let leaving: BTreeSet<_> = of_node.take(count).map(|pod| pod.uid.clone()).collect();
        assert_eq!(leaving.len(), count, "pods with an Evacuation on {node}");
        self.remove_pods(|pod| leaving.contains(&pod.uid))
    }

    pub(super) fn remove_pods(&mut self, is_gone: impl Fn(&PodFacts) -> bool) -> &mut Self {
        self.snapshot.pods.retain(|pod| !is_gone(pod));
        let left: BTreeSet<_> = self.snapshot.pods.iter().map(|pod| pod.uid.as_str()).collect();
        let evacuations = &mut self.snapshot.evacuations;
        evacuations.retain(|one| left.contains(one.spec.pod_ref.uid.as_str()));
        self
    }

    /// The pods with an Evacuation of headgate's, by name.
    pub(super) fn evacuated_pods(&self) -> Vec<String> {
        let evacuations = self.snapshot.evacuations.iter();
        let ours = evacuations.filter(|one| finalizers(one).any(|finalizer| finalizer == INSTIGATOR_FINALIZER));
        let mut pods: Vec<_> = ours.map(|one| one.spec.pod_ref.name.clone()).collect();
        pods.sort_unstable();
        pods
    }

    pub(super) fn apply(&mut self, action: Action) {
        match action {
            Action::CreateMaintenance { maintenance, .. } => {
                let mut object = *maintenance;
                self.made += 1;
                object.metadata.uid = Some(format!("uid-of-{:04}", self.made));
                object.metadata.creation_timestamp = Some(Time(self.now));
                let mut others = self.snapshot.maintenances.iter();
                assert!(others.all(|one| one.metadata.name != object.metadata.name), "it exists");
                self.snapshot.maintenances.push(object);
            }
            Action::SetDeadline { maintenance, deadline } => {
                self.change(&maintenance, |one| {
                    one.spec.deadline = Some(Time(whole_seconds(deadline)));
                });
            }
            Action::DeleteMaintenance { maintenance } => {
                self.delete(&maintenance);
            }
            Action::AddFinalizer { maintenance } => {
                self.change(&maintenance, |one| {
                    assert!(
                        one.metadata.deletion_timestamp.is_none(),
                        "a deleted object takes no finalizer"
                    );
                    let finalizers = one.metadata.finalizers.get_or_insert_default();
                    finalizers.push(COMPLETION_FINALIZER.to_owned());
                });
            }
            Action::RemoveFinalizer { maintenance } => {
                self.change(&maintenance, |one| {
                    let finalizers = one.metadata.finalizers.as_mut().unwrap();
                    finalizers.retain(|finalizer| finalizer != COMPLETION_FINALIZER);
                });
            }
            Action::SetStageComplete { maintenance } => {
                self.set_stage(&maintenance, Stage::Complete);
            }
            Action::UpdateStatus { maintenance, status } => {
                // As it is read back from the API server.
                let status = serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap();
                self.change(&maintenance, |one| one.status = Some(status));
            }
            Action::UpdateNode { node, change } => {
                let facts = self.node(&node);
                facts.unschedulable = change.unschedulable.unwrap_or(facts.unschedulable);
                facts.is_kept_from_scale_down = change.keep_from_scale_down.unwrap_or(facts.is_kept_from_scale_down);
                write(&mut facts.was_unschedulable, change.remembered);
                write(&mut facts.maintenance_taint, change.taint);
            }
            Action::ReleaseMachine(machine) => {
                let mut machines = self.snapshot.machines.iter_mut().flatten();
                machines.find(|deleted| **deleted == machine).unwrap().is_held = false;
            }
            Action::SetUpgradePaused { node, is_paused } => {
                let node = self.node(&node);
                node.is_upgrade_paused = is_paused;
                if is_paused {
                    node.labels.insert(UPGRADE_STATUS_LABEL.to_owned(), "paused".to_owned());
                } else {
                    node.labels.remove(UPGRADE_STATUS_LABEL);
                }
            }
            Action::UpdateNodeConditions { node, set, remove } => {
                let conditions = &mut self.node(&node).conditions;
                conditions.retain(|kind, _| !remove.contains(kind) && !set.iter().any(|one| one.kind == kind));
                let set = set.into_iter().map(|one| {
                    let condition = NodeCondition {
                        status: "True".to_owned(),
                        reason: one.reason.to_owned(),
                        message: one.message,
                    };
                    (one.kind.to_owned(), condition)
                });
                conditions.extend(set);
            }
            Action::ChangeEvacuation { change, evacuation } => self.change_evacuation(change, *evacuation),
            Action::RecordEvent(event) => self.events.push(event),
        }
        self.collect();
    }

    fn change_evacuation(&mut self, change: EvacuationChange, mut evacuation: Evacuation) {
        let (now, all) = (self.now, &mut self.snapshot.evacuations);
        if change == EvacuationChange::Create {
            evacuation.metadata.uid = Some(format!("of-{}", evacuation.spec.pod_ref.uid));
            let mut others = all.iter();
            assert!(
                others.all(|one| one.metadata.name != evacuation.metadata.name),
                "it exists"
            );
            return all.push(evacuation);
        }
        let mut all = all.iter_mut();
        let object = all.find(|one| one.metadata.uid == evacuation.metadata.uid).unwrap();
        match change {
            EvacuationChange::AddInstigator => {
                let finalizers = object.metadata.finalizers.get_or_insert_default();
                finalizers.push(INSTIGATOR_FINALIZER.to_owned());
            }
            EvacuationChange::Delete => {
                object.metadata.deletion_timestamp = Some(Time(now));
                remove_instigator(object);
            }
            _ => remove_instigator(object),
        }
    }

    /// What an evacuator writes.
    pub(super) fn set_evacuation_status(&mut self, pod: &str, policy: CancellationPolicy) {
        let mut evacuations = self.snapshot.evacuations.iter_mut();
        let evacuation = evacuations.find(|one| one.spec.pod_ref.name == pod).unwrap();
        evacuation.status = Some(EvacuationStatus {
            evacuation_cancellation_policy: policy,
            ..EvacuationStatus::default()
        });
    }

    /// Objects that are being deleted go with their last finalizer, and so do Evacuations.
    fn collect(&mut self) {
        let is_left = |metadata: &ObjectMeta| {
            metadata.deletion_timestamp.is_none() || metadata.finalizers.iter().flatten().count() > 0
        };
        self.snapshot.maintenances.retain(|one| is_left(&one.metadata));
        self.snapshot.evacuations.retain(|one| is_left(&one.metadata));
    }
}

fn write<T>(value: &mut Option<T>, change: Option<Change<T>>) {
    match change {
        Some(Change::Set(to)) => *value = Some(to),
        Some(Change::Remove) => *value = None,
        None => {}
    }
}

fn finalizers(evacuation: &Evacuation) -> impl Iterator<Item = &String> {
    evacuation.metadata.finalizers.iter().flatten()
}

fn remove_instigator(evacuation: &mut Evacuation) {
    let finalizers = evacuation.metadata.finalizers.as_mut().unwrap();
    assert!(finalizers.iter().any(|finalizer| finalizer == INSTIGATOR_FINALIZER));
    finalizers.retain(|finalizer| finalizer != INSTIGATOR_FINALIZER);
}
