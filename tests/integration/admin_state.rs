//! Admin states: the leader's work on the ARM emulator, with the Kubernetes API made up and real.

mod bad_input;
mod journey;
mod rival;
mod rows;
mod stories;
mod truth;
pub(crate) mod world;
mod writers;
