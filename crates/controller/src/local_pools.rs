//! Backend pools of Local Services.
//!
//! With several Standard load balancers, a Service with `externalTrafficPolicy: Local` has backend pools of its own. Their
//! members are the nodes that run its endpoints. This module computes those members and decides when a pool is updated,
//! when an update is tried again, and what is reported about it. What is written is sent by the one writer of each load balancer, in
//! `pool`.
//!
//! `controller` watches, takes the shared Lease and records events. Everything else is pure. Invariants: time is a parameter; nothing
//! waits, reads a clock or sends a request; the same inputs give the same outputs.
//!
//! Source: cloud-provider-azure's local service backend pool updater, the design of its bounded retry, and its
//! desired-state operations (pull requests 10417, 10635 and 10730).

mod coexistence;
mod controller;
mod counters;
mod difference;
mod event;
mod failure;
#[cfg(test)]
pub(crate) mod fixtures;
mod index;
mod joined;
mod merge;
mod names;
mod nodes;
mod operation;
mod placement;
mod queue;
mod schedule;
mod selection;
mod settings;
mod settle;
mod updater;

pub use coexistence::{LocalPoolsMode, PreConfigured};
pub(crate) use controller::{Freshness, MemberSource, Members, Reporter, ServiceFeed, Ticks, watch_services};
pub use controller::{Metrics, QueuedUpdate, SharedUpdater, apply_nodes};
pub use counters::{Counters, QueueStatus};
pub use difference::{Entry, EntryAddress, MemberDifference, MemberRejection, compare};
pub use event::{EventReason, ServiceEvent};
pub use failure::Failure;
pub(crate) use joined::join_members;
pub use merge::{AddedMember, MemberEdit, Merged, merge};
pub(crate) use names::IPV6_SUFFIX;
pub use names::{base_name, is_rule_of, pool_name};
pub use nodes::{Node, NodeIndex};
pub use operation::{DesiredMember, DesiredMembers, Operation, OperationKey, PoolKey};
pub use placement::{Placement, PlacementSkip, PoolUnavailable, ServicePool, place};
pub use queue::OperationQueue;
pub use selection::{MemberSelection, MemberSkip, MemberSkipReason};
pub use settings::LocalPoolsTarget;
pub use settle::{Settlement, UpdateOutcome, settle};
pub use updater::{PoolStatus, ServiceStatus, Updater, UpdaterSettings};
