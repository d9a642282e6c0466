//! Random maintenances on random nodes, with pods that come and go in random order.

use std::collections::BTreeMap;

use headgate_maintenance::api::{DrainPlanEntry, NodeMaintenance, PodType, Stage};
use headgate_maintenance::drain_plan::{DrainTargets, PodSelector};
use headgate_maintenance::snapshot::PodFacts;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::world::World;

const NODES: [&str; 4] = ["one", "two", "three", "four"];
const PRIORITIES: [i32; 5] = [-1, 10, 20, 1_000_000_000, i32::MAX];

#[derive(Clone, Debug)]
pub(super) struct Pod {
    node: usize,
    priority: i32,
    pod_type: PodType,
    label: Option<&'static str>,
    tolerates: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A pod with an Evacuation leaves.
    Leaves(usize),
    /// A pod is bound to a node.
    Comes(Pod),
    /// A maintenance is created.
    Maintains {
        nodes: Vec<usize>,
        plan: Vec<DrainPlanEntry>,
        stage: Stage,
    },
    /// A maintenance is completed.
    Completes(usize),
    /// A maintenance is deleted.
    Deletes(usize),
}

pub(super) fn pods() -> impl Strategy<Value = Pod> {
    let pod_type = select(vec![
        PodType::Default,
        PodType::Default,
        PodType::DaemonSet,
        PodType::Static,
    ]);
    (
        0..NODES.len(),
        select(&PRIORITIES),
        pod_type,
        option::of(select(vec!["a", "b"])),
        any::<bool>(),
    )
        .prop_map(|(node, priority, pod_type, label, tolerates)| Pod {
            node,
            priority,
            pod_type,
            label,
            tolerates,
        })
}

fn entries() -> impl Strategy<Value = DrainPlanEntry> {
    let pod_type = select(vec![PodType::Default, PodType::DaemonSet, PodType::Static]);
    (select(&PRIORITIES), pod_type, option::of(select(vec!["a", "b"]))).prop_map(|(pod_priority, pod_type, label)| {
        let selector = label.map(|label| PodSelector::label("app", label));
        DrainPlanEntry::new(pod_type, pod_priority, selector)
    })
}

pub(super) fn happenings() -> impl Strategy<Value = Happening> {
    let stage = select(vec![
        Stage::Idle,
        Stage::Cordon,
        Stage::Drain,
        Stage::Drain,
        Stage::Drain,
        Stage::Complete,
    ]);
    prop_oneof![
        6 => any::<prop::sample::Index>().prop_map(|index| Happening::Leaves(index.index(1000))),
        2 => pods().prop_map(Happening::Comes),
        2 => (vec(0..NODES.len(), 1..4), vec(entries(), 0..4), stage)
            .prop_map(|(nodes, plan, stage)| Happening::Maintains { nodes, plan, stage }),
        1 => (0..10_usize).prop_map(Happening::Completes),
        1 => (0..10_usize).prop_map(Happening::Deletes),
    ]
}

pub(super) fn begin(first: &[Pod]) -> World {
    let mut world = World::default().nodes(&NODES);
    for pod in first {
        come(&mut world, pod);
    }
    world
}

fn come(world: &mut World, pod: &Pod) {
    *world = std::mem::take(world).pods(NODES[pod.node], 1, pod.pod_type, pod.priority);
    let made = world.snapshot.pods.last_mut().unwrap();
    made.tolerates_maintenance = pod.tolerates;
    made.labels
        .extend(pod.label.map(|label| ("app".to_owned(), label.to_owned())));
}

pub(super) fn happen(world: &mut World, happening: &Happening, number: usize) {
    match happening {
        Happening::Leaves(index) => {
            if let Some(name) = leaving(world, *index) {
                world.remove_pods(|pod| pod.name == name);
            }
        }
        Happening::Comes(pod) => come(world, pod),
        Happening::Maintains { nodes, plan, stage } => {
            let nodes: Vec<_> = nodes.iter().map(|node| NODES[*node]).collect();
            world.maintain(&format!("m{number}"), *stage, &nodes, plan);
        }
        Happening::Completes(index) => {
            if let Some(name) = name_of(world, *index) {
                world.set_stage(&name, Stage::Complete);
            }
        }
        Happening::Deletes(index) => {
            if let Some(name) = name_of(world, *index) {
                world.delete(&name);
            }
        }
    }
}

