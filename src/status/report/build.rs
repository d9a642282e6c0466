//! Builds the report from a snapshot. Pure.
//!
//! Entry status and target state come from the plan of `admin_state`, the owner of a `Down` from the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headgate_azure::{AdminState, PoolId};
use headgate_controller::admin_state::{
    EntryStatus, GuardInputs, GuardSettings, HeldEntries, Ledger, LedgerEntry, LedgerStage, Plan, PlanInputs, plan,
};
use headgate_controller::pool::{
    ClusterNode, EntryKey, EntryOwner, InterfaceCache, Listing, LoadBalancerView, NodeMatcher, PoolEntry, PoolView,
    ProbeTarget,
};

use headgate_core::lower_case;
use headgate_core::node::{MarkerFact, Unproved};

use super::{
    EntryRow, LedgerRow, LoadBalancerRow, MarkerRow, NodeRow, Owner, PoolRow, ProbeRow, RuleRow, Selection, SignalRow,
    StatusReport, UnreadableRow, VerdictRow,
};
use crate::failure::{Failure, no_such_node};
use crate::status::snapshot::{AzureSnapshot, ClusterSnapshot};

impl StatusReport {
    /// The report about all Nodes of a snapshot.
    pub(crate) fn from_snapshot(snapshot: &ClusterSnapshot) -> Self {
        let empty = Ledger::default();
        let ledger = snapshot.ledger.as_ref().unwrap_or(&empty);
        let mut builder = ReportBuilder {
            snapshot,
            ledger,
            entries: HashMap::new(),
            found_entries: BTreeSet::new(),
            unmatched: Vec::new(),
        };
        let load_balancers = match &snapshot.azure {
            Ok(azure) => builder.load_balancers(azure),
            Err(_) => Vec::new(),
        };
        let unreadable = snapshot.azure.iter().flat_map(|azure| &azure.recorded.unreadable);
        let unreadable_load_balancers = unreadable.map(|(id, error)| UnreadableRow {
            id: id.to_string(),
            why: error.message.clone(),
        });
        let unreadable_load_balancers = unreadable_load_balancers.collect();
        builder.add_ledger_entries_without_pool_entry();
        let ReportBuilder {
            mut entries, unmatched, ..
        } = builder;
        let nodes = snapshot.desired.nodes.iter().map(|node| {
            let entries = entries.remove(node.name.as_str()).unwrap_or_default();
            NodeRow {
                unidentified: !node.signals.is_empty() && is_unidentified(node, snapshot),
                ..node_row(node, entries)
            }
        });
        let nodes: Vec<_> = nodes.collect();
        let rules = || {
            load_balancers
                .iter()
                .flat_map(|found| &found.pools)
                .flat_map(|pool| &pool.rules)
        };
        let (leader, leader_error) = match &snapshot.leader {
            Ok(leader) => (leader.clone(), None),
            Err(error) => (None, Some(error.clone())),
        };
        Self {
            taken_at: snapshot.now.wall,
            leader,
            leader_error,
            mode: snapshot.policy.mode.as_str(),
            foreign_down: snapshot.policy.foreign_down.as_str(),
            azure_error: snapshot.azure.as_ref().err().cloned(),
            ledger_error: snapshot.ledger.as_ref().err().cloned(),
            services_error: snapshot
                .azure
                .is_ok()
                .then(|| snapshot.services.as_ref().err().cloned())
                .flatten(),
            minimum_in_service: snapshot.guard.minimum_in_service.to_string(),
            health_port: snapshot.guard.health_port,
            probed_by_headgate: snapshot
                .azure
                .is_ok()
                .then(|| rules().any(|rule| rule.target == ProbeTarget::Headgate)),
            nodes_total: nodes.len(),
            selection: Selection::All,
            nodes,
            load_balancers,
            unreadable_load_balancers,
            unattributed: snapshot.azure.as_ref().map(unattributed).unwrap_or_default(),
            unmatched_ledger: unmatched,
            local_pools: snapshot.local_pools.rows.clone(),
            local_pools_error: snapshot.local_pools.error.clone(),
            maintenances: snapshot.maintenances.clone().unwrap_or_default(),
            maintenances_error: snapshot.maintenances.as_ref().err().cloned(),
            leader_work: None,
            missing_nodes: Vec::new(),
            has_no_load_balancers: false,
            no_headers: false,
        }
    }

    /// Retains the Nodes with these names.
    ///
    /// # Errors
    /// The first name that no Node has.
    pub(crate) fn retain_named(&mut self, names: &[String]) -> Result<(), Failure> {
        let existing: BTreeSet<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        if let Some(missing) = names.iter().find(|name| !existing.contains(name.as_str())) {
            return Err(Failure::runtime(no_such_node(missing)));
        }
        self.retain_selected(names);
        Ok(())
    }

