//! The rules of the updater: the tests of the retry design, those of cloud-provider-azure that
//! apply to desired-state operations, and properties that hold for every sequence of events and faults.

#![allow(clippy::unwrap_used, reason = "the helpers are outside test functions")]

mod coexistence;
mod desired_state;
mod properties;
mod queue;
mod retry;
mod world;
