//! The world on one machine, to try headgate out and to test it: a real control plane, nodes, and one
//! real agent a node.
//!
//! Everything it starts, it owns: see [`process`].

pub mod agents;
pub mod assets;
pub mod certificates;
pub mod control_plane;
pub mod nodes;
pub mod process;
