//! headgate stops load-balancer traffic to a Kubernetes node before the node goes away, and lets it
//! back when the node returns.
//!
//! The top crate of the workspace: the command line, the settings, and the composition of the crates below `crates/` into
//! an agent. `tests/integration/layering.rs` holds the table of which crate and which module may use which;
//! docs/architecture.md explains it. Decisions are pure functions over plain data with time as a parameter; what
//! surrounds them feeds them and carries out what they say.

pub mod agent;
pub mod cli;
pub mod config;
pub mod status;
pub mod why;
