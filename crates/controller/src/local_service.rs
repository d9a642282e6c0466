//! Connects the updater of Local Services' pools (`local_pools`) with the cluster and with ARM.
//!
//! `nodes` gives the updater the Nodes, `failure` converts ARM's errors,
//! and `watch` feeds Services and EndpointSlices, also into `service_index`, by which the guard counts the Nodes that serve a rule. `tick`
//! makes updates due, `members` hands those of a load balancer to its planner, `joined` brings the admin states of such a PUT in line with
//! its members, `reporter` and `metrics` report. Which members a pool has and when it is written is decided in `local_pools`; what is
//! written is sent by the one writer of each load balancer, in `pool`.

mod failure;
mod joined;
mod members;
mod metrics;
mod nodes;
mod reporter;
mod service_index;
mod settings;
mod tick;
mod watch;

pub(crate) use joined::join_members;
pub(crate) use members::{MemberSource, Members};
pub use metrics::{Metrics, QueuedUpdate};
pub use nodes::apply_nodes;
pub(crate) use reporter::Reporter;
pub use service_index::{LocalService, ServiceIndex, Unknown};
pub use settings::LocalPoolsTarget;
pub(crate) use tick::Ticks;
pub use watch::SharedUpdater;
pub(crate) use watch::{Freshness, ServiceFeed, watch_services};
