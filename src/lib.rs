//! headgate stops load-balancer traffic to a Kubernetes node before the node goes away, and restores it when the node
//! returns.
//!
//! This is the top crate of the workspace: the command line, the settings, and the composition of the crates below
//! `crates/` into an agent. `tests/integration/layering.rs` has the table of which crate and module may use which;
//! docs/architecture.md explains it. Decisions are pure functions over plain data with time as a parameter; the code
//! around them does the I/O.

pub mod agent;
mod agent_status;
mod api_error;
pub mod cli;
pub mod config;
pub mod drain;
pub mod preview;
mod readable_objects;
pub mod status;
pub mod uninstall;
pub mod why;
