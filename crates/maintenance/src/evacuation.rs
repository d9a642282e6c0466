//! Evacuations: who evacuates a pod, when the turn passes on, and what the Eviction API answers.

pub mod annotations;
pub mod daemon_set;
pub mod eviction;
pub mod state;
