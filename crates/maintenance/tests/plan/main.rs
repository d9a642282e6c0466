//! The plan, carried out on a cluster that is a value: nodes, pods, maintenances and Evacuations change by the plan's actions only.

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

mod automatic;
mod concurrency;
mod conditions;
mod deadlines;
mod end;
mod gate;
mod model;
mod properties;
mod undecodable;
mod vectors;
mod world;
