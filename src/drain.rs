//! `headgate drain`: creates a `NodeMaintenance` and follows it until its nodes are drained. `headgate undrain` ends it.
//!
//! The drain itself is the work of the leader's maintenance controllers; it goes on without this command. `manifest` makes the
//! object from nodes and a plan file, `selector` reads `-l`, `progress` turns each state of it into lines of text (both pure); `request`,
//! `follow` and `undrain` talk to the API server.

mod follow;
mod manifest;
mod progress;
mod request;
mod selector;
mod undrain;

pub(crate) use follow::follow;
pub(crate) use manifest::{ManifestRequest, PlanFile, node_names};
pub(crate) use progress::Outcome;
pub(crate) use request::{Created, create};
pub(crate) use selector::NodeQuery;
pub(crate) use undrain::{EndedBy, UndrainRequest, undrain};
