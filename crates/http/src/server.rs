//! The listener loop: bind, accept, limit, serve, close. It serves every port of headgate and the probe socket.
//!
//! Invariants: binding is retried until it succeeds, unless the first failure is to be final. A peer that sends half
//! a request, sends nothing or reads nothing is disconnected after a time limit. At the connection limit the
//! connection that has waited longest is closed, so that a new probe is always served. A listener that closes steers
//! new connections to another process on the same port before it stops to accept. The router decides what is
//! answered.

mod activity;
mod bind;
mod connection;
mod connection_limit;
mod connections;
mod metrics;
pub mod proxy_protocol;
mod serve;
mod steer;

pub use bind::{BindState, Binder, bind, bind_exclusive, bind_single_family, log_on, raise_open_file_limit};
pub use connection::CloseWithoutAnswer;
pub use connection_limit::ConnectionLimit;
pub use connections::Limits;
pub use metrics::Metrics;
pub use proxy_protocol::ProxyProtocol;
pub use serve::{Listener, ServeError, serve, serve_with_limit};
pub use steer::other_process_ended;
