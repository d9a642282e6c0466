//! `headgate connections`: the established connections that pass through this node, by Service, from one count of the kernel's
//! connection table.
//!
//! Which destinations belong to a Service, which states count, and how the table is read is decided in `headgate_agent::connections`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headgate_agent::connections::{
    AZURE_PROBES, Counter, Destinations, ExcludedSources, Flows, Ingress, NodeNetwork, Prefix, ReadError, Service,
    ServiceName, ServicePort,
};
use headgate_controller::local_service::load_balancer_services;
use headgate_core::node::NodeObject;
use headgate_kubernetes::Decoded;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service as ServiceObject;
use kube::{Api, Client};
use serde::Serialize;

use crate::api_error::api_error_text;
use crate::status::{format_columns, list};

/// For one count. The largest tables take 2 s.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CountError {
    /// The API server did not answer with the Node or the Services.
    #[error("{0}")]
    Read(String),
    /// The connection table was not read.
    #[error(
        "{0}; run this on the node itself, in its network namespace and with the capability CAP_NET_ADMIN, for example as root"
    )]
    Table(String),
}

/// The connections of one Service through the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceConnections {
    /// `NAMESPACE/NAME`.
    service: String,
    /// TCP connections, established or half-closed.
    tcp: u64,
    /// UDP flows that the kernel has not forgotten. Nothing waits for them.
    udp: u64,
}

/// One count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Connections {
    pub(crate) node: String,
    #[serde(rename = "askedAt")]
    pub(crate) taken_at: Timestamp,
    services: Vec<ServiceConnections>,
    /// Whole seconds since the oldest TCP connection began, at least; missing where the kernel does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_seconds: Option<u64>,
    /// What no count contains, and why.
    not_counted: Vec<String>,
    /// Why a small number does not mean that there are few.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreliable: Option<String>,
}

impl Connections {
    /// The Services with connections, as names.
    pub(crate) fn services(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(|row| row.service.as_str())
    }

    /// For people. With `is_wide` the Services that cannot be counted, too.
    pub(crate) fn text(&self, is_wide: bool) -> String {
        let total: u64 = self.services.iter().map(|row| row.tcp).sum();
        let oldest = match self.oldest_seconds {
            Some(seconds) if seconds > 0 => format!("; the oldest since {seconds} s or longer"),
            _ => String::new(),
        };
        let mut text = match total {
            0 => format!("No connection to a Service passes through node {}.\n", self.node),
            1 => format!("1 connection passes through node {}{oldest}.\n", self.node),
            _ => format!("{total} connections pass through node {}{oldest}.\n", self.node),
        };
        if let Some(reason) = &self.unreliable {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "This number may be too small: {reason}.");
        }
        if !self.services.is_empty() {
            let header = ["SERVICE", "TCP", "UDP"].map(str::to_owned);
            let row = |row: &ServiceConnections| vec![row.service.clone(), row.tcp.to_string(), row.udp.to_string()];
            let rows: Vec<_> = self.services.iter().map(row).collect();
            let _ = write!(text, "\n{}", format_columns(&header, &rows));
        }
        match self.not_counted.len() {
            0 => {}
            _ if is_wide => {
                text.push_str("\nNot counted:\n");
                for line in &self.not_counted {
                    let _ = writeln!(text, "  {}", headgate_core::telemetry::escape_line(line));
                }
            }
            more => {
                let _ = writeln!(text, "\nNot counted: {more}, see -o wide.");
            }
        }
        text
    }
}

/// Counts, again and again with the same memory of what was seen before, so that ages grow.
pub(crate) struct ConnectionCounter {
    counter: Arc<Mutex<Counter>>,
    excluded: Vec<Prefix>,
}

impl ConnectionCounter {
    /// A counter that leaves out connections from these sources, Azure's probes, and the node itself with its pods.
    pub(crate) fn new(excluded: Vec<Prefix>) -> Self {
        Self {
            counter: Arc::default(),
            excluded,
        }
    }

