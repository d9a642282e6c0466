//! Creates the `NodeMaintenance`, or finds the one that an earlier command created.

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_kubernetes::Decoded;
use headgate_maintenance::api::NodeMaintenance;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Map, Value};

use crate::api_error::{RequestError, within};

/// For one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a drain was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// A node that is named does not exist.
    #[error("there is no Node {0:?}; `kubectl get nodes` lists them")]
    NoSuchNode(String),
    /// The cluster has no `NodeMaintenance`s.
    #[error("the cluster does not have NodeMaintenances; install headgate with maintenance.enabled")]
    NotInstalled,
    /// The name is taken.
    #[error(
        "NodeMaintenance {name} exists and differs: {difference}; `kubectl delete hgnm {name}` ends it, --name NAME gives another name"
    )]
    Exists {
        /// The name of both.
        name: String,
        /// What differs.
        difference: String,
    },
    /// The API server refused the request, or did not answer.
    #[error("{what}: {error}")]
    Request {
        /// What was requested.
        what: String,
        /// The answer.
        error: String,
    },
}

impl DrainError {
    pub(super) fn request(what: impl Into<String>, error: &RequestError) -> Self {
        Self::Request {
            what: what.into(),
            error: error.to_string(),
        }
    }

    /// A write of a `NodeMaintenance` has failed, which would have been `done`. Without an answer it may have been.
    pub(super) fn write(name: &str, done: &str, error: &RequestError) -> Self {
        let what = match error.code() {
            0 | 500 | 504 => {
                format!("it is not known whether NodeMaintenance {name} was {done}; the same command again finds out")
            }
            _ => format!("NodeMaintenance {name} was not {done}"),
        };
        Self::request(what, error)
    }
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
) -> Result<Created, DrainError> {
    let api = Api::<Decoded<PartialObjectMeta<Node>>>::all(client.clone());
    for node in nodes {
        let found = bounded(api.get_opt(node)).await;
        let found = found.map_err(|error| DrainError::request(format!("Node {node} cannot be read"), &error))?;
        if found.is_none() {
            return Err(DrainError::NoSuchNode(node.clone()));
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
        Err(error) if error.code() == 404 => Err(DrainError::NotInstalled),
        Err(error) if error.code() == 409 => {
            let existing = bounded(async { api.get(&name).await?.into_object() }).await;
            let existing = existing
                .map_err(|error| DrainError::request(format!("NodeMaintenance {name} cannot be read"), &error))?;
            match difference(&existing, object) {
                None => Ok(Created::Unchanged(existing)),
                Some(difference) => Err(DrainError::Exists { name, difference }),
            }
        }
        Err(error) if dry_run => Err(DrainError::request(
            format!("NodeMaintenance {name} was not created"),
            &error,
        )),
        Err(error) => Err(DrainError::write(&name, "created", &error)),
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
