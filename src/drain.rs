//! `headgate drain`: creates a `NodeMaintenance` and follows it until its nodes are drained.
//!
//! The drain itself is the work of the leader's maintenance controllers; it goes on without this command. `manifest` makes the
//! object from names of nodes and a plan file, `progress` turns each state of it into lines of text (both pure); `request` and
//! `follow` talk to the API server.

mod follow;
mod manifest;
mod progress;
mod request;

pub use follow::{FollowError, FollowRequest, Followed, follow};
pub use manifest::{ManifestError, ManifestRequest, PlanFile, node_names};
pub use progress::{Outcome, Progress};
pub use request::{Created, DrainError, create};
