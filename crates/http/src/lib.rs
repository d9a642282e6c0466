//! HTTP on the node: the listener loop that serves every port, and one bounded GET of a server next door.
//!
//! What is answered is the router's business; how Azure and the API server are asked is that of other crates.

pub mod body;
pub mod fetch;
pub mod server;
