//! Connections through the pool of all nodes, of a load balancer that takes what ARM shows: none is refused while a backend is in
//! rotation, none is cut while the pool has its node, and no write of headgate's is what refuses or cuts one.
//!
//! Each PUT of headgate's leaves a node in rotation and each member in the pool: all signals of a run may be taken back, so the guard lets
//! none of them empty a pool, and cloud-controller-manager alone adds and removes members. A Node that headgate may not yet know to be
//! gone counts as left ([`UNSEEN`]). Only counted are connections that are refused because the last node's machine is gone, because
//! cloud-controller-manager removed it or wrote an old copy with its `Down`, or because ARM took a write back; and those that are cut
//! because their machine is gone or cloud-controller-manager removed it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::history::{Event, Members, What, pools_of};

/// For so long a leader may count on a Node that is gone: it stands still for 25 s, kube-apiserver for 22 s, and a plan is under way.
const UNSEEN: Duration = Duration::from_mins(1);

/// The addresses of a pool's nodes by name, of those in rotation and those that are `Down`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backends {
    pub(crate) rotation: BTreeMap<String, String>,
    pub(crate) down: BTreeMap<String, String>,
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
                state.insert(node.clone(), address);
            }
        }
        backends
    }

    fn address(&self, node: &str) -> Option<&str> {
        let address = self.rotation.get(node).or_else(|| self.down.get(node));
        address.map(String::as_str)
    }
}

/// Backends, and when they may have been in force: from the begin of their change to the end of the next one.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    pub(crate) backends: Backends,
    pub(crate) from: Instant,
    pub(crate) until: Option<Instant>,
}

/// An accepted PUT of the pool, or of its load balancer.
#[derive(Clone, Debug)]
pub(crate) struct PoolWrite {
    /// When it arrived, by both clocks.
    pub(crate) at: Timestamp,
    pub(crate) arrived: Instant,
    pub(crate) is_headgate: bool,
    /// `None` if the body does not say.
    pub(crate) members: Option<Members>,
}

/// The accepted PUTs of the pool with this name, in the order of this history. `now` is one time by both clocks, after all of them.
pub(crate) fn pool_writes(history: &[Event], pool: &str, now: (Instant, Timestamp)) -> Vec<PoolWrite> {
    let write = |event: &Event| {
        let What::Arm(request) = &event.what else { return None };
        let is_meant = request.change.is_some() && request.pool.as_ref().is_none_or(|name| name == pool);
        let age = now.1.duration_since(event.begin).unsigned_abs();
        is_meant.then_some(PoolWrite {
            at: event.begin,
            arrived: now.0.checked_sub(age)?,
            is_headgate: request.is_headgate,
            members: request.pools.as_ref().and_then(|pools| pools.get(pool).cloned()),
        })
    };
    history.iter().filter_map(write).collect()
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
    /// Of those held, the ones that were cut where their machine went, or another writer removed their node.
    pub(crate) cut_by_removal: u64,
}

/// Counts attempts (when each began, and whether it was answered within `timeout`) and held connections, and says what is wrong. Writes are
/// in order.
pub(crate) fn judge(
    in_force: &[InForce],
    writes: &[PoolWrite],
    attempts: &[(Instant, bool)],
    timeout: Duration,
    held: &[Held],
) -> (Connections, Vec<String>) {
    let mut counts = Connections::default();
    let mut violations: Vec<String> = writes_that_empty(in_force, writes).collect();
    for &(at, is_answered) in attempts {
        if is_answered {
            counts.opened += 1;
        } else if during(in_force, at, at + timeout).any(|state| state.backends.rotation.is_empty()) {
            counts.refused_without_backend += 1;
        } else {
            let states: Vec<_> = during(in_force, at, at + timeout).collect();
            violations.push(format!(
                "a connection got no answer in {timeout:?} from one of {states:?}"
            ));
        }
    }
    for connection in held {
        let node = connection.node.as_str();
        let states = || during(in_force, connection.opened, connection.ended);
        let mut without = states()
            .filter(|state| state.backends.address(node).is_none())
            .peekable();
        counts.held += 1;
        if !connection.is_lost {
            counts.outlived_down += u64::from(states().any(|state| state.backends.down.contains_key(node)));
        } else if without.peek().is_none() {
            let age = connection.ended.duration_since(connection.opened);
            violations.push(format!(
                "a connection through {node} was cut after {age:?}, with the node in the pool: {:?}",
                states().collect::<Vec<_>>()
            ));
        } else if let Some(write) = without.find_map(|state| removal_by_headgate(in_force, writes, node, state.from)) {
            violations.push(format!(
                "a connection through {node} was cut by headgate's PUT at {}: {:?}",
                write.at, write.members
            ));
        } else {
            counts.cut_by_removal += 1;
        }
    }
    (counts, violations)
}

fn during(in_force: &[InForce], from: Instant, until: Instant) -> impl Iterator<Item = &InForce> {
    let overlaps = move |state: &&InForce| state.from <= until && state.until.is_none_or(|end| end >= from);
    in_force.iter().filter(overlaps)
}

