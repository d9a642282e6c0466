//! Admin states: from the signals of all Nodes to `Down` on their entries in every pool, and back.
//!
//! Invariants (docs/dev/decisions.md 1, 10, 30): target states are computed from everything known, never from one event. No entry is set
//! `Down` without a signal on its Node. No `Down` is removed unless the ledger has it as headgate's, and none before every Node
//! has been listed. An intent is in the ledger before it is written. Entries that belong to no Node are never written.
//!
//! `target_states`, `plan`, `guard`, `ledger`, `last_reads`, `transitions`, `traffic` and `handover` decide; `nodes`, `planner`, `hold_intents`, `controller`,
//! `recorded` and `work` carry out; `restore_work` is the work of a `restore` term, and `sole_writer` makes `headgate verify` the one
//! writer. `local_pools` runs the updater of Local Services' pools beside it. `pool` writes the pools, `headgate_kubernetes::leader` decides
//! who may.

#[cfg(test)]
mod autoscaler_sequences;
mod brake;
mod cluster_target;
mod contested;
mod controller;
#[cfg(test)]
mod fixtures;
mod guard;
mod handover;
mod hold_intents;
mod holds;
mod last_reads;
mod ledger;
mod list_outage;
mod local_pools;
mod marker;
mod metrics;
mod nodes;
mod plan;
mod planner;
#[cfg(test)]
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "parts of a state are passed alike, whatever their size"
)]
mod protocol;
mod publish_limit;
mod recorded;
mod restore_work;
mod rule_guard;
mod rule_holds;
mod settings;
mod sole_writer;
mod target_states;
mod traffic;
mod transitions;
mod view;
mod work;

pub use cluster_target::{ClusterConnection, ClusterTarget, TargetSource};
pub use guard::{GuardInputs, GuardSettings, HeldEntries};
pub use ledger::{
    Ledger, LedgerChange, LedgerEntry, LedgerError, LedgerStage, Observation, ObservedState, PoolLedger,
    read as read_ledger, read_of_verify as read_ledger_of_verify,
};
pub use metrics::Metrics;
pub use plan::{EntryStatus, Plan, PlanInputs, Policy, PoolCounts, ProbeCoverage, plan};
pub use recorded::read_recorded_once;
pub(crate) use restore_work::restore;
pub use restore_work::{OwnedEntry, RestoreError, RestoreOutcome};
pub use rule_guard::HeldFor;
pub use settings::{AdminStateMode, ForeignDown, LIST_FAILURE_TIMEOUT, STALE_NODES_TIMEOUT};
pub use sole_writer::{SoleWriter, SoleWriterError, SoleWriterRequest, WriteTurn, run_as_sole_writer};
pub use target_states::{TargetState, TargetStates};
pub use view::{RecordedEvent, WorkSnapshot, WorkView};
pub use work::{WorkContext, WorkError, run};
