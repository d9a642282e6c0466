//! From what was seen to the report. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headgate_azure::{AdminState, PoolId};
use headgate_controller::admin_state::{EntryStatus, Ledger, LedgerEntry, Plan, PlanInputs, plan, signal_keys};
use headgate_controller::pool::{ClusterNode, EntryKey, InterfaceCache, LoadBalancerView, NodeMatcher, PoolView};

use super::{
    EntryRow, LedgerRow, LoadBalancerRow, NodeRow, Owner, PoolRow, ProbeRow, ProbeTarget, RuleRow, Selection,
    SignalRow, StatusReport, VerdictRow,
};
use crate::status::snapshot::{AzureSnapshot, ClusterSnapshot};

impl StatusReport {
    /// What there is to say about what was seen, with all Nodes. `admin_state_keys` are the taints that admin states
    /// follow.
    #[must_use]
    pub fn from_snapshot(sight: &ClusterSnapshot, admin_state_keys: &[String]) -> Self {
        let empty = Ledger::default();
        let book = sight.ledger.as_ref().unwrap_or(&empty);
        let mut making = Making {
            sight,
            book,
            entries: HashMap::new(),
            seen: BTreeSet::new(),
            unmatched: Vec::new(),
        };
        let load_balancers = match &sight.azure {
            Ok(azure) => making.load_balancers(azure),
            Err(_) => Vec::new(),
        };
        making.lines_not_seen();
        let Making {
            mut entries, unmatched, ..
        } = making;
        let nodes = sight.desired.nodes.iter().map(|node| {
            let entries = entries.remove(node.name.as_str()).unwrap_or_default();
            row(sight, node, entries, admin_state_keys)
        });
        let nodes: Vec<_> = nodes.collect();
        let rules = || {
            load_balancers
                .iter()
                .flat_map(|found| &found.pools)
                .flat_map(|pool| &pool.rules)
        };
        let (leader, leader_error) = match &sight.leader {
            Ok(leader) => (leader.clone(), None),
            Err(why) => (None, Some(why.clone())),
        };
        Self {
            taken_at: sight.now.wall,
            leader,
            leader_error,
            mode: sight.policy.mode.as_str(),
            foreign_down: sight.policy.foreign_down.as_str(),
            azure_error: sight.azure.as_ref().err().cloned(),
            ledger_error: sight.ledger.as_ref().err().cloned(),
            health_port: sight.health_port,
            probed_by_headgate: sight
                .azure
                .is_ok()
                .then(|| rules().any(|rule| rule.target == ProbeTarget::Headgate)),
            nodes_total: nodes.len(),
            selection: Selection::All,
            nodes,
            load_balancers,
            unmatched_ledger: unmatched,
        }
    }

    /// Keeps these Nodes only; the first that is not there is the error.
    ///
    /// # Errors
    /// With the name of a Node that there is not.
    pub fn keep_named(&mut self, names: &[String]) -> Result<(), String> {
        let there: BTreeSet<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        if let Some(missing) = names.iter().find(|name| !there.contains(name.as_str())) {
            return Err(missing.clone());
        }
        self.nodes.retain(|node| names.contains(&node.name));
        self.selection = Selection::Named;
        Ok(())
    }

    /// Keeps those Nodes only that there is something to say about.
    pub fn keep_notable(&mut self) {
        self.nodes.retain(NodeRow::is_notable);
        self.selection = Selection::Notable;
    }

    /// The entries that are Down by headgate, with their Nodes.
    pub fn down_by_headgate(&self) -> impl Iterator<Item = (&NodeRow, &EntryRow)> {
        let entries = self
            .nodes
            .iter()
            .flat_map(|node| node.entries.iter().map(move |entry| (node, entry)));
        entries.filter(|(_, entry)| entry.admin_state == Some("Down") && entry.owner == Some(Owner::Headgate))
    }
}

impl NodeRow {
    fn is_notable(&self) -> bool {
        let notable = |entry: &EntryRow| {
            entry.pending || entry.stage.is_some() || entry.admin_state.is_some_and(|state| state != "None")
        };
        !self.signals.is_empty() || self.entries.iter().any(notable)
    }
}

