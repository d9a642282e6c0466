//! All Nodes, listed page by page: of each what signals are made of, and what pools are matched with.

use std::time::Duration;

use headgate_controller::pool::ClusterNodeObject;
use headgate_node::SlimNode;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::timeout;

/// Nodes in one answer.
const PAGE: u32 = 500;
/// How long one answer may take.
const ONE_PAGE: Duration = Duration::from_secs(20);

/// One Node's two slices.
#[derive(Clone, Debug, Resource)]
#[resource(inherit = Node)]
pub(super) struct ListedNode {
    metadata: ObjectMeta,
    pub(super) slim: SlimNode,
    pub(super) in_pools: ClusterNodeObject,
}

impl<'de> Deserialize<'de> for ListedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An object is held whole for as long as its slices are taken.
        let whole = Value::deserialize(deserializer)?;
        let slim = SlimNode::deserialize(&whole).map_err(D::Error::custom)?;
        Ok(Self {
            metadata: slim.metadata.clone(),
            slim,
            in_pools: ClusterNodeObject::deserialize(&whole).map_err(D::Error::custom)?,
        })
    }
}

/// Lists them.
pub(super) async fn list(client: &Client) -> Result<Vec<ListedNode>, String> {
    let api = Api::<ListedNode>::all(client.clone());
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = timeout(ONE_PAGE, api.list(&params)).await;
        let page = page
            .map_err(|_| format!("no answer within {} s", ONE_PAGE.as_secs()))?
            .map_err(|error| headgate_telemetry::error_chain(&error))?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
