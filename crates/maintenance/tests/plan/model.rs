//! Cursors, targets and messages of random drains, compared with those of a second implementation of the same rules.
//!
//! `model.json` has what that implementation, written in another language from the text of the KEP alone, gave for random
//! plans, nodes and pods left, but for "older" where that is not true. A message is null where it has no words: the maintenance that raised a
//! target is further on.

use std::collections::{BTreeMap, BTreeSet};

use headgate_maintenance::api::{DrainPlanEntry, PodType};
use headgate_maintenance::drain_plan::{DrainPlan, PodSelector};
use headgate_maintenance::plan::message::drain_message;
use headgate_maintenance::plan::progress::{Participant, Progress};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    maintenances: Vec<Maintenance>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Maintenance {
    name: String,
    nodes: BTreeSet<String>,
    plan: Vec<(PodType, i32, Option<String>)>,
    /// The step at which it is created.
    start: usize,
}

#[derive(Deserialize)]
struct Step {
    busy: BTreeSet<String>,
    cursors: BTreeMap<String, usize>,
    /// Type and priority of the entry that each node has reached, and whether that has a selector.
    targets: BTreeMap<String, (PodType, i32, bool)>,
    /// The nodes with pods left after the step.
    then_busy: BTreeSet<String>,
    /// By maintenance and node.
    messages: BTreeMap<String, Option<String>>,
}

fn participant(maintenance: &Maintenance, number: usize, cursor: usize) -> Participant {
    let plan: Vec<_> = maintenance
        .plan
        .iter()
        .map(|(pod_type, priority, label)| {
            let selector = label.as_ref().map(|label| PodSelector::label("app", label));
            DrainPlanEntry::new(*pod_type, *priority, selector)
        })
        .collect();
    Participant {
        name: maintenance.name.clone(),
        created: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(number).unwrap()),
        plan: DrainPlan::effective(&plan),
        cursor,
        nodes: maintenance.nodes.clone(),
    }
}

#[test]
fn random_drains_go_as_in_the_model() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("model.json")).unwrap();
    let mut steps = 0;
    for (number, case) in cases.iter().enumerate() {
        let mut progress = Progress::default();
        for (time, step) in case.steps.iter().enumerate() {
            let here = format!("case {number}, step {time}");
            let created = case
                .maintenances
                .iter()
                .enumerate()
                .filter(|(_, one)| one.start <= time);
            let participants = created.map(|(age, one)| {
                let cursor = progress.participant(&one.name).map_or(0, |one| one.cursor);
                participant(one, age, cursor)
            });
            let reached = progress
                .nodes()
                .map(|(node, targets)| (node.to_owned(), targets.clone()))
                .collect();
            progress = Progress::new(participants.collect(), reached);
            progress.step(&step.busy);
            for one in progress.participants() {
                assert_eq!(one.cursor, step.cursors[&one.name], "{here}: {}", one.name);
            }
            for (node, (pod_type, priority, has_selector)) in &step.targets {
                let position = progress.targets(node).unwrap().position();
                assert_eq!(position, Some((*pod_type, *priority, !has_selector)), "{here}: {node}");
            }
            for (place, expected) in &step.messages {
                let (name, node) = place.split_once(' ').unwrap();
                let message = drain_message(&progress, progress.participant(name).unwrap(), node, &step.then_busy);
                if let Some(expected) = expected {
                    assert_eq!(&message, expected, "{here}: {place}");
                }
            }
            steps += 1;
        }
    }
    assert!(steps >= 300, "{steps} steps");
}
