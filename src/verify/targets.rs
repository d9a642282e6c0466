//! Which entries a run writes: those of a Node, or one of each named pool. Pure.

use anyhow::{Context as _, bail};
use headgate_azure::{AdminState, LoadBalancerId};
use headgate_controller::pool::{EntryKey, LoadBalancerView, PoolEntry};

use super::session::Target;
use crate::failure::no_such_node;
use crate::status::StatusReport;

/// What the user named, found in Azure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) load_balancer: LoadBalancerId,
    /// The entry that most questions are asked with.
    pub(crate) first: Target,
    /// An entry of another pool, for a write during an operation.
    pub(crate) second: Option<Target>,
}

impl Named {
    fn new(load_balancer: LoadBalancerId, targets: Vec<Target>) -> Option<Self> {
        let mut targets = targets.into_iter();
        Some(Self {
            load_balancer,
            first: targets.next()?,
            second: targets.next(),
        })
    }

    /// All entries.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        [Some(&self.first), self.second.as_ref()].into_iter().flatten()
    }
}

/// The entries of a Node in two pools of one load balancer of the cluster.
pub(crate) fn of_node(report: &StatusReport, name: &str) -> anyhow::Result<Named> {
    let node = report.nodes.iter().find(|node| node.name == name);
    let node = node.ok_or_else(|| no_such_node(name))?;
    let found = report.load_balancers.iter().filter(|found| found.configured);
    let found = found.filter_map(|found| {
        let id = LoadBalancerId::parse(&found.id).ok()?;
        let is_used = |pool: &str| found.pools.iter().any(|row| row.name == pool);
        let entries = node.entries.iter();
        let entries = entries.filter(|entry| entry.load_balancer == found.name && is_used(&entry.pool));
        let targets = entries.filter_map(|entry| {
            Some(Target {
                pool: id.pool(&entry.pool).ok()?,
                entry: EntryKey::from_text(entry.entry.as_deref()?),
            })
        });
        let targets: Vec<_> = targets.take(2).collect();
        Some((targets.len(), Named::new(id, targets)?))
    });
    // Questions about a write during an operation need two pools.
    let best = found.max_by_key(|(targets, _)| *targets);
    let (_, named) = best.with_context(|| {
        format!("no pool of the cluster's load balancers with rules has an entry of the Node {name:?}")
    })?;
    Ok(named)
}

/// One entry of each of these pools: the first one in service.
pub(crate) fn of_pools(view: &LoadBalancerView, names: &[String]) -> anyhow::Result<Named> {
    let target = |name: &String| {
        let pool = view.pools.iter().find(|pool| pool.id.name().eq_ignore_ascii_case(name));
        let pool = pool.with_context(|| format!("the load balancer {:?} has no pool {name:?}", view.id.name()))?;
        let mut entries = pool.entries.iter().filter(|entry| entry.key.is_some());
        let is_in_service = |entry: &&PoolEntry| entry.admin_state == Some(AdminState::None);
        let entry = entries.clone().find(is_in_service).or_else(|| entries.next());
        let key = entry.and_then(|entry| entry.key.clone());
        Ok(Target {
            pool: pool.id.clone(),
            entry: key.with_context(|| format!("the pool {name:?} has no entry"))?,
        })
    };
    let targets: Vec<_> = names.iter().map(target).collect::<anyhow::Result<_>>()?;
    if targets.iter().skip(1).any(|target| target.pool == targets[0].pool) {
        bail!("the pool {:?} is named twice", targets[0].pool.name());
    }
    Named::new(view.id.clone(), targets).context("no pool is named")
}

