//! What the last reads of all managed load balancers prove about each Node with a signal. Pure.
//!
//! Invariant: [`NodeTraffic::Out`] needs a list of load balancers that was sent after the signal was observed and has ended less than
//! [`MAX_LIST_AGE`] ago, plans of all of them that know the signal, entries of the Node that are all `Down` by the newest read or list, and no
//! entry that may be the Node's without being known as such. How long an answer may be awaited is left to the callers.

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_core::clock::whole_seconds;
use headgate_core::node::{NodeTraffic, SignalPeriod, TrafficByNode, Unproved};
use jiff::Timestamp;

use super::last_reads::{LastReads, OwnEntry};
use super::ledger::LedgerStage;
use super::plan::EntryStatus;
use super::rule_guard::HeldFor;
use super::settings::AdminStateMode;
use super::transitions::pool_names;
use crate::pool::{Claimed, ClusterNode, NodeMatcher};

/// How long a list proves something after its end. While a Node has a signal, a list is due every 15 s; one that takes longer than that
/// follows the last one at once.
pub(super) const MAX_LIST_AGE: Duration = Duration::from_secs(45);

impl LastReads<'_> {
    /// What the reads prove about each Node whose signal counts. `previous` has since when those that were out before are out.
    pub(super) fn prove(&self, previous: &TrafficByNode) -> TrafficByNode {
        let nodes = self.targets.nodes_with_periods();
        let signalled = nodes.filter_map(|node| Some((node, self.present_signal(node)?)));
        let doubts = Doubts {
            only_listed: self.only_listed(),
            contested: self.contested_in_service(),
        };
        signalled
            .map(|(node, period)| {
                let traffic = self.prove_node(node, period, previous, &doubts);
                (node.name.clone(), traffic)
            })
            .collect()
    }

    fn prove_node(
        &self,
        node: &ClusterNode,
        period: &SignalPeriod,
        previous: &TrafficByNode,
        doubts: &Doubts<'_>,
    ) -> NodeTraffic {
        if let Some(unread) = self.unread() {
            return NodeTraffic::Unknown(unread);
        }
        let in_service = self.in_service(node);
        if !in_service.is_empty() {
            return in_service_traffic(self.mode, node, &in_service);
        }
        match self.missing_proof(node, period, doubts) {
            Some(missing) => NodeTraffic::Unknown(missing),
            None => self.out(node, previous),
        }
    }

    /// Why the reads prove nothing about any Node.
    fn unread(&self) -> Option<Unproved> {
        if self.mode == AdminStateMode::Disabled {
            return Some(Unproved::ModeOff);
        }
        if let Some(since) = self.targets.stale_since() {
            return Some(Unproved::NodesStale(since));
        }
        let received_at = self.listing.received_at;
        if received_at.is_some_and(|at| self.now.mono < at + MAX_LIST_AGE) {
            return None;
        }
        let too_old = || format!("the last list is older than {} s", MAX_LIST_AGE.as_secs());
        Some(self.not_listed(received_at.map(|_| too_old())))
    }

    /// `otherwise` is why, if the last list has not failed.
    fn not_listed(&self, otherwise: Option<String>) -> Unproved {
        let error = self.listing.last_error.as_ref();
        Unproved::NotListed(error.map(|error| error.message.clone()).or(otherwise))
    }

    fn out(&self, node: &ClusterNode, previous: &TrafficByNode) -> NodeTraffic {
        let own: Vec<_> = self.managed_entries(node).collect();
        if own.is_empty() {
            return NodeTraffic::Out { since: None };
        }
        let before = match previous.get(&node.name) {
            Some(NodeTraffic::Out { since }) => *since,
            _ => None,
        };
        let since = before.or_else(|| recorded_since(&own)).unwrap_or(self.now.wall);
        NodeTraffic::Out {
            since: Some(whole_seconds(since)),
        }
    }

    /// Why entries that are all `Down` do not prove that the Node is out.
    fn missing_proof(&self, node: &ClusterNode, period: &SignalPeriod, doubts: &Doubts<'_>) -> Option<Unproved> {
        if !self.are_planned(period) {
            return Some(Unproved::NotPlanned);
        }
        // An older list may not show a pool that the Node has joined since.
        if self.listing.requested_at.is_none_or(|at| at < period.since.mono) {
            return Some(self.not_listed(None));
        }
        if self.managed().next().is_none() {
            match self.has_no_load_balancer_service {
                Some(true) => {}
                Some(false) => return Some(Unproved::NoLoadBalancer),
                None => return Some(self.not_listed(Some("Services are not listed yet".to_owned()))),
            }
        }
        if doubts.only_listed.iter().any(|matcher| may_match(matcher, node)) {
            return Some(Unproved::EntryNotPlanned);
        }
        let mut views = self.managed().filter_map(|one| one.status.view.as_ref());
        let nodes = &self.targets.nodes;
        if node.addresses.is_empty() && node.machine.is_empty()
            || views.any(|view| view.has_unmatched_entry() || view.may_have_unknown_entry(node, nodes))
        {
            return Some(Unproved::NotIdentified);
        }
        match node.claims().find(|claimed| doubts.contested.contains(claimed)) {
            Some(Claimed::Address(address)) => return Some(Unproved::AddressContested(address)),
            Some(Claimed::Machine(machine)) => return Some(Unproved::MachineContested(machine)),
            None => {}
        }
        let statuses = || self.managed().map(|one| &one.status);
        if let Some(unreadable) = statuses().flat_map(|status| &status.unreadable_pools).next() {
            return Some(Unproved::InterfaceUnreadable(unreadable.last_error.message.clone()));
        }
        // An interface is in its pool before its machine has it.
        let is_unknown = statuses().any(|status| {
            !status.covers_interfaces || status.no_machine_since.is_some_and(|at| at < period.since.mono)
        });
        is_unknown.then_some(Unproved::InterfaceUnknown)
    }
}