    /// Counts what passes through the node of this name, which has to be the one that this process runs on.
    ///
    /// # Errors
    /// The Node, the Services or the connection table cannot be read.
    pub(crate) async fn count(&self, client: &Client, node_name: &str) -> Result<Connections, CountError> {
        let node = Api::<Decoded<NodeObject>>::all(client.clone()).get(node_name).await;
        let node = node.and_then(Decoded::into_object);
        let node = node.map_err(|error| {
            CountError::Read(format!("Node {node_name} cannot be read: {}", api_error_text(&error)))
        })?;
        let (selecting, load_balancers) = load_balancer_services(client);
        let listed = list::<ServiceObject>(&selecting, load_balancers)
            .await
            .map_err(CountError::Read)?;
        let services = listed.iter().map(read_service).collect();
        // Node ports are open on each.
        let addresses: Vec<IpAddr> = parsed(node.status.addresses.iter().map(|address| &address.address));
        let mut excluded = self.excluded.clone();
        excluded.push(Prefix::from(AZURE_PROBES));
        excluded.extend(addresses.iter().copied().map(Prefix::from));
        // Where the node's own pods connect from.
        excluded.extend(parsed::<Prefix>(&node.spec.pod_cidrs));
        let api_server = match NodeNetwork::look().bypass(false) {
            Some(_) => kubernetes_address(client).await,
            None => None,
        };
        let destinations = Destinations::new(services, &addresses);
        let not_counted = destinations.not_countable().iter().map(|one| {
            let more = if one.items > 1 {
                format!(" (and {} more)", one.items - 1)
            } else {
                String::new()
            };
            format!("{}: {}{more}", one.service, one.reason)
        });
        let not_counted = not_counted.collect();
        let hides_connections = destinations
            .not_countable()
            .iter()
            .any(|one| one.reason.hides_connections());
        let counter = Arc::clone(&self.counter);
        let counting = tokio::task::spawn_blocking(move || {
            let mut counter = counter.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counter.count(&destinations, &ExcludedSources::new(excluded), COUNT_TIMEOUT)?;
            let mut finds = |address| counter.has_translation(address, COUNT_TIMEOUT).unwrap_or(false);
            let is_translated = count.has_translation || api_server.is_some_and(&mut finds);
            Ok::<_, ReadError>((count, NodeNetwork::look().bypass(is_translated)))
        });
        let table_error = |error: &dyn std::error::Error| CountError::Table(error.to_string());
        let read = counting.await.map_err(|error| table_error(&error))?;
        let (count, bypass) = read.map_err(|error| table_error(&error))?;
        let row = |(name, flows): (&ServiceName, &Flows)| ServiceConnections {
            service: name.to_string(),
            tcp: flows.tcp,
            udp: flows.udp,
        };
        let zones = (count.in_other_zones > 0).then(|| {
            format!(
                "{} connections are in conntrack zones that kube-proxy does not use",
                count.in_other_zones
            )
        });
        let hidden = hides_connections.then(|| "some Services cannot be counted, see -o wide".to_owned());
        Ok(Connections {
            node: node_name.to_owned(),
            taken_at: Timestamp::now(),
            services: count.services.iter().map(row).collect(),
            oldest_seconds: count.oldest.map(|age| age.as_secs()),
            not_counted,
            unreliable: bypass.map(|bypass| bypass.to_string()).or(zones).or(hidden),
        })
    }
}

fn read_service(object: &ServiceObject) -> Service {
    let spec = object.spec.clone().unwrap_or_default();
    let status = object.status.clone().unwrap_or_default();
    let (namespace, name) = (&object.metadata.namespace, &object.metadata.name);
    let ingress = status
        .load_balancer
        .and_then(|status| status.ingress)
        .unwrap_or_default();
    Service {
        name: ServiceName::new(
            namespace.as_deref().unwrap_or_default(),
            name.as_deref().unwrap_or_default(),
        ),
        service_type: spec.type_.unwrap_or_default(),
        ports: (spec.ports.unwrap_or_default().iter())
            .map(|port| ServicePort {
                protocol: port.protocol.clone().unwrap_or_default(),
                port: port.port,
                node_port: port.node_port.unwrap_or_default(),
            })
            .collect(),
        ingress: (ingress.into_iter())
            .map(|ingress| Ingress {
                ip: ingress.ip.unwrap_or_default(),
                hostname: ingress.hostname.unwrap_or_default(),
            })
            .collect(),
    }
}

/// The address by which pods of every node reach the API server, as long as the caller may read it.
async fn kubernetes_address(client: &Client) -> Option<SocketAddr> {
    let services = Api::<Decoded<ServiceObject>>::namespaced(client.clone(), "default");
    let spec = services.get("kubernetes").await.ok()?.into_object().ok()?.spec?;
    let port = u16::try_from(spec.ports?.first()?.port).ok()?;
    Some(SocketAddr::new(spec.cluster_ip?.parse().ok()?, port))
}

/// Those of the texts that can be read.
fn parsed<'a, T: FromStr>(texts: impl IntoIterator<Item = &'a String>) -> Vec<T> {
    texts.into_iter().filter_map(|text| text.parse().ok()).collect()
}