/// A Node's row, its agent not asked yet.
fn row(sight: &ClusterSnapshot, node: &ClusterNode, mut entries: Vec<EntryRow>, keys: &[String]) -> NodeRow {
    entries.sort_by(|one, other| {
        (&one.load_balancer, &one.pool, &one.entry).cmp(&(&other.load_balancer, &other.pool, &other.entry))
    });
    let mut found: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for signal in sight.health.get(&node.name).into_iter().flatten() {
        found.entry(signal.to_string()).or_default().0 = true;
    }
    for key in signal_keys(node, keys) {
        found.entry(key).or_default().1 = true;
    }
    let implied = if sight.health.contains_key(&node.name) {
        503
    } else {
        200
    };
    NodeRow {
        name: node.name.clone(),
        address: node.addresses.first().copied(),
        ready: node.ready,
        excluded: node.excluded,
        signals: found
            .into_iter()
            .map(|(name, (health, admin_state))| SignalRow {
                name,
                health,
                admin_state,
            })
            .collect(),
        verdict: VerdictRow {
            healthz: Some(implied),
            answered: false,
            since: None,
            why: None,
        },
        entries,
    }
}

struct Making<'a> {
    sight: &'a ClusterSnapshot,
    book: &'a Ledger,
    /// By the Node's name.
    entries: HashMap<String, Vec<EntryRow>>,
    /// Pool, in lower case, and entry.
    seen: BTreeSet<(String, String)>,
    unmatched: Vec<LedgerRow>,
}

