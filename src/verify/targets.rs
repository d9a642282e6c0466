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

/// Why a pool of the cluster is not to be written: the only entry in service would be out.
pub(crate) fn refusal(report: &StatusReport, named: &Named) -> Option<String> {
    let found = report
        .load_balancers
        .iter()
        .find(|found| LoadBalancerId::parse(&found.id).is_ok_and(|id| id == named.load_balancer))?;
    named.targets().find_map(|target| {
        let pool = found.pools.iter().find(|pool| pool.name.eq_ignore_ascii_case(target.pool.name()))?;
        (pool.entries < pool.down + 2).then(|| {
            format!(
                "the pool {} would have no entry in service while the entry {} is Down; name a load balancer that is not the cluster's",
                pool.name, target.entry
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
