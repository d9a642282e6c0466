//! The leader's controllers: the work of a term.
//!
//! `pool` reads and writes backend pools. `admin_state` decides what changes in them. `restore` sets everything that headgate set `Down`
//! back to `None`, in a term of its own (`own_term`). `local_pools` updates the members of Local Services' pools, and `service_index` is
//! the index of the Nodes that serve each Service. `preempt_events` turns eviction notices in Node events into taints. `other_nodes`
//! refuses features that must not write other Nodes. Election and locks, ARM and the API server are left to other crates.

pub mod admin_state;
pub mod local_pools;
pub mod other_nodes;
mod own_term;
pub mod pool;
pub mod preempt_events;
pub mod restore;
pub mod service_index;
