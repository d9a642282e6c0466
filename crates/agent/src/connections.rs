//! Counts the established connections to load balancers' Services that pass through this node.
//!
//! The kernel's connection table (conntrack) has every flow that kube-proxy's rules forward, whichever node its endpoint is on.
//! `destinations` says what belongs to which Service, `flow` which states count, `exclusions` whose connections do not;
//! `counter` reads the table through ctnetlink and counts, and `interval` says when to count again. `data_plane` says when a zero means
//! nothing because packets bypass the table. `count` is one count from its order to its report, and needs `CAP_NET_ADMIN`. The agent has
//! no such right: `follow` orders counts through `exchange` while the node has a signal, and `drained` says what they mean together. What
//! waits for zero is left to the readers of the Node's condition.
//!
//! An established connection whose client vanished without a word stays in the table until the kernel's timeout (kube-proxy sets 24 h),
//! and counts: the table cannot tell it from a silent one. So whatever waits for zero needs a bound.

mod ages;
mod count;
mod counter;
mod data_plane;
mod decode;
mod destinations;
mod drained;
mod exchange;
mod exclusions;
mod flow;
mod follow;
mod interval;
mod metrics;
mod plan;
mod request;
#[cfg(test)]
mod samples;
mod services;
mod table;

pub use count::{ConnectionCount, CountOrder, NodeFacts, ServiceConnections};
pub use counter::{Count, Counter, Flows};
pub use data_plane::{Bypass, NodeNetwork};
pub use destinations::{Destinations, NotCountable, Reason};
pub use drained::{ConnectionsState, ConnectionsView};
pub use exchange::{CountExchange, CountReport, IssuedOrder, ORDER_PATH, REPORT_PATH};
pub use exclusions::{PrefixError, parse_prefix};
pub use flow::{Destination, Protocol};
pub use follow::{ConnectionsTask, cut_note, end_condition, kubernetes_address};
pub use interval::Interval;
pub use metrics::ConnectionMetrics;
pub use services::Service;
pub use table::ReadError;
