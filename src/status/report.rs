//! The report in the form of `-o json`. The names of the fields are a contract; docs/reference/api.md lists them.

use std::net::IpAddr;

use headgate_controller::admin_state::RecordedEvent;
use headgate_controller::local_pools::QueuedUpdate;
use headgate_controller::pool::ProbeTarget;
use headgate_kubernetes::leader::LeaderStatus;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::local_pools::LocalPoolRow;
use super::words::{Word, optional_word, word};
use crate::agent_status::{ConnectionsStatus, KeptServiceStatus};
use crate::why::MaintenanceRow;

mod build;

/// The whole report. Times are in UTC; `None` means unknown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusReport {
    /// The time of the snapshot.
    #[serde(rename = "askedAt")]
    pub taken_at: Timestamp,
    /// The leader, by its Lease; `None` if there is no Lease or it could not be read.
    pub leader: Option<LeaderStatus>,
    /// Why the leader's Lease could not be read.
    pub leader_error: Option<String>,
    /// `Enforce`, `Observe` or `Disabled`, by the given settings.
    #[serde(deserialize_with = "word")]
    pub mode: Word,
    /// `keep` or `restore`, by the given settings.
    #[serde(deserialize_with = "word")]
    pub foreign_down: Word,
    /// Why load balancers are unknown.
    pub azure_error: Option<String>,
    /// Why the ledger, and so the owner of a `Down`, is unknown.
    pub ledger_error: Option<String>,
    /// Why it is unknown which Nodes serve the rules of Local Services.
    pub services_error: Option<String>,
    /// `adminState.minimumInService`, by the given settings.
    pub minimum_in_service: String,
    /// The agents' health port, by the given settings.
    pub health_port: u16,
    /// Whether the probe of any rule targets headgate; `None` if the rules are unknown.
    pub probed_by_headgate: Option<bool>,
    /// The number of Nodes in the cluster; `nodes` may have fewer.
    pub nodes_total: usize,
    /// Which Nodes are in `nodes`.
    pub selection: Selection,
    /// The selected Nodes in the order of their names.
    pub nodes: Vec<NodeRow>,
    /// The load balancers of the cluster, and others that the ledger has entries of.
    pub load_balancers: Vec<LoadBalancerRow>,
    /// Other load balancers that the ledger has entries of and that cannot be read.
    pub unreadable_load_balancers: Vec<UnreadableRow>,
    /// Why some pool entries may belong to any Node.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unattributed: Vec<String>,
    /// Ledger entries whose pool entry was not found or belongs to no Node.
    pub unmatched_ledger: Vec<LedgerRow>,
    /// The pools of Local Services; empty if headgate does not update them.
    pub local_pools: Vec<LocalPoolRow>,
    /// Why the pools of Local Services are unknown.
    pub local_pools_error: Option<String>,
    /// The `NodeMaintenance`s, by name; where Nodes are named, those of these Nodes.
    pub maintenances: Vec<MaintenanceRow>,
    /// Why the `NodeMaintenance`s are unknown.
    pub maintenances_error: Option<String>,
    /// What only the leader knows; `None` in a report that was read without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_work: Option<LeaderWork>,
    /// The selected Nodes that the report lacks.
    #[serde(skip)]
    pub missing_nodes: Vec<String>,
    /// Whether the leader says that it has no load balancers.
    #[serde(skip)]
    pub has_no_load_balancers: bool,
    /// Whether the text has the rows of the nodes only.
    #[serde(skip)]
    pub no_headers: bool,
}

/// What only the leader knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaderWork {
    /// The version of its program.
    pub version: String,
    /// The Node that it runs on.
    pub node: String,
    /// When the last list of load balancers that succeeded was sent.
    pub listed_at: Option<Timestamp>,
    /// Why a newer list is missing.
    pub list_error: Option<String>,
    /// Until when ARM accepts no reads, if it throttles them.
    pub reads_throttled_until: Option<Timestamp>,
    /// Until when ARM accepts no writes, if it throttles them.
    pub writes_throttled_until: Option<Timestamp>,
    /// When the Nodes were known to be current last, if they are stale.
    pub nodes_stale_since: Option<Timestamp>,
    /// What it wrote, failed to write or held back last: its events on Nodes, the newest first.
    pub events: Vec<RecordedEvent>,
    /// Whether it updates pools of Local Services.
    pub updates_local_pools: bool,
    /// The first queued updates of Local Services' pools.
    pub queue: Vec<QueuedUpdate>,
}

/// Which Nodes a report contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Selection {
    /// All Nodes of the cluster.
    #[default]
    All,
    /// The Nodes with a signal, an admin state or a ledger entry.
    Notable,
    /// The Nodes that the command line names.
    Named,
}

/// The row of one Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    /// The name of the Node.
    pub name: String,
    /// The Node's first internal address.
    pub address: Option<IpAddr>,
    /// Whether kubelet reports Ready.
    pub ready: bool,
    /// The label that excludes the Node from load balancers.
    pub excluded: Option<String>,
    /// The signals of the Node object.
    pub signals: Vec<SignalRow>,
    /// The answer of the node's `/healthz`.
    pub verdict: VerdictRow,
    /// The condition `headgate.dev/OutOfLoadBalancers`, if the Node has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_load_balancers: Option<MarkerRow>,
    /// When the first of the signals counted, if the leader knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signalled_since: Option<Timestamp>,
    /// The condition `headgate.dev/ConnectionsDrained`, if the Node has it and the leader reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_drained: Option<MarkerRow>,
    /// Whether the Node has a signal but lacks that by which entries of its pools are found.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unidentified: bool,
    /// The Node's pool entries, in the order of load balancer and pool.
    pub entries: Vec<EntryRow>,
}

