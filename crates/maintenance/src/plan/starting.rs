//! Maintenances that are about to drain their nodes. The finalizer comes first; where that write is late, a younger maintenance would drain
//! the nodes that they share ahead of them, and what a node has reached stays. So the younger one waits for a while.

use std::collections::BTreeMap;

use headgate_core::node::Node;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::phase::{Maintenance, Phase};
use crate::api::Stage;
use crate::deadline;
use crate::snapshot::Snapshot;

/// How long after its creation a maintenance delays younger ones. After that it delays none: its writes may fail again and again, or its
/// stage may have become `Drain` late.
const LIMIT: SignedDuration = SignedDuration::from_secs(30);

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
        let about_to_drain = maintenances
            .iter()
            .filter(|one| one.phase == Phase::Starting && one.object.spec.stage == Stage::Drain);
        for one in about_to_drain {
            let Some(created) = one
                .age()
                .0
                .filter(|created| now.duration_since(created.0).abs() < LIMIT)
            else {
                continue;
            };
            starting.until = starting.until.into_iter().chain([created.0 + LIMIT]).min();
            for node in one.nodes.iter().filter(|node| !has_deadline(node)) {
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
