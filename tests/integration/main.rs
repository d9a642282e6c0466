//! The integration tests: one binary, so that there is one link and one control plane.

mod conformance;
mod generated;
mod listener;
mod rooms;
