//! Drills: what happens to real TCP connections through a layer-4 load balancer while nodes go away.
//!
//! Pure parts decide: probes, rotation, endpoints, timelines, strategies, results. The shell around them moves packets:
//! network namespaces, nftables, sockets. Only what a cloud's load balancer decides is modelled; connections, NAT and
//! loss are the kernel's.

pub mod azure;
pub mod clients;
pub mod cluster;
pub mod conditions;
pub mod control_plane;
pub mod controller;
pub mod draining;
pub mod drill;
pub mod endpoints;
pub mod files;
mod http;
pub mod lifetimes;
pub mod machine;
pub mod network;
pub mod operation;
pub mod pod;
pub mod probe;
pub mod progress;
pub mod report;
pub mod requirement;
pub mod result;
pub mod rotation;
pub mod scenario;
pub mod series;
#[cfg(test)]
mod simulation;
pub mod speed;
pub mod spread;
pub mod strategy;
pub mod tunnel;
pub mod world;

pub use http::Probe;
