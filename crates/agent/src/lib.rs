//! What an agent does on its node: it watches its Node, answers probes, reads eviction notices, counts connections and tells people.
//!
//! What a Node's fields mean is decided in `headgate_core::node`; the tasks are put together by the program.

pub mod connections;
pub mod health;
pub mod notify;
pub mod own_node;
pub mod spot;