/// What is in service and may be a Node's without being known as such.
struct Doubts<'a> {
    /// See [`LastReads::only_listed`].
    only_listed: Vec<&'a NodeMatcher>,
    /// See [`LastReads::contested_in_service`].
    contested: BTreeSet<Claimed>,
}

/// Whether an entry may be the Node's. Which machine has an interface that is in no scale set, only ARM knows.
fn may_match(matcher: &NodeMatcher, node: &ClusterNode) -> bool {
    match matcher {
        NodeMatcher::Address(ip) => node.addresses.contains(ip),
        NodeMatcher::Machine(machine) => machine.as_str() == node.machine,
        NodeMatcher::Interface(_) | NodeMatcher::Unmatched => true,
        NodeMatcher::Name(name) => name.eq_ignore_ascii_case(&node.name),
    }
}

fn in_service_traffic(mode: AdminStateMode, node: &ClusterNode, entries: &[&EntryStatus]) -> NodeTraffic {
    let (held_back, serving): (Vec<&EntryStatus>, Vec<_>) =
        entries.iter().partition(|entry| entry.held_for.is_needed());
    if serving.is_empty() {
        let detail = format!(
            "in service in {}{}",
            pool_names(&held_back),
            needed_by_services(&held_back)
        );
        return NodeTraffic::HeldBack { detail };
    }
    let because = match (mode, node.exempting_label()) {
        (_, Some(label)) => format!("; the label {label} keeps headgate from setting it Down"),
        (AdminStateMode::Observe, None) => "; adminState.mode is Observe".to_owned(),
        (AdminStateMode::Enforce | AdminStateMode::Disabled, None) => {
            match HeldFor::union(serving.iter().copied()).reason() {
                reason if reason.is_empty() => reason,
                reason => format!("; {reason}"),
            }
        }
    };
    let detail = format!("in service in {}{because}", pool_names(&serving));
    NodeTraffic::InService { detail }
}

/// Which Services need the entries, where some do.
fn needed_by_services(entries: &[&EntryStatus]) -> String {
    let held_for = HeldFor {
        services: HeldFor::union(entries.iter().copied()).services,
        ..HeldFor::default()
    };
    match held_for.reason() {
        reason if reason.is_empty() => reason,
        reason => format!(": {reason}"),
    }
}

