//! Admin states: the leader's work on the ARM emulator, with the Kubernetes API made up and real.

mod journey;
pub(crate) mod world;
