//! Lists all Nodes, page by page. Of each Node only the fields stay in memory that signals and pool entries need.

use std::fmt::Debug;
use std::time::Duration;

use headgate_core::node::NodeObject;
use headgate_kubernetes::Decoded;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::api_error::api_error_text;
use crate::readable_objects::readable_objects;

/// Nodes in one response.
const MAX_NODES_PER_PAGE: u32 = 500;
/// Time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Lists the names of the Nodes with these labels.
///
/// # Errors
/// A text that says why a page is missing.
pub(crate) async fn list_names(client: &Client, selector: &str) -> Result<Vec<String>, String> {
    let api = Api::<Decoded<PartialObjectMeta<Node>>>::all(client.clone());
    let nodes = list_pages(&api, ListParams::default().labels(selector)).await?;
    Ok(nodes.into_iter().filter_map(|node| node.metadata.name).collect())
}

/// Lists all Nodes.
///
/// # Errors
/// A text that says why a page is missing.
pub(crate) async fn list(client: &Client) -> Result<Vec<NodeObject>, String> {
    list_pages(&Api::<Decoded<NodeObject>>::all(client.clone()), ListParams::default()).await
}

async fn list_pages<K>(api: &Api<Decoded<K>>, params: ListParams) -> Result<Vec<K>, String>
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned,
{
    let mut found = Vec::new();
    let mut params = params.limit(MAX_NODES_PER_PAGE);
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