/// An evacuated pod.
fn leaving(world: &World, index: usize) -> Option<String> {
    let evacuated = world.evacuated_pods();
    let index = index.checked_rem(evacuated.len())?;
    evacuated.into_iter().nth(index)
}

fn name_of(world: &World, index: usize) -> Option<String> {
    let maintenances = &world.snapshot.maintenances;
    let index = index.checked_rem(maintenances.len())?;
    maintenances[index].metadata.name.clone()
}

/// The maintenances whose status says that everything is undone.
fn completed(world: &World) -> Vec<NodeMaintenance> {
    let mut maintenances = world.snapshot.maintenances.clone();
    maintenances
        .retain(|one| world.condition(one.metadata.name.as_deref().unwrap(), "Progressing") == ("False", "Completed"));
    maintenances
}

/// The targets of each node, from the statuses.
fn targets(world: &World) -> BTreeMap<String, DrainTargets> {
    let statuses = world.snapshot.maintenances.iter().filter_map(|one| one.status.as_ref());
    let nodes = statuses.flat_map(|status| status.node_statuses.iter().map(|node| (node, status.targets_of(node))));
    nodes
        .filter(|(_, targets)| !targets.is_empty())
        .map(|(node, targets)| (node.node_ref.name.clone(), targets.iter().collect()))
        .collect()
}

fn is_being_drained(world: &World, node: &str) -> bool {
    targets(world).contains_key(node)
}

