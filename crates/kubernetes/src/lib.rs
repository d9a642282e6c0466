//! Access to the Kubernetes API: the connection, watches that continue after errors, events, and the one writer of Nodes.
//!
//! Invariant: one request of a caller is one request to the API server; nothing here retries, except that a watch is
//! started again, that Services are listed without a selector that the API server does not know, and that [`NodeWriter`] writes until a
//! Node is as it should be. Which objects are watched, and what follows from them, is left to the other crates.

pub mod api_server;
mod decoded;
mod events;
pub mod leader;
mod load_balancer_services;
mod node_writer;
mod policies;
mod store;
mod term_stores;
mod watch;

pub use decoded::{Decoded, Undecodable, split_list};
pub use events::{
    AGENT, CONTROLLER, EventKind, EventObserver, EventQueue, EventSink, ObservedEvent, node_reference, pod_reference,
    service_reference,
};
pub use load_balancer_services::{
    LOAD_BALANCER_SERVICES, ServiceStore, load_balancer_services, service_store, with_selection_fallback,
};
pub use node_writer::{
    Edited, FieldIntents, MarkerState, NodeEdit, NodeField, NodeIntent, NodeIntents, NodeWriteMetrics, NodeWriter,
    Shown, condition_intent, expire_marker,
};
pub use policies::{Canary, missing_policies};
pub use store::{NodeStore, ObjectStore, Objects, Store};
pub use term_stores::{TermAccess, TermStores};
pub use watch::{
    UndecodableObjects, WatchErrorCounter, WatchErrorReason, WatchFailure, WatchReporter, WatchStream,
    register_undecodable_objects, watch_events,
};
