//! Backend pools of Local Services, without I/O.
//!
//! With several Standard load balancers, a Service with `externalTrafficPolicy: Local` has backend pools of its own. Their
//! members are the nodes that run its endpoints. This module computes those members and decides when a pool is updated,
//! when an update is tried again, and what is reported about it.
//!
//! Invariants: time is a parameter; nothing here waits, reads a clock or sends a request; the same inputs give the same
//! outputs. It knows neither Kubernetes' client nor ARM's: its inputs are plain values, and failures
//! arrive as [`Failure`]. Watching, reading, writing and recording events are the caller's.
//!
//! Source: cloud-provider-azure's local service backend pool updater, the design of its bounded retry, and its
//! desired-state operations (pull requests 10417, 10635 and 10730).

mod coexistence;
mod counters;
mod difference;
mod event;
mod failure;
#[cfg(test)]
pub(crate) mod fixtures;
mod index;
mod merge;
mod names;
mod nodes;
mod operation;
mod placement;
mod queue;
mod schedule;
mod selection;
mod settle;
mod updater;

pub use coexistence::{LocalServicePools, PreConfigured};
pub use counters::{Counters, QueueStatus};
pub use difference::{Entry, EntryAddress, MemberDifference, MemberRejection, compare};
pub use event::{EventReason, ServiceEvent};
pub use failure::Failure;
pub use merge::{AddedMember, MemberEdit, Merged, merge};
pub use names::{base_name, is_rule_of, pool_name};
pub use nodes::{Node, NodeIndex};
pub use operation::{DesiredMember, DesiredMembers, Operation, OperationKey, PoolKey};
pub use placement::{Placement, PlacementSkip, PoolUnavailable, ServicePool, place};
pub use queue::OperationQueue;
pub(crate) use schedule::TickSchedule;
pub use selection::{MemberSelection, MemberSkip, MemberSkipReason};
pub use settle::{Settlement, UpdateOutcome, settle};
pub use updater::{PoolStatus, ServiceStatus, Updater, UpdaterSettings};
