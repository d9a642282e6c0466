//! The one listener loop: bind, accept, limit, serve, close. Every port of headgate is served by it.
//!
//! What it keeps: an address that cannot be bound is tried again for ever (or fails hard, if asked to);
//! no peer holds a connection for long by sending half a request, nothing, or never reading; at the
//! cap the connection that has waited longest goes, so that fresh probes always get in; closing hands
//! new connections to another process on the same port before it stops accepting. What is answered is
//! the router's business.

mod activity;
mod bind;
mod connection;
mod connections;
mod crowd;
mod metrics;
pub mod proxy_protocol;
mod serve;
mod steer;

pub use bind::{BindState, Binder, bind, bind_alone, bind_one_family, raise_open_files};
pub use connection::CloseWithoutAnswer;
pub use connections::Limits;
pub use crowd::Crowd;
pub use metrics::Metrics;
pub use proxy_protocol::ProxyProtocol;
pub use serve::{Incoming, ServeError, UnixIncoming, serve, serve_among, told};
