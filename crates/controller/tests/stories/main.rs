//! The admin-state controller on the ARM emulator, with a fake Kubernetes API and a real one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed precondition fails the test"
)]

mod assumptions;
mod bad_input;
mod cloud_controller_manager;
mod contested;
mod etcd_restore;
mod fault_points;
mod giving_up;
mod guard;
mod guard_signals;
mod held_deletions;
mod ignored_writes;
mod invariants;
mod large_clusters;
mod ledger_loss;
mod ledger_proof;
mod local_pools;
mod local_rules;
mod marker;
mod matchers;
mod one_writer;
mod operation_end;
mod other_nodes;
mod own_signal;
mod preempt_events;
mod random;
mod random_signals;
mod rows;
mod spans;
mod stale_nodes;
mod traffic;
mod undecodable;
mod world;
