//! The rows of the design of cloud-provider-azure ("Proactive Traffic Redirection with Azure Load Balancer Admin State"), each with
//! a test of its own, in paused time and in one process. The tests start from the draining taint; the design also derives
//! it from a `PreemptScheduled` event.

pub(super) mod cluster;
mod deletion;
mod edge_cases;
mod events;
mod interfaces;
pub(crate) mod lease;
mod lifecycle;
mod ownership;
mod replaced;
mod risks;
