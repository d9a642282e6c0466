//! What every other crate speaks of, without requests of its own: Nodes and their signals, time, the values of settings, and what
//! operators see. Who asks the cluster, Azure or the node is left to the crates above.

pub mod clock;
mod lower_case;
pub mod node;
mod publish;
pub mod service;
pub mod settings;
pub mod telemetry;
pub mod throttle;

pub use lower_case::{lower_case, lower_case_chars};
pub use publish::{changed, publish_if_changed};
