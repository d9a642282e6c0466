//! The rules of the updater: the tests of the retry design, those of cloud-provider-azure that
//! apply to desired-state operations, and properties that hold for every sequence of events and faults.

mod coexistence;
mod desired_state;
mod properties;
mod queue;
mod retry;
mod settled;
mod world;
