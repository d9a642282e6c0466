//! Access to the Kubernetes API: the connection, watches that continue after errors, and events.
//!
//! Invariant: one request of a caller is one request to the API server; nothing here retries, except that a watch is
//! started again. Which objects are watched, and what follows from them, is left to the other crates.

pub mod api_server;
mod events;
mod pauses;
mod reason;
mod watch;

pub use events::{ClusterEventRecorder, NodeEventRecorder, NodeReference, ServiceReference, WarningEvent};
pub use pauses::{Pauses, is_answer, pausing};
pub use reason::{EXPIRED, REASONS as WATCH_ERROR_REASONS, reason as watch_error_reason};
pub use watch::{
    WatchErrorCounter, WatchErrorReason, WatchFailure, WatchReporter, WatchStream, watch_events, watch_object,
};
