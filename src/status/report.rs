//! The report, as `-o json` prints it: every field is documented here, and stays as it is within a version.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;

use super::reaches::Reaches;
use headgate_leader::LeaderStatus;

mod made;

/// Everything there is to say. Times are in UTC; what is not known is null.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// When it was asked.
    pub asked_at: Timestamp,
    /// Who leads; null where nobody ever did, or where that could not be read.
    pub leader: Option<LeaderStatus>,
    /// Why the leader's Lease could not be read.
    pub leader_error: Option<String>,
    /// `enforce`, `observe` or `off`, by the settings that were given.
    pub mode: &'static str,
    /// `keep` or `restore`, by the settings that were given.
    pub foreign_down: &'static str,
    /// Why nothing is known of load balancers.
    pub azure_error: Option<String>,
    /// Why it is not known whose a Down is.
    pub ledger_error: Option<String>,
    /// The agents' health port, by the settings that were given.
    pub health_port: u16,
    /// Whether the probe of any rule asks headgate; null where rules are not known.
    pub probed_by_headgate: Option<bool>,
    /// How many Nodes there are; `nodes` may have fewer.
    pub nodes_total: usize,
    /// Which of them are in `nodes`.
    pub selection: Selection,
    /// Nodes, by name.
    pub nodes: Vec<NodeRow>,
    /// The cluster's load balancers.
    pub load_balancers: Vec<LoadBalancerRow>,
    /// Lines of the ledger whose entry was not seen, or belongs to no Node.
    pub unmatched_ledger: Vec<LedgerLine>,
}

/// Which Nodes a report has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Selection {
    /// All.
    All,
    /// Those with a signal, an admin state, or a line in the ledger.
    Notable,
    /// Those asked for.
    Named,
}

/// One Node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Its first internal address.
    pub address: Option<IpAddr>,
    /// Whether kubelet says it is ready.
    pub ready: bool,
    /// The label by which it belongs in no load balancer.
    pub excluded: Option<&'static str>,
    /// What speaks against it.
    pub signals: Vec<SignalRow>,
    /// What its probe is told.
    pub verdict: VerdictRow,
    /// Its entries, by load balancer and pool.
    pub entries: Vec<EntryRow>,
}

/// One signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalRow {
    /// Its name.
    pub name: String,
    /// Whether `/healthz` heeds it.
    pub health: bool,
    /// Whether admin states follow it.
    pub admin_state: bool,
}

/// What probes are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictRow {
    /// The status of `/healthz`; null where the agent does not serve it.
    pub healthz: Option<u16>,
    /// Whether that is its agent's word; otherwise it is what the Node's signals imply.
    pub asked: bool,
    /// Since when, where the agent was asked.
    pub since: Option<Timestamp>,
    /// What stood in the way of asking.
    pub why: Option<String>,
}

/// Whose an admin state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Owner {
    /// headgate's, by the ledger.
    Headgate,
    /// Somebody else's, which is left alone.
    Foreign,
    /// The ledger could not be read.
    Unknown,
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerLine {
    /// The pool's load balancer.
    pub load_balancer: String,
    /// The pool.
    pub pool: String,
    /// The entry: its address, or `name:` and its name.
    pub entry: String,
    /// `intended`, `down` or `restored`.
    pub stage: &'static str,
    /// Since when.
    pub since: Timestamp,
    /// The entry's admin state, where it was seen.
    pub admin_state: Option<&'static str>,
}

/// One entry of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryRow {
    /// The pool's load balancer.
    pub load_balancer: String,
    /// The pool.
    pub pool: String,
    /// The entry: its address, or `name:` and its name; null where it has neither.
    pub entry: Option<String>,
    /// `None`, `Down` or `Up`; null where it is not known.
    pub admin_state: Option<&'static str>,
    /// Whose that is, unless it is `None`.
    pub owner: Option<Owner>,
    /// `intended`, `down` or `restored`, where the ledger has a line.
    pub stage: Option<&'static str>,
    /// Since when the ledger says so.
    pub since: Option<Timestamp>,
    /// It is not yet as it is wished.
    pub pending: bool,
    /// What it is to become, where it is pending.
    pub becomes: Option<&'static str>,
}

/// One load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerRow {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Whether ARM is busy with it, so that nothing is written now.
    pub busy: bool,
    /// The pools that rules use.
    pub pools: Vec<PoolRow>,
    /// The others. Nobody is taken out of them; entries of theirs that are on record are their Nodes'.
    pub not_considered: Vec<String>,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRow {
    /// Its name.
    pub name: String,
    /// Entries.
    pub entries: usize,
    /// Entries that are Down, whoever set them.
    pub down: usize,
    /// Entries whose Node wishes them Down.
    pub desired_down: usize,
    /// Entries that are Down and belong to no Node, which are left alone.
    pub down_without_node: Vec<String>,
    /// The rules that use it.
    pub rules: Vec<RuleRow>,
}

/// One load-balancing rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleRow {
    /// Its name.
    pub name: String,
    /// How it asks; null without a probe, and then Down has no effect.
    pub probe: Option<ProbeRow>,
    /// Whom it asks.
    pub reaches: Reaches,
}

/// How a rule asks whether a member is well.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeRow {
    /// `Http`, `Https` or `Tcp`.
    pub protocol: String,
    /// Where.
    pub port: u16,
    /// What for, unless by TCP.
    pub path: Option<String>,
}