    /// Retains the Nodes with these names, and notes which of them are not known.
    pub(crate) fn retain_selected(&mut self, names: &[String]) {
        let known: BTreeSet<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let missing = names.iter().filter(|name| !known.contains(name.as_str()));
        self.missing_nodes = missing.cloned().collect();
        self.nodes.retain(|node| names.contains(&node.name));
        self.maintenances.retain_mut(|row| row.retain_nodes(names));
        self.selection = Selection::Named;
    }

    /// Retains the Nodes with a signal, an admin state or a ledger entry.
    pub(crate) fn retain_notable(&mut self) {
        self.nodes.retain(NodeRow::is_notable);
        self.selection = Selection::Notable;
    }

    /// The entries that are Down by headgate, with their Nodes.
    pub(crate) fn down_by_headgate(&self) -> impl Iterator<Item = (&NodeRow, &EntryRow)> {
        let is_ours = |entry: &EntryRow| entry.admin_state == Some("Down") && entry.owner == Some(Owner::Headgate);
        self.entries().filter(move |(_, entry)| is_ours(entry))
    }

    /// The entries that are not Down, although the ledger says that they are or become so, with their Nodes: what was read may be older.
    pub(crate) fn recorded_in_service(&self) -> impl Iterator<Item = (&NodeRow, &EntryRow)> {
        let is_recorded = |entry: &EntryRow| entry.stage.is_some_and(|stage| stage != LedgerStage::Restored.as_str());
        self.entries()
            .filter(move |(_, entry)| is_recorded(entry) && entry.admin_state != Some("Down"))
    }

    /// The entries of the Nodes, with them.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&NodeRow, &EntryRow)> {
        let nodes = self.nodes.iter();
        nodes.flat_map(|node| node.entries.iter().map(move |entry| (node, entry)))
    }
}

impl NodeRow {
    pub(crate) fn is_notable(&self) -> bool {
        let notable = |entry: &EntryRow| {
            entry.pending || entry.stage.is_some() || entry.admin_state.is_some_and(|state| state != "None")
        };
        let is_marked = self
            .out_of_load_balancers
            .as_ref()
            .is_some_and(|marker| marker.status != "False");
        is_marked || !self.signals.is_empty() || self.entries.iter().any(notable)
    }
}

impl From<&MarkerFact> for MarkerRow {
    fn from(fact: &MarkerFact) -> Self {
        Self {
            status: fact.status.as_str().to_owned(),
            reason: fact.reason.clone(),
            message: fact.message.clone(),
        }
    }
}

/// The row of a Node, with the verdict that its signals imply.
fn node_row(node: &ClusterNode, mut entries: Vec<EntryRow>) -> NodeRow {
    entries.sort_by(|one, other| {
        (&one.load_balancer, &one.pool, &one.entry).cmp(&(&other.load_balancer, &other.pool, &other.entry))
    });
    let mut found: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for signal in &node.health_signals {
        found.entry(signal.to_string()).or_default().0 = true;
    }
    for signal in node.signals.keys() {
        found.entry(signal.to_string()).or_default().1 = true;
    }
    let implied = if node.health_signals.is_empty() { 200 } else { 503 };
    NodeRow {
        name: node.name.clone(),
        address: node.addresses.first().copied(),
        ready: node.ready,
        excluded: node.excluded.map(str::to_owned),
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
            ..VerdictRow::default()
        },
        out_of_load_balancers: node.marker.as_ref().map(MarkerRow::from),
        entries,
        ..NodeRow::default()
    }
}

/// Why entries of the configured load balancers may belong to any Node.
fn unattributed(azure: &AzureSnapshot) -> Vec<String> {
    let AzureSnapshot {
        listing, interfaces, ..
    } = azure;
    let views = || listing.load_balancers.values();
    let unreadable = views().flat_map(|view| interfaces.unreadable_pools(view));
    let mut found: Vec<_> = unreadable
        .map(|pool| Unproved::InterfaceUnreadable(pool.last_error.message).to_string())
        .collect();
    if !views().all(|view| interfaces.covers(view)) {
        found.push(Unproved::InterfaceUnknown.to_string());
    }
    if views().any(|view| view.has_unmatched_entry()) {
        found.push(Unproved::NotIdentified.to_string());
    }
    found
}