proptest! {
    #[test]
    fn targets_never_go_back_and_no_other_pod_is_evacuated(first in vec(pods(), 0..12), then in vec(happenings(), 1..16)) {
        let mut world = begin(&first);
        for (number, happening) in then.iter().enumerate() {
            let before = targets(&world);
            happen(&mut world, happening, number);
            world.settle();
            let after = targets(&world);
            for (node, old) in &before {
                if let Some(new) = after.get(node) {
                    let mut joined = old.clone();
                    joined.join(new);
                    prop_assert_eq!(&joined, new, "{} after {:?}", node, happening);
                }
            }
            for name in world.evacuated_pods() {
                let pod = world.snapshot.pods.iter().find(|pod| pod.name == name).unwrap();
                prop_assert!(after.get(&pod.node).is_some_and(|targets| pod.is_targeted(targets)), "{:?}", pod);
            }
            for pod in world.snapshot.pods.iter().filter(|pod| is_being_drained(&world, &pod.node)) {
                if pod.is_targeted(&after[&pod.node]) {
                    prop_assert!(world.evacuated_pods().contains(&pod.name), "{:?} has no Evacuation", pod);
                }
            }
        }
    }

    #[test]
    fn what_is_completed_stays_completed(first in vec(pods(), 0..10), then in vec(happenings(), 1..16)) {
        let mut world = begin(&first);
        for (number, happening) in then.iter().enumerate() {
            let completed = completed(&world);
            happen(&mut world, happening, number);
            world.settle_with(|world| {
                for before in &completed {
                    let now = world.find(before.metadata.name.as_deref().unwrap());
                    assert!(now.is_none_or(|now| now == before), "{happening:?}: {now:?} was {before:?}");
                }
            });
        }
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(first in vec(pods(), 0..10), then in vec(happenings(), 1..10), seed in any::<u64>()) {
        let mut world = begin(&first);
        for (number, happening) in then.iter().enumerate() {
            happen(&mut world, happening, number);
            let expected = world.plan();
            let mut other = world.clone();
            shuffle(&mut other.snapshot.pods, seed);
            shuffle(&mut other.snapshot.nodes, seed);
            shuffle(&mut other.snapshot.evacuations, seed);
            shuffle(&mut other.snapshot.maintenances, seed);
            prop_assert_eq!(other.plan(), expected);
            world.settle();
        }
    }

    #[test]
    fn a_new_leader_continues_and_changes_nothing(first in vec(pods(), 0..10), then in vec(happenings(), 1..10)) {
        let mut world = begin(&first);
        for (number, happening) in then.iter().enumerate() {
            happen(&mut world, happening, number);
            world.settle();
            // All that it has are the objects, as the API server gives them.
            let mut next = world.clone();
            next.now += jiff::SignedDuration::from_secs(60);
            next.snapshot.maintenances = serde_json::from_value(serde_json::to_value(&world.snapshot.maintenances).unwrap()).unwrap();
            prop_assert_eq!(next.plan().actions, Vec::new());
        }
    }

    #[test]
    fn a_leader_that_dies_after_any_action_is_continued(first in vec(pods(), 0..8), then in vec(happenings(), 1..8), at in vec(0..6_usize, 12)) {
        let mut interrupted = begin(&first);
        let mut whole = begin(&first);
        let mut at = at.iter().cycle();
        for (number, happening) in then.iter().enumerate() {
            // The same pod leaves both.
            let left = match happening {
                Happening::Leaves(index) => Some(leaving(&interrupted, *index)),
                _ => None,
            };
            for world in [&mut interrupted, &mut whole] {
                match &left {
                    Some(left) => {
                        world.remove_pods(|pod| Some(&pod.name) == left.as_ref());
                    }
                    None => happen(world, happening, number),
                }
            }
            for _ in 0..3 {
                let actions = interrupted.plan().actions;
                for action in actions.into_iter().take(*at.next().unwrap()) {
                    interrupted.apply(action);
                }
            }
            interrupted.settle();
            whole.settle();
            prop_assert_eq!(&interrupted.snapshot.nodes, &whole.snapshot.nodes);
            // Where it died between the writes of one step, others may wait for the pods of the first: it is behind, never ahead.
            for (node, reached) in targets(&interrupted) {
                let ahead = targets(&whole).remove(&node);
                let joined = ahead.clone().map(|mut joined| { joined.join(&reached); joined });
                prop_assert_eq!(joined, ahead, "{}", node);
            }
            let expected = whole.evacuated_pods();
            prop_assert!(interrupted.evacuated_pods().iter().all(|pod| expected.contains(pod)));
        }
        // And it comes to the same end.
        for world in [&mut interrupted, &mut whole] {
            while !world.evacuated_pods().is_empty() {
                let evacuated = world.evacuated_pods();
                world.remove_pods(|pod| evacuated.contains(&pod.name)).settle();
            }
        }
        prop_assert_eq!(targets(&interrupted), targets(&whole));
        prop_assert_eq!(&interrupted.snapshot.nodes, &whole.snapshot.nodes);
        prop_assert_eq!(&interrupted.snapshot.pods, &whole.snapshot.pods);
    }

    #[test]
    fn every_maintenance_ends_if_its_pods_leave(first in vec(pods(), 0..12), then in vec(happenings(), 1..12), complete_first in any::<bool>()) {
        let mut world = begin(&first);
        for (number, happening) in then.iter().enumerate() {
            happen(&mut world, happening, number);
            world.settle();
        }
        let draining = |world: &World| {
            let nodes = targets(world);
            world.snapshot.pods.iter().filter(|pod| nodes.contains_key(&pod.node) && pod.has_to_leave()).count()
        };
        while draining(&world) > 0 {
            let evacuated = world.evacuated_pods();
            prop_assert!(!evacuated.is_empty(), "{} pods are left, and none leaves: {:#?}", draining(&world), world.snapshot);
            world.remove_pods(|pod: &PodFacts| evacuated.contains(&pod.name));
            world.settle();
        }
        let maintenances: Vec<_> = world.snapshot.maintenances.iter().map(|one| (one.metadata.name.clone().unwrap(), one.spec.stage)).collect();
        for (name, stage) in &maintenances {
            if *stage == Stage::Drain {
                prop_assert_eq!(world.condition(name, "Drained").0, "True", "{}", name);
            }
            // The KEP removes the finalizer once the stage is completed, with a deletion or without.
            if complete_first {
                world.set_stage(name, Stage::Complete);
            } else {
                world.delete(name);
            }
        }
        world.settle();
        for (name, _) in maintenances.iter().filter(|_| complete_first) {
            prop_assert!(world.maintenance(name).metadata.finalizers.iter().flatten().next().is_none(), "{}", name);
            world.delete(name);
        }
        prop_assert!(world.snapshot.maintenances.is_empty());
        for node in &world.snapshot.nodes {
            prop_assert!(!node.unschedulable && node.was_unschedulable.is_none() && node.maintenance_taint.is_none(), "{:?}", node);
            prop_assert!(node.conditions.is_empty(), "{:?}", node);
        }
        prop_assert!(world.evacuated_pods().is_empty());
    }
}

/// Some other order, from a number.
fn shuffle<T>(list: &mut [T], mut seed: u64) {
    for index in (1..list.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from((seed >> 33) % (u64::try_from(index).unwrap() + 1)).unwrap();
        list.swap(index, other);
    }
}
