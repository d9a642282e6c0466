//! Maintenances that are about to start. The finalizer comes first. Where that write is late, a younger maintenance would drain the nodes
//! that they share ahead of them, and what a node has reached stays; and an older one that ends would give the nodes back for a moment. So
//! both wait for a while.

use std::collections::BTreeMap;

use headgate_core::node::Node;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::phase::{Maintenance, Phase};
use crate::api::Stage;
use crate::deadline;
use crate::snapshot::Snapshot;

/// How long after its creation a maintenance delays others. After that it delays none: its writes may fail again and again, or its stage may
/// have changed late.
const LIMIT: SignedDuration = SignedDuration::from_secs(30);

/// Until when others wait for a maintenance, if it is about to start.
pub(super) fn waited_for_until(one: &Maintenance<'_>, now: Timestamp) -> Option<Timestamp> {
    let is_about_to_start = one.phase == Phase::Starting && one.object.spec.stage != Stage::Complete;
    let created = one.age().0.filter(|_| is_about_to_start)?.0;
    (now.duration_since(created).abs() < LIMIT).then_some(created + LIMIT)
}

/// The nodes that maintenances are about to drain.
#[derive(Debug)]
pub(super) struct Starting<'a> {
    /// When the oldest one of a node was created, and its name.
    oldest: BTreeMap<&'a str, (Option<&'a Time>, &'a str)>,
    /// When the first one delays others no more.
    pub(super) until: Option<Timestamp>,
}

impl<'a> Starting<'a> {
    /// Leaves out nodes with a deadline: their pods have no time to wait.
    pub(super) fn new(
        maintenances: &'a [Maintenance<'a>],
        nodes: &BTreeMap<&str, &Node>,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Self {
        let has_deadline = |name: &str| {
            let node = nodes.get(name);
            node.is_some_and(|node| deadline::of_node(node, &snapshot.maintenances).is_some())
        };
        let mut starting = Self {
            oldest: BTreeMap::new(),
            until: None,
        };
        for one in maintenances {
            let until = waited_for_until(one, now);
            starting.until = starting.until.into_iter().chain(until).min();
            let is_about_to_drain = until.is_some() && one.object.spec.stage == Stage::Drain;
            let nodes = one.nodes.iter().filter(|node| is_about_to_drain && !has_deadline(node));
            for node in nodes {
                // Older ones come first.
                starting.oldest.entry(node).or_insert(one.age());
            }
        }
        starting
    }

    /// Whether a maintenance waits on a node for an older one.
    pub(super) fn delay(&self, maintenance: &Maintenance<'_>, node: &str) -> bool {
        self.oldest.get(node).is_some_and(|oldest| *oldest < maintenance.age())
    }
}
