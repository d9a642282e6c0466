//! Per-Service health: whether this node has a ready endpoint of a Service with
//! `externalTrafficPolicy: Local`, as kube-proxy's `service_health` says it.
//!
//! A pure index turns the events of two watches into a table; the answers are made from the latest table
//! at each request. They say whether the node is good for *this* Service: the proxy's health counts,
//! the node's taints do not, so that a Service all of whose endpoints are on draining nodes stays up.
//! Served at a path of the health port, or on the Services' own node ports where nobody else opens them.

mod answer;
mod cidr;
mod events;
mod index;
mod metrics;
mod object;
mod per_family;
mod ports;
mod routes;
mod sockets;
mod state;
mod watch;

pub use answer::{ServiceAnswer, answer};
pub use cidr::Cidr;
pub use events::tell_failures;
pub use index::{Index, Served, Table};
pub use metrics::{Metrics, Resource};
pub use object::{LocalService, ObjectKey, SlimService, SlimSlice};
pub use per_family::PerFamily;
pub use ports::NodePorts;
pub use routes::Routes;
pub use sockets::{Sockets, SystemSockets};
pub use state::{Failure, PortKey, Ports};
pub use watch::{Outlet, run as watch};