/// The PUTs of headgate's that leave no Node in rotation, but for members that are or were just now a Node's.
fn writes_that_empty(in_force: &[InForce], writes: &[PoolWrite]) -> impl Iterator<Item = String> {
    let is_known = |address: &String, at: Instant| {
        in_force.iter().any(|state| {
            let is_near = state.from <= at + UNSEEN && state.until.is_none_or(|end| end + UNSEEN >= at);
            let mut nodes = state.backends.rotation.values().chain(state.backends.down.values());
            is_near && nodes.any(|known| known == address)
        })
    };
    let empties = move |write: &&PoolWrite| {
        let is_down = |(address, is_down): (&String, &bool)| *is_down || !is_known(address, write.arrived);
        let is_observed = in_force.first().is_some_and(|first| first.from <= write.arrived);
        write.is_headgate
            && is_observed
            && write
                .members
                .as_ref()
                .is_some_and(|members| members.iter().all(is_down))
    };
    writes.iter().filter(empties).map(|write| {
        format!(
            "headgate's PUT at {} leaves no node in rotation: {:?}",
            write.at, write.members
        )
    })
}

/// The PUT that removed a node from the pool before this time, if it is headgate's.
fn removal_by_headgate<'a>(
    in_force: &[InForce],
    writes: &'a [PoolWrite],
    node: &str,
    before: Instant,
) -> Option<&'a PoolWrite> {
    let mut earlier = in_force.iter().rev().filter(|state| state.from < before);
    let address = earlier.find_map(|state| state.backends.address(node))?;
    let writes = &writes[..writes.partition_point(|write| write.arrived <= before)];
    let has = |write: &PoolWrite| {
        let members = write.members.as_ref();
        members.is_some_and(|members| members.contains_key(address))
    };
    let removal = writes.get(writes.iter().rposition(has)? + 1)?;
    Some(removal).filter(|write| write.is_headgate)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::made_up::{arm, at};
    use super::*;

    fn address_of(node: &str) -> &'static str {
        if node == "a" { "10.0.0.1" } else { "10.0.0.2" }
    }

    fn backends(rotation: &[&str], down: &[&str]) -> Backends {
        let names = |nodes: &[&str]| {
            let named = nodes.iter().map(|&node| (node.to_owned(), address_of(node).to_owned()));
            named.collect()
        };
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
            let (counts, violations) = judge(&timeline(began), &[], &[(at, is_answered)], Duration::from_secs(2), &[]);
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
            let (counts, violations) = judge(&timeline(began), &[], &[], Duration::from_secs(2), &[held]);
            (counts.outlived_down, counts.cut_by_removal, violations.len())
        };
        assert_eq!(hold("b", 5, 8, false), (0, 0, 0));
        assert_eq!(hold("b", 5, 25, false), (1, 0, 0));
        assert_eq!(hold("b", 5, 25, true), (0, 0, 1), "Down cuts nothing");
        assert_eq!(hold("a", 5, 19, true), (0, 0, 1), "before it left");
        assert_eq!(hold("a", 5, 25, true), (0, 1, 0));
    }

    /// What is wrong about PUTs of these writers at these seconds with these members, `!` before those that are `Down`; and about a
    /// connection through `a` that is cut at second 25.
    fn violations(in_force: impl Fn(Instant) -> Vec<InForce>, writes: &[(&str, i64, &[&str])]) -> (usize, usize) {
        let began = Instant::now();
        let events = writes.iter().map(|(writer, second, members)| {
            let put = arm(writer, *second, *second).with(members);
            put.puts("", Some(("before", "after")))
        });
        let writes = pool_writes(
            &events.collect::<Vec<_>>(),
            "pool",
            (began + Duration::from_secs(100), at(100)),
        );
        let held = Held {
            node: "a".to_owned(),
            opened: began + Duration::from_secs(5),
            ended: began + Duration::from_secs(25),
            is_lost: true,
        };
        let wrong = |held: &[Held]| judge(&in_force(began), &writes, &[], Duration::from_secs(2), held).1;
        let of_writes = wrong(&[]).len();
        (of_writes, wrong(&[held]).len() - of_writes)
    }

    #[test]
    fn no_write_of_headgates_empties_the_rotation() {
        let a = "10.0.0.1";
        let (a_down, b_down) = ("!10.0.0.1", "!10.0.0.2");
        for (writer, members, expected, what) in [
            ("node-1", [a, b_down], 0, "one is left"),
            ("node-1", [a_down, b_down], 1, "both in one PUT"),
            ("cloud", [a_down, b_down], 0, "an old copy of another writer"),
            ("node-1", ["10.0.0.7", b_down], 1, "what is left is no node"),
        ] {
            assert_eq!(violations(timeline, &[(writer, 30, &members)]).0, expected, "{what}");
        }
        // Node a has been gone since second 20.
        for (second, expected) in [(40, 0), (81, 1)] {
            assert_eq!(violations(timeline, &[("node-1", second, &[a, b_down])]).0, expected);
        }
    }

    #[test]
    fn no_write_of_headgates_cuts_a_connection() {
        let (a, b) = ("10.0.0.1", "10.0.0.2");
        let both: (&str, i64, &[&str]) = ("cloud", 1, &[a, b]);
        for (writes, expected, what) in [
            (vec![both], 0, "its machine is gone"),
            (vec![both, ("node-1", 19, &[b])], 1, "headgate removes it"),
            (
                vec![both, ("cloud", 19, &[b]), ("node-1", 20, &[b])],
                0,
                "another writer does",
            ),
            (vec![both, ("node-1", 10, &[a, b]), ("cloud", 22, &[b])], 0, "later"),
        ] {
            assert_eq!(violations(timeline, &writes), (0, expected), "{what}");
        }
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