impl Making<'_> {
    fn load_balancers(&mut self, azure: &AzureSnapshot) -> Vec<LoadBalancerRow> {
        let views = azure.listing.load_balancers.values();
        views.map(|view| self.load_balancer(view, &azure.interfaces)).collect()
    }

    fn load_balancer(&mut self, view: &LoadBalancerView, interfaces: &InterfaceCache) -> LoadBalancerRow {
        let ClusterSnapshot {
            desired, policy, now, ..
        } = self.sight;
        let plan = plan(
            view,
            &PlanInputs {
                interfaces,
                targets: desired,
                ledger: self.book,
                policy: *policy,
                now: now.mono,
            },
        );
        let mut row = LoadBalancerRow {
            name: view.id.name().to_owned(),
            id: view.id.to_string(),
            busy: view.is_busy,
            pools: Vec::new(),
            not_considered: Vec::new(),
        };
        for pool in &view.pools {
            let down_without_node = self.members(pool, interfaces, &plan);
            if pool.is_used() {
                row.pools.push(self.pool(pool, &plan, down_without_node));
            } else {
                row.not_considered.push(pool.id.name().to_owned());
            }
        }
        row
    }

    /// Gives a pool's entries to their Nodes; those that are Down and belong to none. Of a pool that no rule uses
    /// only what is on record matters, which is given back.
    fn members(&mut self, view: &PoolView, interfaces: &InterfaceCache, plan: &Plan) -> Vec<String> {
        let id = &view.id;
        let (page, lines) = (id.to_string().to_ascii_lowercase(), self.book.pool(id));
        let standings: HashMap<&EntryKey, &EntryStatus> = plan
            .entries
            .iter()
            .filter(|standing| standing.pool == *id)
            .map(|standing| (&standing.key, standing))
            .collect();
        let mut down_without_node = Vec::new();
        for member in &view.entries {
            let node = member.matcher.find_node(&self.sight.desired.nodes, interfaces);
            let key = member.key.as_ref();
            let Some(node) = node else {
                if member.admin_state == Some(AdminState::Down) {
                    down_without_node.push(key.map_or_else(|| "?".to_owned(), EntryKey::to_string));
                }
                if let Some(key) = key {
                    self.no_node(&page, id, key, member.admin_state);
                }
                continue;
            };
            let standing = key.and_then(|key| standings.get(key).copied());
            let record = key.and_then(|key| lines.entry(key));
            if !view.is_used() && record.is_none() {
                continue;
            }
            if let Some(key) = key {
                self.seen.insert((page.clone(), key.to_string()));
            }
            // Nobody is taken out of a pool without rules any more: a Down that is on record is what was ours.
            let is_ours = standing.map_or(!view.is_used(), EntryStatus::is_set_by_headgate);
            let becomes = standing.and_then(|standing| standing.becomes);
            let entry = self.entry(id, key, (member.admin_state, becomes), record, is_ours);
            self.entries.entry(node.name.clone()).or_default().push(entry);
        }
        down_without_node
    }

    fn pool(&self, view: &PoolView, plan: &Plan, down_without_node: Vec<String>) -> PoolRow {
        let id = &view.id;
        let counts = plan.pools.iter().find(|counts| counts.pool == *id);
        PoolRow {
            name: id.name().to_owned(),
            entries: view.entries.len(),
            down: counts.map_or(0, |counts| counts.actual_down),
            desired_down: counts.map_or(0, |counts| counts.desired_down),
            down_without_node,
            rules: view.rules.iter().map(|rule| self.rule(rule)).collect(),
        }
    }

    fn rule(&self, rule: &headgate_controller::pool::Rule) -> RuleRow {
        RuleRow {
            name: rule.name.clone(),
            probe: rule.probe.as_ref().map(|probe| ProbeRow {
                protocol: probe.protocol.clone(),
                port: probe.port,
                path: probe.path.clone(),
            }),
            target: ProbeTarget::from_rule(rule, self.sight.health_port),
        }
    }

    fn entry(
        &self,
        pool: &PoolId,
        key: Option<&EntryKey>,
        (actual, becomes): (Option<AdminState>, Option<AdminState>),
        record: Option<LedgerEntry>,
        is_ours: bool,
    ) -> EntryRow {
        let owner = match actual {
            None | Some(AdminState::None) => None,
            Some(_) if self.sight.ledger.is_err() => Some(Owner::Unknown),
            Some(AdminState::Down) if is_ours => Some(Owner::Headgate),
            Some(_) => Some(Owner::Foreign),
        };
        let becomes = becomes.map(AdminState::as_str);
        EntryRow {
            load_balancer: pool.load_balancer().name().to_owned(),
            pool: pool.name().to_owned(),
            entry: key.map(EntryKey::to_string),
            admin_state: actual.map(AdminState::as_str),
            owner,
            stage: record.map(|record| record.stage.as_str()),
            since: record.map(|record| record.since),
            pending: becomes.is_some(),
            becomes,
        }
    }

    /// An entry of no Node; the ledger may have a line of it.
    fn no_node(&mut self, page: &str, pool: &PoolId, key: &EntryKey, actual: Option<AdminState>) {
        if let Some(record) = self.book.entry(pool, key) {
            self.seen.insert((page.to_owned(), key.to_string()));
            self.unmatched.push(line(pool, key.as_str(), record, actual));
        }
    }

    /// The lines of the ledger whose entries were not seen. Without Azure that is all of them, and those whose Node
    /// is plain stand with it.
    fn lines_not_seen(&mut self) {
        for (page, key, record) in self.book.entries() {
            let Ok(pool) = PoolId::parse(page) else { continue };
            if self.seen.contains(&(page.to_owned(), key.to_owned())) {
                continue;
            }
            let node = match &self.sight.azure {
                Ok(_) => None,
                Err(_) => self.node_of(key),
            };
            let Some(node) = node else {
                self.unmatched.push(line(&pool, key, record, None));
                continue;
            };
            self.entries.entry(node.name.clone()).or_default().push(EntryRow {
                load_balancer: pool.load_balancer().name().to_owned(),
                pool: pool.name().to_owned(),
                entry: Some(key.to_owned()),
                admin_state: None,
                owner: Some(Owner::Headgate),
                stage: Some(record.stage.as_str()),
                since: Some(record.since),
                pending: false,
                becomes: None,
            });
        }
    }

    /// Whose an entry is by what it is recognised by alone.
    fn node_of(&self, key: &str) -> Option<&Arc<ClusterNode>> {
        let matcher = match key.strip_prefix("name:") {
            Some(name) => NodeMatcher::Name(name.to_owned()),
            None => NodeMatcher::Address(key.parse().ok()?),
        };
        matcher.find_node(&self.sight.desired.nodes, &InterfaceCache::default())
    }
}

fn line(pool: &PoolId, key: &str, record: LedgerEntry, actual: Option<AdminState>) -> LedgerRow {
    LedgerRow {
        load_balancer: pool.load_balancer().name().to_owned(),
        pool: pool.name().to_owned(),
        entry: key.to_owned(),
        stage: record.stage.as_str(),
        since: record.since,
        admin_state: actual.map(AdminState::as_str),
    }
}

#[cfg(test)]
mod tests;
