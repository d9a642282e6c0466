//! How the Kubernetes API is reached: the connection, watches with pauses after errors, and events for people.
//!
//! Whose objects are watched, and what is made of them, is for others to say.

pub mod api_server;
mod events;
mod pauses;
mod reason;

pub use events::{ClusterEventRecorder, NodeEventRecorder, NodeReference, ServiceReference, WarningEvent};
pub use pauses::{Pauses, is_answer, pausing};
pub use reason::{EXPIRED, REASONS as WATCH_ERROR_REASONS, reason as watch_error_reason};
