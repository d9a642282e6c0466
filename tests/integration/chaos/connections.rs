//! Connections through the pool of all nodes, of a load balancer that takes what ARM shows: none is refused while a backend is in
//! rotation, and none is cut but where the pool no longer has its node. Who takes a member out is checked by `writes`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::history::pools_of;

/// The nodes of a pool by name, those in rotation and those that are `Down`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backends {
    pub(crate) rotation: BTreeSet<String>,
    pub(crate) down: BTreeSet<String>,
}

impl Backends {
    /// Those of the pool with this name; members that belong to none of these nodes (by address) are left out.
    pub(crate) fn of(load_balancers: &[Value], pool: &str, nodes: &BTreeMap<String, String>) -> Self {
        let mut backends = Self::default();
        let pools = load_balancers.iter().filter_map(pools_of).flatten();
        for (_, members) in pools.filter(|(name, _)| name == pool) {
            for (address, is_down) in members {
                let Some(node) = nodes.get(&address) else { continue };
                let state = if is_down {
                    &mut backends.down
                } else {
                    &mut backends.rotation
                };
                state.insert(node.clone());
            }
        }
        backends
    }

    fn has(&self, node: &str) -> bool {
        self.rotation.contains(node) || self.down.contains(node)
    }
}

/// Backends, and when they may have been in force: from the begin of their change to the end of the next one.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    pub(crate) backends: Backends,
    pub(crate) from: Instant,
    pub(crate) until: Option<Instant>,
}

/// A connection that was held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) node: String,
    pub(crate) opened: Instant,
    pub(crate) ended: Instant,
    pub(crate) is_lost: bool,
}

/// What became of the connections of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Connections {
    pub(crate) opened: u64,
    /// Attempts without an answer, while no backend was in rotation.
    pub(crate) refused_without_backend: u64,
    pub(crate) held: u64,
    /// Of those held, the ones that ended in order although their node was `Down` meanwhile.
    pub(crate) outlived_down: u64,
    /// Of those held, the ones that were cut where the pool lost their node.
    pub(crate) cut_by_removal: u64,
}

/// Counts attempts (when each began, and whether it was answered within `timeout`) and held connections, and says what is wrong.
pub(crate) fn judge(
    in_force: &[InForce],
    attempts: &[(Instant, bool)],
    timeout: Duration,
    held: &[Held],
) -> (Connections, Vec<String>) {
    let (mut counts, mut violations) = (Connections::default(), Vec::new());
    let during = |from: Instant, until: Instant| {
        let overlaps = move |state: &&InForce| state.from <= until && state.until.is_none_or(|end| end >= from);
        in_force.iter().filter(overlaps).map(|state| &state.backends)
    };
    for &(at, is_answered) in attempts {
        if is_answered {
            counts.opened += 1;
        } else if during(at, at + timeout).any(|backends| backends.rotation.is_empty()) {
            counts.refused_without_backend += 1;
        } else {
            let states: Vec<_> = during(at, at + timeout).collect();
            violations.push(format!(
                "a connection got no answer in {timeout:?} from one of {states:?}"
            ));
        }
    }
    for connection in held {
        let states = || during(connection.opened, connection.ended);
        counts.held += 1;
        if !connection.is_lost {
            counts.outlived_down += u64::from(states().any(|backends| backends.down.contains(&connection.node)));
        } else if states().any(|backends| !backends.has(&connection.node)) {
            counts.cut_by_removal += 1;
        } else {
            let age = connection.ended.duration_since(connection.opened);
            violations.push(format!(
                "a connection through {} was cut after {age:?}, with the node in the pool: {:?}",
                connection.node,
                states().collect::<Vec<_>>()
            ));
        }
    }
    (counts, violations)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backends(rotation: &[&str], down: &[&str]) -> Backends {
        let names = |nodes: &[&str]| nodes.iter().map(|&node| node.to_owned()).collect();
        Backends {
            rotation: names(rotation),
            down: names(down),
        }
    }

    /// Both nodes until second 10, one `Down` until 20, the other one taken out until 30, then none in rotation.
    fn timeline(began: Instant) -> Vec<InForce> {
        let at = |second| began + Duration::from_secs(second);
        let state = |from, until: Option<u64>, backends| InForce {
            backends,
            from: at(from),
            until: until.map(at),
        };
        vec![
            state(0, Some(10), backends(&["a", "b"], &[])),
            state(10, Some(20), backends(&["a"], &["b"])),
            state(20, Some(30), backends(&["b"], &[])),
            state(30, None, backends(&[], &["b"])),
        ]
    }

    #[test]
    fn a_connection_is_refused_only_without_a_backend() {
        let began = Instant::now();
        let attempt = |second, is_answered| {
            let at = began + Duration::from_secs(second);
            let (counts, violations) = judge(&timeline(began), &[(at, is_answered)], Duration::from_secs(2), &[]);
            (counts.opened, counts.refused_without_backend, violations.len())
        };
        assert_eq!(attempt(5, true), (1, 0, 0));
        assert_eq!(attempt(5, false), (0, 0, 1));
        assert_eq!(attempt(27, false), (0, 0, 1), "it ends before");
        assert_eq!(attempt(29, false), (0, 1, 0));
        assert_eq!(attempt(40, false), (0, 1, 0));
    }

    #[test]
    fn a_connection_is_cut_only_where_its_node_leaves_the_pool() {
        let began = Instant::now();
        let hold = |node: &str, opened, ended, is_lost| {
            let held = Held {
                node: node.to_owned(),
                opened: began + Duration::from_secs(opened),
                ended: began + Duration::from_secs(ended),
                is_lost,
            };
            let (counts, violations) = judge(&timeline(began), &[], Duration::from_secs(2), &[held]);
            (counts.outlived_down, counts.cut_by_removal, violations.len())
        };
        assert_eq!(hold("b", 5, 8, false), (0, 0, 0));
        assert_eq!(hold("b", 5, 25, false), (1, 0, 0));
        assert_eq!(hold("b", 5, 25, true), (0, 0, 1), "Down cuts nothing");
        assert_eq!(hold("a", 5, 19, true), (0, 0, 1), "before it left");
        assert_eq!(hold("a", 5, 25, true), (0, 1, 0));
    }

    #[test]
    fn backends_are_the_members_of_known_nodes() {
        let member = |address: &str, state: &str| json!({"properties": {"ipAddress": address, "adminState": state}});
        let members = [
            member("10.0.0.1", "None"),
            member("10.0.0.2", "Down"),
            member("10.0.0.3", "None"),
        ];
        let load_balancer = json!({"properties": {"backendAddressPools": [
            {"name": "Web", "properties": {"loadBalancerBackendAddresses": members}},
            {"name": "other", "properties": {"loadBalancerBackendAddresses": [member("10.0.0.2", "None")]}}]}});
        let nodes = [("10.0.0.1", "a"), ("10.0.0.2", "b")].map(|(address, node)| (address.to_owned(), node.to_owned()));
        let found = Backends::of(&[load_balancer], "web", &BTreeMap::from(nodes));
        assert_eq!(found, backends(&["a"], &["b"]));
    }
}
