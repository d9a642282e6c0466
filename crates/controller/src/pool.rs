//! Backend pools: which there are, whose their members are, and the one writer of each load balancer.
//!
//! Invariants: a pool is written as the whole document that was read, over the state it was read in, and only
//! while nobody else is busy with its load balancer; an entry that matches no Node is nobody's to change here; one
//! task writes a load balancer, and nobody else in this process. What is to be changed is for an [`Editor`] to say:
//! admin states are `admin_state`'s matter.
//!
//! `cluster` is the Nodes as pools see them, `inventory` the load balancers as documents say, `member` how the two
//! are matched, `writer` the task.

mod cluster;
mod edit;
mod interfaces;
mod inventory;
mod listing;
mod member;
mod object;
mod pauses;
mod questions;
mod trouble;
mod writer;

pub use cluster::{Cluster, ClusterNode, Taint};
pub use edit::{Change, PoolEdit};
pub use interfaces::{Interfaces, Unread};
pub use inventory::{Managed, Member, PoolView, Probe, Rule, View};
pub use listing::{Listing, Scope, Wanted, follow as follow_listing};
pub use member::{Claim, Key};
pub use object::ClusterNodeObject;
pub use trouble::Trouble;
pub use writer::{Editor, Labels, NotRecorded, Outcome, Writer};
