//! headgate stops load-balancer traffic to a Kubernetes node before the node goes away, and lets it
//! back when the node returns.
//!
//! The crate is a library and a binary of the same name. Every module directly below this one is a
//! *room*, named for what it is about; `tests/integration/rooms.rs` holds the table of which room may use which.
//! Decisions are pure functions over plain data with time as a parameter; what surrounds them feeds
//! them and carries out what they say.

pub mod agent;
pub mod cli;
pub mod config;
pub mod restore;
#[cfg(feature = "sandbox")]
pub mod sandbox;
pub mod status;
pub mod why;