/// Why entries of the cluster are not to be written: one is to be out, and would be given back; or no other entry of its pool serves.
pub(crate) fn refusal(report: &StatusReport, named: &Named) -> Option<String> {
    let found = report
        .load_balancers
        .iter()
        .find(|found| LoadBalancerId::parse(&found.id).is_ok_and(|id| id == named.load_balancer))?;
    named.targets().find_map(|target| {
        let pool = found.pools.iter().find(|pool| pool.name.eq_ignore_ascii_case(target.pool.name()))?;
        let entries = report.entries();
        let entries = entries.filter(|(_, entry)| entry.load_balancer == found.name && entry.pool == pool.name);
        let (own, others): (Vec<_>, Vec<_>) =
            entries.partition(|(_, entry)| entry.entry.as_deref() == Some(target.entry.as_str()));
        let signal = own.iter().find_map(|(node, _)| {
            let signal = node.signals.iter().find(|signal| signal.admin_state)?;
            Some((&node.name, &signal.name))
        });
        if let Some((node, signal)) = signal {
            return Some(format!(
                "the Node {node} has the signal {signal}, and its entry would be given back; name another Node"
            ));
        }
        let serves = others.iter().any(|(node, entry)| {
            entry.admin_state != Some("Down") && node.ready && node.signals.is_empty() && node.excluded.is_none()
        });
        (!serves).then(|| {
            format!(
                "the pool {} would have no entry in service of a Node that is Ready and without a signal while the entry {} is Down; name a load \
                 balancer that is not the cluster's",
                pool.name, target.entry
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::report::{EntryRow, LoadBalancerRow, NodeRow, PoolRow, SignalRow};

    const ID: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb";

    fn view() -> LoadBalancerView {
        let entry = |address: &str, state: &str| json!({"properties": {"ipAddress": address, "adminState": state}});
        let pool = |name: &str, entries| json!({"name": name, "properties": {"loadBalancerBackendAddresses": entries}});
        let pools = [
            pool("one", json!([entry("10.0.0.4", "Down"), entry("10.0.0.5", "None")])),
            pool("down", json!([entry("10.0.0.4", "Down")])),
            pool("empty", json!([])),
        ];
        let document = json!({"id": ID, "properties": {"backendAddressPools": pools}});
        LoadBalancerView::new(&document).unwrap()
    }

    #[test]
    fn the_first_entry_in_service_of_each_named_pool() {
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let selection = of_pools(&view(), &names)?;
            let targets = selection
                .targets()
                .map(|target| format!("{}/{}", target.pool.name(), target.entry));
            Ok::<_, anyhow::Error>(targets.collect::<Vec<_>>().join(" "))
        };
        let rows: [(&[&str], Result<&str, &str>); 5] = [
            (&["one"], Ok("one/10.0.0.5")),
            (&["ONE", "down"], Ok("one/10.0.0.5 down/10.0.0.4")),
            (&["one", "One"], Err("is named twice")),
            (&["other"], Err("has no pool \"other\"")),
            (&["empty"], Err("has no entry")),
        ];
        for (names, expected) in rows {
            match (named(names), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.to_string().contains(expected), "{found}"),
                (found, expected) => panic!("{names:?}: {found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn an_entry_is_refused_that_is_to_be_out_or_without_which_none_serves() {
        let signal = |admin_state| SignalRow {
            name: "drain".to_owned(),
            health: true,
            admin_state,
        };
        let entry = |address: &str, state| EntryRow {
            load_balancer: "lb".to_owned(),
            pool: "one".to_owned(),
            entry: Some(address.to_owned()),
            admin_state: Some(state),
            ..EntryRow::default()
        };
        let node = |name: &str, entry| NodeRow {
            name: name.to_owned(),
            ready: true,
            entries: vec![entry],
            ..NodeRow::default()
        };
        let (named, other) = (
            node("n1", entry("10.0.0.5", "None")),
            node("n2", entry("10.0.0.6", "None")),
        );
        let draining = NodeRow {
            signals: vec![signal(true)],
            ..node("n1", entry("10.0.0.5", "Down"))
        };
        let failing = |node: &NodeRow| NodeRow {
            signals: vec![signal(false)],
            ..node.clone()
        };
        let not_ready = NodeRow {
            ready: false,
            ..other.clone()
        };
        let excluded = NodeRow {
            excluded: Some("label".to_owned()),
            ..other.clone()
        };
        let down = node("n2", entry("10.0.0.6", "Down"));
        let in_two = EntryRow {
            pool: "two".to_owned(),
            ..entry("10.0.0.6", "None")
        };
        let none_serves = Some("no entry in service");
        for (what, nodes, expected) in [
            ("another serves", [&named, &other], None),
            ("a signal", [&draining, &other], Some("n1 has the signal drain")),
            ("a signal for probes only", [&failing(&named), &other], None),
            ("the other fails probes", [&named, &failing(&other)], none_serves),
            ("the other is not Ready", [&named, &not_ready], none_serves),
            ("the other is excluded", [&named, &excluded], none_serves),
            ("the other is Down", [&named, &down], none_serves),
            (
                "the other is in another pool",
                [&named, &node("n2", in_two)],
                none_serves,
            ),
        ] {
            let report = StatusReport {
                nodes: nodes.map(Clone::clone).to_vec(),
                load_balancers: vec![LoadBalancerRow {
                    name: "lb".to_owned(),
                    id: ID.to_owned(),
                    pools: vec![PoolRow {
                        name: "one".to_owned(),
                        entries: 2,
                        ..PoolRow::default()
                    }],
                    ..LoadBalancerRow::default()
                }],
                ..StatusReport::default()
            };
            let named = of_pools(&view(), &["one".to_owned()]).unwrap();
            let found = refusal(&report, &named);
            match expected {
                None => assert_eq!(found, None, "{what}"),
                Some(words) => assert!(
                    found.as_ref().is_some_and(|why| why.contains(words)),
                    "{what}: {found:?}"
                ),
            }
        }
    }
}
