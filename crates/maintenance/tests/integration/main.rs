//! The definitions and policies of the manifests on the real kube-apiserver.

#![allow(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::panic,
    clippy::similar_names,
    clippy::doc_markdown,
    clippy::struct_field_names,
    clippy::too_many_lines,
    reason = "tests: what fails here fails the test, and tables are long"
)]

mod campaign;
mod cluster;
mod evacuations;
#[path = "../stories/leader.rs"]
mod leader;
mod node_maintenances;
mod policies;
