//! Nodes without machines: objects in the API that only the sandbox reports as ready.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};

/// The label of every Node that a sandbox makes. Its value identifies the sandbox.
pub(crate) const SANDBOX_LABEL: &str = "headgate.dev/sandbox";

/// The subscription in the provider ids of the Nodes.
pub const SUBSCRIPTION: &str = "5eed0000-0000-4000-8000-000000000001";
/// The resource group in the provider ids of the Nodes.
pub const RESOURCE_GROUP: &str = "sandbox";

/// A Node that exists in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredNode {
    /// The name of the Node.
    pub name: String,
    /// The Node's internal addresses.
    pub addresses: Vec<IpAddr>,
}

/// Nodes cannot be created or deleted.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// A Node cannot be created.
    #[error("cannot create Node {name}: {source}; the kubeconfig's user needs the verb create on nodes")]
    Create {
        /// The name of the Node.
        name: String,
        /// The error of the API server.
        source: Box<kube::Error>,
    },
    /// The Nodes of a sandbox cannot be deleted.
    #[error(
        "cannot delete the Nodes of this sandbox: {source}; delete them with: kubectl delete nodes -l {SANDBOX_LABEL}={sandbox}"
    )]
    Delete {
        /// The sandbox's name, the value of [`SANDBOX_LABEL`].
        sandbox: String,
        /// The error of the API server.
        source: Box<kube::Error>,
    },
}

/// The name of the `number`th Node, counted from 1.
pub fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// The id of a Node's virtual machine.
pub fn machine_id(name: &str) -> String {
    format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/Microsoft.Compute/virtualMachines/{name}"
    )
}

/// A Node that is ready and not tainted, with internal addresses of both families.
pub fn ready_node(name: &str, number: u8, sandbox: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.labels = Some(BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), name.to_owned()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        (SANDBOX_LABEL.to_owned(), sandbox.to_owned()),
    ]));
    node.spec = Some(NodeSpec {
        provider_id: Some(format!("azure://{}", machine_id(name))),
        ..NodeSpec::default()
    });
    let address = |type_: &str, address: String| NodeAddress {
        type_: type_.to_owned(),
        address,
    };
    let resources = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110")]
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let now = Timestamp::now();
    node.status = Some(NodeStatus {
        // The scheduler places no Pod on a Node without them.
        capacity: Some(BTreeMap::from(resources.clone())),
        allocatable: Some(BTreeMap::from(resources)),
        addresses: Some(vec![
            address("InternalIP", IpAddr::from(Ipv4Addr::new(127, 0, 0, number)).to_string()),
            // From the range of unique local addresses; no process listens there.
            address(
                "InternalIP",
                IpAddr::from(Ipv6Addr::new(0xfd00, 0x5eed, 0, 0, 0, 0, 0, number.into())).to_string(),
            ),
            address("Hostname", name.to_owned()),
        ]),
        conditions: Some(vec![NodeCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: Some("HeadgateSandbox".to_owned()),
            message: Some("reported by headgate's sandbox, without a kubelet".to_owned()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        }]),
        ..NodeStatus::default()
    });
    node
}

/// Creates those of the Nodes `node-1` to `node-COUNT` that do not exist; returns all of them, and how many it created.
///
/// # Errors
/// A Node cannot be created.
pub async fn register(client: &Client, count: u8, sandbox: &str) -> Result<(Vec<RegisteredNode>, usize), NodesError> {
    let api: Api<Node> = Api::all(client.clone());
    let mut nodes = Vec::with_capacity(count.into());
    let mut created = 0;
    for number in 1..=count {
        let name = node_name(number);
        let node = match api
            .create(&PostParams::default(), &ready_node(&name, number, sandbox))
            .await
        {
            Err(kube::Error::Api(status)) if status.is_already_exists() => api.get(&name).await,
            result => result.inspect(|_| created += 1),
        };
        let node = node.map_err(|source| NodesError::Create {
            name: name.clone(),
            source: Box::new(source),
        })?;
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
        let addresses = internal.filter_map(|address| address.address.parse().ok()).collect();
        nodes.push(RegisteredNode { name, addresses });
    }
    Ok((nodes, created))
}

/// Deletes the Nodes that this sandbox made, and no others; returns their names.
///
/// # Errors
/// The Nodes cannot be listed or deleted.
pub async fn delete(client: &Client, sandbox: &str) -> Result<Vec<String>, NodesError> {
    let api: Api<Node> = Api::all(client.clone());
    let failed = |source| NodesError::Delete {
        sandbox: sandbox.to_owned(),
        source: Box::new(source),
    };
    let ours = ListParams::default().labels(&format!("{SANDBOX_LABEL}={sandbox}"));
    let mut names = Vec::new();
    for node in api.list_metadata(&ours).await.map_err(failed)? {
        let name = node.name_any();
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => names.push(name),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(names)
}