/// The condition `headgate.dev/OutOfLoadBalancers` of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MarkerRow {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A signal of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SignalRow {
    /// The signal's name, such as its taint key.
    pub name: String,
    /// Whether the signal counts for `/healthz`.
    pub health: bool,
    /// Whether the signal counts for admin states.
    pub admin_state: bool,
}

/// The answer of a node's `/healthz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VerdictRow {
    /// The status code; `None` if the agent does not serve `/healthz`.
    pub healthz: Option<u16>,
    /// Whether the agent answered; otherwise the code follows from the Node's signals.
    #[serde(rename = "asked")]
    pub answered: bool,
    /// The time of the last change, if the agent answered.
    pub since: Option<Timestamp>,
    /// Why the agent did not answer, or does not serve `/healthz`.
    pub why: Option<String>,
    /// The connections that pass through the node, if the agent answered and counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionsStatus>,
    /// The Services to which load balancers keep sending although the node has signals, if the agent answered.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub kept_services: Vec<KeptServiceStatus>,
}

/// Who set an admin state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Owner {
    /// headgate, according to the ledger.
    Headgate,
    /// Another writer; headgate leaves it alone.
    Foreign,
    /// Unknown, because the ledger could not be read.
    Unknown,
}

/// The row of a ledger entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerRow {
    /// The name of the pool's load balancer.
    pub load_balancer: String,
    /// The name of the pool.
    pub pool: String,
    /// The address of the pool entry, or `name:` and its name.
    pub entry: String,
    /// `intended`, `down` or `restored`.
    #[serde(deserialize_with = "word")]
    pub stage: Word,
    /// The start of the stage.
    pub since: Timestamp,
    /// The admin state of the pool entry, if it was found.
    #[serde(default, deserialize_with = "optional_word")]
    pub admin_state: Option<Word>,
    /// Why it is not known which Node the pool entry belongs to.
    #[serde(default)]
    pub unreadable: Option<String>,
}

/// The row of a pool entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryRow {
    /// The name of the pool's load balancer.
    pub load_balancer: String,
    /// The name of the pool.
    pub pool: String,
    /// The address of the entry, or `name:` and its name; `None` if it has neither.
    pub entry: Option<String>,
    /// `None`, `Down` or `Up`, if it is known.
    #[serde(default, deserialize_with = "optional_word")]
    pub admin_state: Option<Word>,
    /// Who set the admin state, unless it is `None`.
    pub owner: Option<Owner>,
    /// `intended`, `down` or `restored`, if the ledger has the entry.
    #[serde(default, deserialize_with = "optional_word")]
    pub stage: Option<Word>,
    /// The start of the ledger's stage.
    pub since: Option<Timestamp>,
    /// Whether the entry is not in its target state yet.
    pub pending: bool,
    /// The target state, if it is pending.
    #[serde(default, deserialize_with = "optional_word")]
    pub becomes: Option<Word>,
    /// Whether the guard keeps the entry in service although its Node has a signal.
    pub held_back: bool,
    /// Whether it does only until `adminState.maxNewDown` lets more entries become `Down`.
    pub waiting: bool,
    /// The Local Services, as `NAMESPACE/NAME`, for whose rules it does.
    pub held_for: Vec<String>,
    /// Why it does, in a phrase.
    #[serde(skip)]
    pub held_reason: Option<String>,
}

/// The row of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoadBalancerRow {
    /// The name of the load balancer.
    pub name: String,
    /// The ARM id of the load balancer.
    pub id: String,
    /// Whether the load balancer is the cluster's, by the given settings. Another one is here because the ledger has entries of
    /// it.
    pub configured: bool,
    /// Whether ARM is busy with the load balancer, so that headgate does not write it.
    pub busy: bool,
    /// The pools that a load-balancing rule uses; empty if the load balancer is not configured.
    pub pools: Vec<PoolRow>,
    /// The names of the other pools. headgate sets nothing `Down` there; entries that are in the ledger appear with
    /// their Nodes.
    pub not_considered: Vec<String>,
}

/// A load balancer that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnreadableRow {
    /// The ARM id of the load balancer, in lower case.
    pub id: String,
    /// Why it cannot be read.
    pub why: String,
}

/// The row of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolRow {
    /// The name of the pool.
    pub name: String,
    /// The number of entries.
    pub entries: usize,
    /// The number of entries that are `Down`, by any writer.
    pub down: usize,
    /// The number of entries whose target state is `Down`.
    pub desired_down: usize,
    /// The number of entries that `adminState.minimumInService` keeps in service although their Nodes have signals.
    pub held_back: usize,
    /// The entries that are `Down` and belong to no Node; headgate leaves them alone.
    pub down_without_node: Vec<String>,
    /// The load-balancing rules that use the pool.
    pub rules: Vec<RuleRow>,
}

/// The row of a load-balancing rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleRow {
    /// The name of the rule.
    pub name: String,
    /// The rule's probe; without one, `Down` has no effect.
    pub probe: Option<ProbeRow>,
    /// What the probe targets.
    #[serde(rename = "reaches")]
    pub target: ProbeTarget,
}

/// The probe of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProbeRow {
    /// `Http`, `Https` or `Tcp`.
    pub protocol: String,
    /// The port on the node.
    pub port: u16,
    /// The request path of an HTTP probe.
    pub path: Option<String>,
}
