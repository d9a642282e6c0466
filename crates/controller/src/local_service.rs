//! Connects the updater of Local Services' pools (`headgate-local-pools`) with the cluster and with ARM.
//!
//! `objects` and `observation` convert what is watched and read into the updater's inputs, `failure` converts ARM's errors,
//! and `watch` feeds Services and EndpointSlices. Which members a pool has and when it is written is decided in
//! `headgate-local-pools`; what is written is sent by the one writer of each load balancer, in `pool`.

mod failure;
mod objects;
mod observation;
mod watch;

pub use failure::batch_outcome;
pub use objects::{SlimEndpointSlice, SlimService, apply_nodes};
pub use observation::convert_load_balancer;
pub use watch::{SharedUpdater, WatchReporters, watch_services};