/// When the last entry became `Down`. A new leader has the times of the one before from the ledger.
fn recorded_since(own: &[&OwnEntry<'_>]) -> Option<Timestamp> {
    let recorded = own.iter().filter_map(|own| own.ledger_entry);
    let recorded = recorded.filter(|entry| entry.stage == LedgerStage::Down);
    recorded.map(|entry| entry.since).max()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headgate_azure::{Pool, ProvisioningState};
    use headgate_core::clock::{Clock, Moment};
    use serde_json::{Value, json};

    use super::super::fixtures::{
        DRAIN, held_by_brake, held_by_minimum, held_for, ledger, listing, node, plan_inputs, planned, pool_id,
        recorded, status, target_states, view,
    };
    use super::super::ledger::Ledger;
    use super::super::plan::{Plan, plan};
    use super::super::planner::LoadBalancerStatus;
    use super::*;
    use crate::pool::PoolEntry;

    #[test]
    fn a_node_is_out_since_it_was_so_first() {
        let second = |second| Timestamp::from_second(second).unwrap();
        let start = Clock::anchored(second(100)).now();
        let now = Moment {
            mono: start.mono + MAX_LIST_AGE,
            ..start
        };
        let targets = target_states(&[node(1, &[DRAIN])], start);
        let out = |since| NodeTraffic::Out { since };
        for (stage, previous, since) in [
            (LedgerStage::Down, None, 5),
            (LedgerStage::Intended, None, 100),
            (LedgerStage::Down, Some(out(Some(second(3)))), 3),
        ] {
            let mut ledger = Ledger::default();
            ledger.apply(recorded("p", 1, stage, second(5)));
            let read = view(&[("p", &[(1, "Down")], true)]);
            let planned = [planned(LoadBalancerStatus {
                observed_at: Some(now.mono),
                ..status(plan(&read, &plan_inputs(&targets, &ledger, now)), &targets)
            })];
            let listing = listing(now.mono, &[&read]);
            let reads = LastReads::new(&targets, &planned, &ledger, &listing, AdminStateMode::Enforce, now);
            let previous = previous.into_iter().map(|traffic| ("n1".to_owned(), traffic)).collect();
            assert_eq!(reads.prove(&previous)["n1"], out(Some(second(since))), "{stage:?}");
        }
    }

    #[test]
    fn without_a_load_balancer_a_node_is_out_only_where_no_service_asks_for_one() {
        let now = Clock::System.now();
        let (targets, ledger) = (target_states(&[node(1, &[DRAIN])], now), ledger(&[]));
        let listing = listing(now.mono, &[]);
        let mut reads = LastReads::new(&targets, &[], &ledger, &listing, AdminStateMode::Enforce, now);
        for (has_no_service, expected) in [
            (Some(false), NodeTraffic::Unknown(Unproved::NoLoadBalancer)),
            (Some(true), NodeTraffic::Out { since: None }),
        ] {
            reads.has_no_load_balancer_service = has_no_service;
            assert_eq!(reads.prove(&TrafficByNode::new())["n1"], expected);
        }
    }

    #[test]
    fn what_a_list_alone_shows_may_be_the_entry_of_a_node() {
        let mut node = node(1, &[DRAIN]);
        node.machine = "/m/virtualmachinescalesets/v/virtualmachines/1".to_owned();
        let interface =
            |id: &str| json!({"networkInterfaceIPConfiguration": {"id": format!("{id}/ipConfigurations/c")}});
        for (name, properties, expected) in [
            ("e", json!({"ipAddress": "10.0.0.1"}), true),
            ("e", json!({"ipAddress": "10.0.0.2"}), false),
            ("e", interface(&format!("{}/networkInterfaces/i", node.machine)), true),
            (
                "e",
                interface("/m/virtualmachinescalesets/v/virtualmachines/2/networkInterfaces/i"),
                false,
            ),
            (
                "e",
                interface("/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/i"),
                true,
            ),
            (
                "e",
                interface(
                    "/subscriptions/s/resourceGroups/virtualMachines/providers/Microsoft.Network/networkInterfaces/i",
                ),
                true,
            ),
            ("e", interface("/other"), true),
            ("N1", json!({}), true),
            ("n2", json!({}), false),
        ] {
            let pool = Pool {
                id: pool_id("p"),
                etag: None,
                document: json!({"properties": {"loadBalancerBackendAddresses": [{"name": name, "properties": properties}]}}),
            };
            let entry = pool.addresses().map(PoolEntry::new).next().unwrap();
            assert_eq!(may_match(&entry.matcher, &node), expected, "{name} {properties}");
        }
    }

    /// What is proved of the first Node beside a pool with this entry.
    fn proved(nodes: &[ClusterNode], entry: &Value) -> NodeTraffic {
        let now = Clock::System.now();
        let (targets, ledger) = (target_states(nodes, now), ledger(&[]));
        let pool = Pool {
            id: pool_id("p"),
            etag: None,
            document: json!({"properties": {"loadBalancerBackendAddresses": [{"name": "n1", "properties": entry}]}}),
        };
        let read = view(&[("p", &[], true)])
            .with_pools(&[&pool], ProvisioningState::Settled)
            .unwrap();
        let planned = [planned(LoadBalancerStatus {
            observed_at: Some(now.mono),
            view: Some(Arc::new(read)),
            ..status(Plan::default(), &targets)
        })];
        let listing = listing(now.mono, &[]);
        let reads = LastReads::new(&targets, &planned, &ledger, &listing, AdminStateMode::Enforce, now);
        reads.prove(&TrafficByNode::new())["n1"].clone()
    }

    #[test]
    fn a_machine_of_two_nodes_is_contested_while_an_entry_in_service_may_have_it() {
        let machine = "/m/virtualmachinescalesets/v/virtualmachines/1";
        let interface =
            |id: &str| json!({"networkInterfaceIPConfiguration": {"id": format!("{id}/ipConfigurations/c")}});
        let own = interface(&format!("{machine}/networkinterfaces/i"));
        let lone = interface("/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/i");
        let other = interface("/m/virtualmachinescalesets/v/virtualmachines/3/networkinterfaces/i");
        let down =
            json!({"networkInterfaceIPConfiguration": own["networkInterfaceIPConfiguration"], "adminState": "Down"});
        let contested = NodeTraffic::Unknown(Unproved::MachineContested(machine.to_owned()));
        let out = NodeTraffic::Out { since: None };
        for (entry, expected) in [(own, &contested), (lone, &contested), (other, &out), (down, &out)] {
            let (mut one, mut two) = (node(1, &[DRAIN]), node(2, &[]));
            (one.machine, two.machine) = (machine.to_owned(), machine.to_owned());
            assert_eq!(proved(&[one, two], &entry), *expected, "{entry}");
        }
    }

    #[test]
    fn a_node_is_identified_by_what_the_entries_of_its_pools_name() {
        let machine = |number: u8| format!("/m/virtualmachinescalesets/v/virtualmachines/{number}");
        let address = |number: u8| json!({"ipAddress": format!("10.0.0.{number}")});
        let interface =
            |id: String| json!({"networkInterfaceIPConfiguration": {"id": format!("{id}/ipConfigurations/c")}});
        let of_scale_set = |number: u8| interface(format!("{}/networkinterfaces/i", machine(number)));
        let other =
            interface("/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/i".to_owned());
        let (out, unknown) = (
            NodeTraffic::Out { since: None },
            NodeTraffic::Unknown(Unproved::NotIdentified),
        );
        for (has_address, has_machine, entry, expected) in [
            (true, false, of_scale_set(3), &unknown),
            (true, false, of_scale_set(2), &out),
            (true, false, other.clone(), &unknown),
            (true, false, address(3), &out),
            (false, true, address(3), &unknown),
            (false, true, address(2), &out),
            (false, true, of_scale_set(3), &out),
            (true, true, of_scale_set(3), &out),
            (true, true, other, &out),
            (false, false, of_scale_set(2), &unknown),
            // It has no address of this family now.
            (true, true, json!({"ipAddress": "fd00::1"}), &unknown),
            (true, true, json!({"ipAddress": "10.0.0.9"}), &out),
            (true, true, json!({"ipAddress": "fd00::1", "adminState": "Down"}), &out),
            // No machine has an interface of this form.
            (
                true,
                true,
                interface("/subscriptions/s/resourceGroups/g/providers/Microsoft.Other/i".to_owned()),
                &unknown,
            ),
        ] {
            let (mut one, mut two) = (node(1, &[DRAIN]), node(2, &[]));
            two.machine = machine(2);
            if !has_address {
                one.addresses.clear();
            }
            if has_machine {
                one.machine = machine(1);
            }
            let what = format!("{:?} {:?} {entry}", one.addresses, one.machine);
            assert_eq!(proved(&[one, two], &entry), *expected, "{what}");
        }
    }

    #[test]
    fn a_node_in_service_says_what_keeps_it_there() {
        let (now, node, ledger) = (Clock::System.now(), node(1, &[DRAIN]), ledger(&[]));
        let targets = target_states(std::slice::from_ref(&node), now);
        let pools = view(&[("p", &[(1, "-"), (2, "-")], true)]);
        let plan = plan(&pools, &plan_inputs(&targets, &ledger, now));
        let detail = |held_for: HeldFor| {
            let entry = EntryStatus {
                held_for,
                ..plan.entries[0].clone()
            };
            in_service_traffic(AdminStateMode::Enforce, &node, &[&entry])
        };
        let in_service = |detail: &str| NodeTraffic::InService { detail: detail.into() };
        assert_eq!(detail(HeldFor::default()), in_service("in service in lb/p"));
        let waits = held_by_brake();
        let reason = waits.reason();
        assert_eq!(detail(waits), in_service(&format!("in service in lb/p; {reason}")));

        let held_back = |detail: &str| NodeTraffic::HeldBack { detail: detail.into() };
        assert_eq!(detail(held_by_minimum()), held_back("in service in lb/p"));
        let needed = held_for("shop/web");
        let reason = needed.reason();
        assert!(reason.contains("shop/web"), "{reason}");
        assert_eq!(detail(needed), held_back(&format!("in service in lb/p: {reason}")));
    }
}
