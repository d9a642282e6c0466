//! HTTP on the node: the listener loop that serves every port, bounded reads of bodies, and a client for one bounded GET.
//!
//! Routers decide what a listener answers. Requests to Azure and to the API server belong to `headgate-azure` and
//! `headgate-kubernetes`.

pub mod body;
pub mod bounded_client;
pub mod server;
