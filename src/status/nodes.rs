//! Lists all Nodes, page by page. Of each Node only the fields stay in memory that signals and pool entries need.

use anyhow::anyhow;
use headgate_core::node::NodeObject;
use headgate_kubernetes::Decoded;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

use crate::api_error::RequestError;
use crate::failure::Failure;
use crate::readable_objects::list_all;

/// Lists the names of the Nodes with these labels.
///
/// # Errors
/// A page is missing.
pub(crate) async fn list_names(client: &Client, selector: &str) -> Result<Vec<String>, Failure> {
    let api = Api::<Decoded<PartialObjectMeta<Node>>>::all(client.clone());
    let nodes = list_all(&api, ListParams::default().labels(selector)).await;
    let nodes = nodes.map_err(|error| not_listed(&error))?;
    Ok(nodes.into_iter().filter_map(|node| node.metadata.name).collect())
}

/// Lists all Nodes.
///
/// # Errors
/// A page is missing.
pub(crate) async fn list(client: &Client) -> Result<Vec<NodeObject>, RequestError> {
    list_all(&Api::all(client.clone()), ListParams::default()).await
}

/// The failure of a command that needs the Nodes.
pub(super) fn not_listed(error: &RequestError) -> Failure {
    Failure::environment(anyhow!("the Nodes cannot be listed: {error}"))
}
