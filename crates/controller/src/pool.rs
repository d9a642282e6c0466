//! Backend pools: which exist, which Node each entry belongs to, and the one writer of each load balancer.
//!
//! Invariants (docs/dev/decisions.md 9, 31): a pool is written as the whole document that was read, with the etag of that read, and
//! only while ARM is not busy with its load balancer. An entry that matches no Node is never written. One task writes a
//! load balancer.
//!
//! A [`Planner`] decides what changes: `admin_state` has the one that joins admin states and due updates of members, pool by pool. The
//! writer sends one PUT for each [`PoolEdit`], whatever it changes.
//!
//! `view` is what a load balancer's document says, `pool_entry` matches the two, `listing` lists
//! the load balancers, `by_id` reads single ones, `load_balancer_read` also those that are too large, `writer` writes one of them.

mod by_id;
mod edit;
mod entry_owner;
mod fingerprint;
#[cfg(test)]
pub(crate) mod fixtures;
mod interface_cache;
mod interface_lookups;
mod listing;
mod load_balancer_read;
mod pool_entry;
mod probe_target;
mod retry;
mod view;
mod writer;

pub(crate) use by_id::read_by_id;
pub use edit::{AdminStateChange, AppliedEdit, MemberChange, PoolEdit};
pub use entry_owner::EntryOwner;
pub use fingerprint::{Fingerprint, FingerprintSet};
pub use headgate_agent::spot::read_node;
pub use headgate_core::node::{Claimed, Node as ClusterNode, NodeIndex, Taint};
pub use interface_cache::{InterfaceCache, UnreadablePool};
pub(crate) use interface_lookups::look_up_interfaces;
pub use listing::{ListOutage, ListRequest, ListScope, Listing, ManagedLoadBalancers, RecordedPools, list_on_request};
pub use pool_entry::{EntryKey, MachineId, NodeMatcher, PoolEntry};
pub use probe_target::ProbeTarget;
pub use retry::LastError;
pub use view::{LoadBalancerView, PoolView, Probe, Rule};
pub use writer::Observation;
pub(crate) use writer::{
    HANDOVER_ANSWER_TIMEOUT, HANDOVER_WRITE_WINDOW, HOLD_UNUSED, IntentNotRecorded, MAX_READ_LAG, Outcome, Planner,
    PoolWriter, WriterLabels,
};
