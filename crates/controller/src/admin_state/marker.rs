//! The marker: the Node condition `headgate.dev/OutOfLoadBalancers`, by which other tools wait until a node has left its load balancers.
//!
//! Invariants: the condition is `True` only while the Node has a signal and every managed pool was read with the node `Down` or without
//! it, from reads after the signal and lists of the last 45 s. It follows from the present state alone, so a new leader writes it without a
//! memory, and a condition that someone else changed is written again. A Node that has neither a signal nor the condition is never
//! written. A change of the status costs one write; what else changes waits for the next confirmation. Each write needs a permit of the
//! term and names the Node's UID.
//!
//! [`evaluate`] decides, [`MarkerWriter`] writes. That a condition becomes `Unknown` when no leader confirms it is left to the agent
//! (`headgate_node::expire_marker`).

mod evaluation;
mod writer;

pub(super) use evaluation::Markers;
pub(super) use evaluation::{MarkerInputs, evaluate};
pub use writer::{MarkerMetrics, MarkerWriter};
