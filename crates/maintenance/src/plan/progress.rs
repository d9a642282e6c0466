//! How far maintenances and nodes are: the resolution of drain plans that intersect (DT-02 to DT-05).
//!
//! Each maintenance has a cursor, the index of one entry of its plan. A node has targets. The targets of a node follow the
//! lowest cursor among its maintenances and never go back. A maintenance takes its next entry when
//!
//! 1. it has nodes, and none of them has a pod left at the node's targets,
//! 2. none of its nodes is held below its cursor, and
//! 3. both hold for every intersecting maintenance that is not further on.
//!
//! All moves of a step are computed before any is made, so the order of maintenances does not matter. The maintenance with the
//! lowest cursor is never held by (2), so some maintenance can always move once pods are gone.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::drain_plan::{DrainPlan, DrainTargets, Position};

/// A maintenance in the `Drain` stage.
#[derive(Clone, Debug)]
pub struct Participant {
    /// The `metadata.name` of the NodeMaintenance.
    pub name: String,
    /// When it was created. The older of two is named first.
    pub created: Timestamp,
    /// The effective drain plan: entries of the spec and the default entries of KEP-4212.
    pub plan: DrainPlan,
    /// The entry that it has reached.
    pub cursor: usize,
    /// Names of the nodes that it drains.
    pub nodes: BTreeSet<String>,
}

impl Participant {
    /// Where its cursor stands among the entries of all plans.
    pub fn position(&self) -> Position {
        self.plan.position(self.cursor)
    }

    /// When it was created, and its name: the order of maintenances by age.
    pub(super) fn age(&self) -> (Timestamp, &str) {
        (self.created, &self.name)
    }

    fn intersects(&self, other: &Self) -> bool {
        !self.nodes.is_disjoint(&other.nodes)
    }
}

/// The cursors of all maintenances in the `Drain` stage and the targets of their nodes.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    participants: Vec<Participant>,
    targets: BTreeMap<String, DrainTargets>,
}

impl Progress {
    /// Continues from the targets that the nodes had. A maintenance that is new on a node is fast-forwarded there.
    pub fn new(mut participants: Vec<Participant>, reached: BTreeMap<String, DrainTargets>) -> Self {
        participants.sort_by(|a, b| a.age().cmp(&b.age()));
        let nodes: BTreeSet<_> = participants.iter().flat_map(|one| &one.nodes).collect();
        let targets = reached.into_iter().filter(|(node, _)| nodes.contains(node)).collect();
        let mut progress = Self { participants, targets };
        progress.raise_targets();
        progress
    }

    /// The maintenances, older ones first.
    pub fn participants(&self) -> &[Participant] {
        &self.participants
    }

    /// A maintenance by name.
    pub fn participant(&self, name: &str) -> Option<&Participant> {
        self.participants.iter().find(|one| one.name == name)
    }

    /// The targets of a node, or `None` where no maintenance drains it.
    pub fn targets(&self, node: &str) -> Option<&DrainTargets> {
        self.targets.get(node)
    }

    /// Every node that is drained, with its targets.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &DrainTargets)> {
        self.targets.iter().map(|(node, targets)| (node.as_str(), targets))
    }

    /// The maintenances of a node, older ones first.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Participant> {
        self.participants.iter().filter(move |one| one.nodes.contains(node))
    }

    /// Takes steps until none is possible. `is_busy` says whether a node has a pod left at given targets.
    /// Gives the nodes that are busy then.
    pub fn settle(&mut self, is_busy: impl Fn(&str, &DrainTargets) -> bool) -> BTreeSet<String> {
        // Ends: each step moves a cursor, and none moves beyond its plan.
        loop {
            let busy: BTreeSet<String> = self
                .targets
                .iter()
                .filter(|(node, targets)| is_busy(node, targets))
                .map(|(node, _)| node.clone())
                .collect();
            if !self.step(&busy) {
                return busy;
            }
        }
    }

    /// Moves every cursor that may move, by one entry, and raises the targets. Gives whether any moved.
    pub fn step(&mut self, busy: &BTreeSet<String>) -> bool {
        let moving: Vec<usize> = (0..self.participants.len())
            .filter(|index| self.may_move(*index, busy))
            .collect();
        for index in &moving {
            self.participants[*index].cursor += 1;
        }
        self.raise_targets();
        !moving.is_empty()
    }

    fn may_move(&self, index: usize, busy: &BTreeSet<String>) -> bool {
        let own = &self.participants[index];
        let is_done = |one: &Participant| one.nodes.is_disjoint(busy) && !self.is_held(one);
        let others = self
            .participants
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        own.cursor < own.plan.last()
            && !own.nodes.is_empty()
            && is_done(own)
            && others
                .filter(|(_, other)| other.position() <= own.position() && other.intersects(own))
                .all(|(_, other)| is_done(other))
    }

    /// Whether another maintenance keeps a node of this one below its cursor.
    fn is_held(&self, one: &Participant) -> bool {
        let mut nodes = one.nodes.iter();
        nodes.any(|node| self.targets.get(node).and_then(DrainTargets::position) < Some(one.position()))
    }

    /// The targets of each node become those of its lowest cursor, unless they are higher already.
    fn raise_targets(&mut self) {
        let mut lowest: BTreeMap<&str, Position> = BTreeMap::new();
        for one in &self.participants {
            let position = one.position();
            for node in &one.nodes {
                let lowest = lowest.entry(node).or_insert(position);
                *lowest = position.min(*lowest);
            }
        }
        for one in &self.participants {
            let position = one.position();
            let mut own = None;
            for node in &one.nodes {
                if lowest.get(node.as_str()) != Some(&position) {
                    continue;
                }
                let targets = self.targets.entry(node.clone()).or_default();
                // Cursors at the same position may have different selectors: all of them are targets.
                if targets.position() <= Some(position) {
                    targets.join(own.get_or_insert_with(|| one.plan.targets(one.cursor)));
                }
            }
        }
    }
}
