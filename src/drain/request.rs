//! Creates the `NodeMaintenance`, or finds the one that an earlier command created.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{anyhow, bail};
use headgate_kubernetes::Decoded;
use headgate_maintenance::api::NodeMaintenance;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Map, Value};

use crate::api_error::{RequestError, within};
use crate::failure::no_such_node;

/// For one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A write of a `NodeMaintenance` has failed, which would have been `done`. Without an answer it may have been.
pub(super) fn write_error(name: &str, done: &str, error: &RequestError) -> anyhow::Error {
    match error.code() {
        0 | 500 | 504 => anyhow!(
            "it is not known whether NodeMaintenance {name} was {done}; the same command again finds out: {error}"
        ),
        _ => anyhow!("NodeMaintenance {name} was not {done}: {error}"),
    }
}

/// The cluster has no `NodeMaintenance`s.
pub(super) fn not_installed() -> anyhow::Error {
    anyhow!("the cluster does not have NodeMaintenances; install headgate with maintenance.enabled")
}

/// What became of the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Created {
    /// It is new.
    New(NodeMaintenance),
    /// The same maintenance was there already.
    Unchanged(NodeMaintenance),
}

/// Creates `object`, after a check that the nodes exist which were named. With `dry_run` the API server checks the request and
/// keeps nothing.
///
/// # Errors
/// When a node is missing, the name is taken by another maintenance, or the API server refuses.
pub(crate) async fn create(
    client: &Client,
    object: &NodeMaintenance,
    nodes: &[String],
    dry_run: bool,
) -> anyhow::Result<Created> {
    let api = Api::<Decoded<PartialObjectMeta<Node>>>::all(client.clone());
    for node in nodes {
        let found = bounded(api.get_opt(node)).await;
        let found = found.map_err(|error| anyhow!("Node {node} cannot be read: {error}"))?;
        if found.is_none() {
            return Err(no_such_node(node));
        }
    }
    let api = Api::<Decoded<NodeMaintenance>>::all(client.clone());
    let name = object.name_any();
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    let request = Decoded::Object(object.clone());
    let created = async { api.create(&params, &request).await?.into_object() };
    match bounded(created).await {
        Ok(created) => Ok(Created::New(created)),
        Err(error) if error.code() == 404 => Err(not_installed()),
        Err(error) if error.code() == 409 => {
            let existing = bounded(async { api.get(&name).await?.into_object() }).await;
            let existing = existing.map_err(|error| anyhow!("NodeMaintenance {name} cannot be read: {error}"))?;
            match difference(&existing, object) {
                None => Ok(Created::Unchanged(existing)),
                Some(difference) => bail!(
                    "NodeMaintenance {name} exists and differs: {difference}; `kubectl delete hgnm {name}` ends it, --name NAME gives \
                     another name"
                ),
            }
        }
        Err(error) if dry_run => bail!("NodeMaintenance {name} was not created: {error}"),
        Err(error) => Err(write_error(&name, "created", &error)),
    }
}

pub(super) async fn bounded<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    within(REQUEST_TIMEOUT, request).await
}

/// What makes `existing` another maintenance than the one that was asked for.
fn difference(existing: &NodeMaintenance, wanted: &NodeMaintenance) -> Option<String> {
    if existing.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".to_owned());
    }
    if existing.spec.stage != wanted.spec.stage {
        return Some("its stage is not Drain".to_owned());
    }
    if existing.spec == wanted.spec {
        return None;
    }
    let specs = [existing, wanted].map(|one| serde_json::to_value(&one.spec).unwrap_or_default());
    let fields: BTreeSet<_> = specs.iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
    let others = fields
        .into_iter()
        .filter(|field| specs[0].get(field) != specs[1].get(field));
    let others: Vec<_> = others.map(String::as_str).collect();
    Some(format!("its spec has another {}", others.join(", ")))
}
