//! Connects the updater with the cluster and with the planner of each load balancer.
//!
//! `nodes` gives the updater the Nodes, and `watch` feeds Services and EndpointSlices, also into the index of Services, which the guard,
//! markers and maintenances need where no pools are updated, too. `tick` makes updates due, `members` hands those of a load balancer to
//! its planner, `reporter` and `metrics` report. Which members a pool has and when it is written is decided by the rest of `local_pools`.

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
