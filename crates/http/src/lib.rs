//! HTTP: the listener loop that serves every port, the client and the proxies that it uses, and bounded reads of bodies.
//!
//! Routers decide what a listener answers. What is sent to Azure belongs to `headgate-azure`; requests to the API server have
//! a client of their own in `headgate-kubernetes`, which kube makes.

pub mod body;
pub mod client;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod proxies;
pub mod server;
