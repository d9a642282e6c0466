//! The maintenance controllers in a term of a real elector, on the fake API server and in paused time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::doc_markdown,
    clippy::too_many_lines,
    reason = "a failed precondition fails the test, and a story is as long as what happens"
)]

mod automatic;
mod blackholes;
mod drains;
mod ends;
mod evacuators;
mod fault_points;
mod leader;
mod probes;
mod rollouts;
mod spans;
mod undecodable;
mod world;
