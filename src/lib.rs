//! headgate stops load-balancer traffic to a Kubernetes node before the node goes away, and restores it when the node
//! returns.
//!
//! This is the top crate of the product: the command line, the settings, and the composition of the crates below
//! `crates/` into an agent. docs/dev/architecture.md has the table of the crates. Decisions are
//! pure functions over plain data with time as a parameter; the code around them does the I/O.

pub mod agent;
mod agent_status;
mod api_error;
mod check;
pub mod cli;
pub mod config;
mod connections;
mod drain;
mod failure;
mod pods;
mod preview;
pub mod readable_objects;
mod report;
mod status;
mod sysdump;
mod uninstall;
pub mod verify;
mod why;
