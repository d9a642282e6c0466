//! NodeMaintenance and Evacuation, after KEP-4212 and the first shape of KEP-4563: nodes leave their load balancers,
//! verified, before the first pod is evicted.

#![allow(
    clippy::doc_markdown,
    reason = "kinds and fields of the API stand in nearly every sentence, also in schemas"
)]

pub mod api;
pub mod automatic;
pub mod blackhole;
pub mod controller;
pub mod deadline;
pub mod drain_plan;
pub mod evacuation;
pub mod machine;
pub mod plan;
mod reverted_cordons;
pub mod rollout;
pub mod selection;
pub mod snapshot;
