//! Connects the updater with the cluster and with ARM.
//!
//! `nodes` gives the updater the Nodes, and `watch` feeds Services and EndpointSlices, also into the index of Services, by which the guard
//! counts the Nodes that serve a rule. `tick` makes updates due, `members` hands those of a load balancer to its planner, `reporter` and
//! `metrics` report. Which members a pool has and when it is written is decided by the rest of `local_pools`; what is written is sent by
//! the one writer of each load balancer, in `pool`.

mod members;
mod metrics;
mod nodes;
mod reporter;
mod tick;
mod watch;

pub(crate) use members::{MemberSource, Members};
pub use metrics::{Metrics, QueuedUpdate};
pub use nodes::apply_nodes;
pub(crate) use reporter::Reporter;
pub(crate) use tick::Ticks;
pub use watch::SharedUpdater;
pub(crate) use watch::{Freshness, ServiceFeed, watch_services};
