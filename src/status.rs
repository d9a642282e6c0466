//! `headgate status`: nodes and pools in one report. For each node its signals, the answer of its probe, and the
//! admin states of its pool entries with their owner; also who leads, and whether any probe targets headgate.
//!
//! It writes nothing. The [`StatusReport`] is a pure function of a [`ClusterSnapshot`]; entry status and target state
//! come from `admin_state`'s plan. Without Azure the report has the reason, and shows what Kubernetes alone shows.

mod agents;
mod from_leader;
mod leader_view;
mod local_pools;
mod maintenances_text;
mod nodes;
mod order;
pub(crate) mod report;
mod settled;
mod snapshot;
mod text;
mod text_format;
mod waits;
mod words;

pub(crate) use agents::query_agents;
pub(crate) use from_leader::{NO_LOAD_BALANCERS, Nodes as LeaderNodes, fetch_from_leader};
pub(crate) use leader_view::LeaderInputs;
pub(crate) use local_pools::list;
pub(crate) use local_pools::{LocalPoolRow, LocalPoolsSnapshot, explain_service};
pub(crate) use nodes::{list as list_nodes, list_names as list_node_names};
pub(crate) use order::sort_by_field;
pub(crate) use report::StatusReport;
pub(crate) use snapshot::{load_balancers as read_load_balancers, read_leader, take_snapshot};
#[cfg(test)]
pub(crate) use text::tests::report as example_report;
pub(crate) use text_format::{counted, format_age, format_columns, format_rows};
pub(crate) use words::{Word, word};
