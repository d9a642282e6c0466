//! Lists all Nodes, page by page. Of each Node only the fields stay in memory that signals and pool entries need.

use std::time::Duration;

use headgate_controller::pool::ClusterNodeObject;
use headgate_kubernetes::Decoded;
use headgate_node::SlimNode;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::timeout;

use crate::api_error::api_error_text;
use crate::readable_objects::readable_objects;

/// Nodes in one response.
const MAX_NODES_PER_PAGE: u32 = 500;
/// Time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// The fields of a Node that are read: those for signals, and those that match it with pool entries.
#[derive(Clone, Debug, Resource)]
#[resource(inherit = Node)]
pub(super) struct ListedNode {
    metadata: ObjectMeta,
    pub(super) slim: SlimNode,
    pub(super) in_pools: ClusterNodeObject,
}

impl<'de> Deserialize<'de> for ListedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The whole object is in memory while its two parts are decoded.
        let whole = Value::deserialize(deserializer)?;
        let slim = SlimNode::deserialize(&whole).map_err(D::Error::custom)?;
        Ok(Self {
            metadata: slim.metadata.clone(),
            slim,
            in_pools: ClusterNodeObject::deserialize(&whole).map_err(D::Error::custom)?,
        })
    }
}

/// Lists all Nodes.
///
/// # Errors
/// A text that says why a page is missing.
pub(super) async fn list(client: &Client) -> Result<Vec<ListedNode>, String> {
    let api = Api::<Decoded<ListedNode>>::all(client.clone());
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(MAX_NODES_PER_PAGE);
    loop {
        let page = timeout(PAGE_TIMEOUT, api.list(&params)).await;
        let page = page
            .map_err(|_| format!("no answer within {} s", PAGE_TIMEOUT.as_secs()))?
            .map_err(|error| api_error_text(&error))?;
        let next = page.metadata.continue_.clone();
        found.extend(readable_objects(page));
        match next.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
