//! Service health: whether this node has a ready endpoint of a Service with `externalTrafficPolicy: Local`, as
//! kube-proxy's `service_health` answers it.
//!
//! A pure index turns the events of two watches into a table, and each request is answered from the latest table. The
//! answer is about *this* Service: kube-proxy's health counts, and the node's signals count while another node serves it
//! (`drain`), so that a Service whose endpoints are all on draining nodes stays available. The answers are served at a path of
//! the health port, or on the Services' own node ports where no other process opens them.

mod drain;
mod drain_reader;
mod index;
mod kept_objects;
mod metrics;
mod port_events;
mod ports;
mod service_answer;
mod service_drains;
mod service_routes;
mod sockets;
mod watch;

pub use drain::{DrainReads, HoldReason, ServiceDrain};
pub use drain_reader::DrainReader;
pub use index::{ServedService, ServiceIndex, ServiceTable};
pub use kept_objects::LocalService;
pub use metrics::{Metrics, WatchedResource};
pub use port_events::publish_port_failures;
pub use ports::{NodePortServer, PortFailure, PortKey, PortStates};
pub use service_drains::{KeptBecause, KeptServices, KeptServicesView, ServiceDrains};
pub use service_routes::ServiceRoutes;
pub use sockets::{Sockets, SystemSockets};
pub use watch::{WatchReporters, watch_services};