/// Whether the Node lacks that by which entries of its pools are found.
fn is_unidentified(node: &ClusterNode, snapshot: &ClusterSnapshot) -> bool {
    let listing = snapshot.azure.iter().map(|azure| &azure.listing);
    let mut views = listing.flat_map(|listing| listing.load_balancers.values());
    views.any(|view| view.may_have_unknown_entry(node, &snapshot.desired.nodes))
}

struct ReportBuilder<'a> {
    snapshot: &'a ClusterSnapshot,
    ledger: &'a Ledger,
    /// The rows of pool entries, by the name of their Node.
    entries: HashMap<String, Vec<EntryRow>>,
    /// The pool, in lower case, and the key of each ledger entry whose pool entry was found.
    found_entries: BTreeSet<(String, String)>,
    unmatched: Vec<LedgerRow>,
}

impl ReportBuilder<'_> {
    fn load_balancers(&mut self, azure: &AzureSnapshot) -> Vec<LoadBalancerRow> {
        let of = |listing: &Listing, is_configured: bool| -> Vec<_> {
            let views = listing.load_balancers.values();
            views.map(|view| (Arc::clone(view), is_configured)).collect()
        };
        let views = of(&azure.listing, true).into_iter().chain(of(&azure.recorded, false));
        views
            .map(|(view, is_configured)| self.load_balancer(&view, &azure.interfaces, is_configured))
            .collect()
    }

    fn load_balancer(
        &mut self,
        view: &LoadBalancerView,
        interfaces: &InterfaceCache,
        is_configured: bool,
    ) -> LoadBalancerRow {
        let ClusterSnapshot {
            desired, policy, now, ..
        } = self.snapshot;
        let guard = GuardSettings {
            // The holds on the Nodes show whether the leader may.
            may_write_holds: desired.nodes.iter().any(|node| node.hold.is_some()),
            ..self.snapshot.guard.clone()
        };
        // The leader's present choice is recorded on the Nodes.
        let held = HeldEntries::new();
        let plan = plan(
            view,
            &PlanInputs {
                interfaces,
                targets: desired,
                ledger: self.ledger,
                policy: *policy,
                guard: GuardInputs {
                    settings: &guard,
                    held: &held,
                    services: self.snapshot.services.as_ref().ok(),
                },
                is_configured,
                now: *now,
            },
        );
        let mut row = LoadBalancerRow {
            name: view.id.name().to_owned(),
            id: view.id.to_string(),
            configured: is_configured,
            busy: view.is_busy,
            ..LoadBalancerRow::default()
        };
        for pool in &view.pools {
            let is_considered = is_configured && pool.is_used();
            let down_without_node = self.add_pool_entries(pool, is_considered, interfaces, &plan);
            if is_considered {
                row.pools.push(self.pool(pool, &plan, down_without_node));
            } else {
                row.not_considered.push(pool.id.name().to_owned());
            }
        }
        row
    }

    /// Adds a pool's entries to their Nodes; returns the entries that are Down and belong to no Node. Of a pool that is
    /// not considered, only entries in the ledger are added, because headgate restores them.
    fn add_pool_entries(
        &mut self,
        view: &PoolView,
        is_considered: bool,
        interfaces: &InterfaceCache,
        plan: &Plan,
    ) -> Vec<String> {
        let id = &view.id;
        let (pool_key, pool_ledger) = (lower_case(&id.to_string()), self.ledger.pool(id));
        let statuses: HashMap<&EntryKey, &EntryStatus> = plan
            .entries
            .iter()
            .filter(|status| status.pool == *id)
            .map(|status| (&status.key, status))
            .collect();
        let mut down_without_node = Vec::new();
        for pool_entry in &view.entries {
            let owner = self
                .snapshot
                .desired
                .owner(pool_entry, interfaces, self.snapshot.now.mono);
            let key = pool_entry.key.as_ref();
            let Some(EntryOwner { node, .. }) = owner else {
                if pool_entry.admin_state == Some(AdminState::Down) {
                    down_without_node.push(key.map_or_else(|| "?".to_owned(), EntryKey::to_string));
                }
                if let Some(key) = key {
                    let unreadable = interfaces.lookup_error(pool_entry).map(|error| error.message);
                    self.add_unmatched(&pool_key, id, key, pool_entry.admin_state, unreadable);
                }
                continue;
            };
            let status = key.and_then(|key| statuses.get(key).copied());
            let ledger_entry = key.and_then(|key| pool_ledger.entry(key));
            if !is_considered && ledger_entry.is_none() {
                continue;
            }
            if let Some(key) = key {
                self.found_entries.insert((pool_key.clone(), key.to_string()));
            }
            // In such a pool nothing is set Down any more, so a Down with a ledger entry is headgate's.
            let is_ours = status.map_or(!is_considered, EntryStatus::is_set_by_headgate);
            let becomes = status.and_then(|status| status.becomes);
            let mut entry = self.entry(id, key, (pool_entry.admin_state, becomes), ledger_entry, is_ours);
            entry.held_back = status.is_some_and(|status| status.is_held_back);
            entry.waiting = status.is_some_and(|status| status.held_for.brake);
            let services = status.into_iter().flat_map(|status| &status.held_for.services);
            entry.held_for = services.cloned().collect();
            entry.held_reason = status
                .filter(|_| entry.held_back)
                .map(|status| status.held_for.reason());
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
            held_back: counts.map_or(0, |counts| counts.held_back),
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
            target: ProbeTarget::from_rule(rule, self.snapshot.guard.health_port),
        }
    }

    fn entry(
        &self,
        pool: &PoolId,
        key: Option<&EntryKey>,
        (actual, becomes): (Option<AdminState>, Option<AdminState>),
        ledger_entry: Option<LedgerEntry>,
        is_ours: bool,
    ) -> EntryRow {
        let owner = match actual {
            None | Some(AdminState::None) => None,
            Some(_) if self.snapshot.ledger.is_err() => Some(Owner::Unknown),
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
            stage: ledger_entry.map(|ledger_entry| ledger_entry.stage.as_str()),
            since: ledger_entry.map(|ledger_entry| whole_seconds(ledger_entry.since)),
            pending: becomes.is_some(),
            becomes,
            ..EntryRow::default()
        }
    }

    /// Adds an entry that belongs to no Node to the unmatched ones if the ledger has it.
    fn add_unmatched(
        &mut self,
        pool_key: &str,
        pool: &PoolId,
        key: &EntryKey,
        actual: Option<AdminState>,
        unreadable: Option<String>,
    ) {
        if let Some(ledger_entry) = self.ledger.entry(pool, key) {
            self.found_entries.insert((pool_key.to_owned(), key.to_string()));
            self.unmatched.push(LedgerRow {
                unreadable,
                ..ledger_row(pool, key.as_str(), ledger_entry, actual)
            });
        }
    }

    /// Adds the ledger entries whose pool entry was not found. Without Azure these are all of them; one whose key matches
    /// a Node is then added to that Node.
    fn add_ledger_entries_without_pool_entry(&mut self) {
        for (pool_key, key, ledger_entry) in self.ledger.entries() {
            let Ok(pool) = PoolId::parse(pool_key) else { continue };
            if self.found_entries.contains(&(pool_key.to_owned(), key.to_owned())) {
                continue;
            }
            let node = match &self.snapshot.azure {
                Ok(_) => None,
                Err(_) => self.find_node_by_key(key),
            };
            let Some(node) = node else {
                self.unmatched.push(ledger_row(&pool, key, ledger_entry, None));
                continue;
            };
            self.entries.entry(node.name.clone()).or_default().push(EntryRow {
                load_balancer: pool.load_balancer().name().to_owned(),
                pool: pool.name().to_owned(),
                entry: Some(key.to_owned()),
                owner: Some(Owner::Headgate),
                stage: Some(ledger_entry.stage.as_str()),
                since: Some(whole_seconds(ledger_entry.since)),
                ..EntryRow::default()
            });
        }
    }

    /// The Node of a ledger entry by its key alone.
    fn find_node_by_key(&self, key: &str) -> Option<&Arc<ClusterNode>> {
        let matcher = match key.strip_prefix("name:") {
            Some(name) => NodeMatcher::Name(name.to_owned()),
            None => NodeMatcher::Address(key.parse().ok()?),
        };
        let entry = PoolEntry {
            key: None,
            name: None,
            matcher,
            admin_state: None,
        };
        let ClusterSnapshot { desired, now, .. } = self.snapshot;
        let owner = desired.owner(&entry, &InterfaceCache::default(), now.mono)?;
        Some(owner.node)
    }
}

fn ledger_row(pool: &PoolId, key: &str, ledger_entry: LedgerEntry, actual: Option<AdminState>) -> LedgerRow {
    LedgerRow {
        load_balancer: pool.load_balancer().name().to_owned(),
        pool: pool.name().to_owned(),
        entry: key.to_owned(),
        stage: ledger_entry.stage.as_str(),
        since: whole_seconds(ledger_entry.since),
        admin_state: actual.map(AdminState::as_str),
        unreadable: None,
    }
}

/// As the ledger is stored: what its owner has in memory is more exact.
fn whole_seconds(since: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(since.as_second()).unwrap_or(since)
}

#[cfg(test)]
mod tests;
