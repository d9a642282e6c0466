//! Counts the established connections to load balancers' Services that pass through this node.
//!
//! The kernel's connection table (conntrack) has every flow that kube-proxy's rules forward, whichever node its endpoint is on.
//! `destinations` says what belongs to which Service, `flow` which states count, `exclusions` whose connections do not;
//! `counter` reads the table through ctnetlink and counts, and `interval` says when to count again. `data_plane` says when a zero means
//! nothing because packets bypass the table. Watching Services, deciding when to count and waiting for zero is left to the caller.
//!
//! An established connection whose client vanished without a word stays in the table until the kernel's timeout (kube-proxy sets 24 h),
//! and counts: the table cannot tell it from a silent one. So whatever waits for zero needs a bound.

mod ages;
mod counter;
mod data_plane;
mod decode;
mod destinations;
mod exclusions;
mod flow;
mod interval;
mod plan;
mod request;
#[cfg(test)]
mod samples;
mod services;
mod table;

pub use counter::{Count, Counter, Flows};
pub use data_plane::{Bypass, NodeNetwork};
pub use destinations::{Destinations, MAX_DESTINATIONS, NotCountable, Reason};
pub use exclusions::{AZURE_PROBES, ExcludedSources, Prefix, PrefixError};
pub use flow::{Destination, Protocol};
pub use interval::Interval;
pub use services::{Ingress, Service, ServiceName, ServicePort};
pub use table::ReadError;
