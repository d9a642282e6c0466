//! `headgate connections`: the established connections that pass through this node, by Service, from one count of the kernel's
//! connection table.
//!
//! Which destinations belong to a Service, which states count, and how the table is read is decided in `headgate_agent::connections`.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use headgate_agent::connections::{
    ConnectionCount, CountOrder, Counter, NodeFacts, Service, ServiceConnections, kubernetes_address,
};
use headgate_core::node::{NodeObject, NodeReader, SignalRules};
use headgate_core::service::ServiceObject;
use headgate_kubernetes::{Decoded, load_balancer_services};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::{Api, Client};
use serde::Serialize;

use crate::api_error::api_error_text;
use crate::report::{Detail, Report};
use crate::status::{format_columns, list};

/// One count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Connections {
    node: String,
    #[serde(rename = "askedAt")]
    taken_at: Timestamp,
    #[serde(flatten)]
    count: ConnectionCount,
}

impl Report for Connections {
    const KIND: Option<&'static str> = Some("Connections");

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    /// The Services with connections.
    fn names(&self) -> Vec<String> {
        let services = self.count.services.iter();
        services.map(|row| format!("service/{}", row.service)).collect()
    }

    /// The wide one has the Services that cannot be counted, too.
    fn text(&self, detail: Detail) -> String {
        let ConnectionCount {
            services,
            oldest_seconds,
            not_counted,
            unreliable,
        } = &self.count;
        let total = self.count.total();
        let oldest = match oldest_seconds {
            Some(seconds) if *seconds > 0 => format!("; the oldest since {seconds} s or longer"),
            _ => String::new(),
        };
        let mut text = match total {
            0 => format!("No connection to a Service passes through node {}.\n", self.node),
            1 => format!("1 connection passes through node {}{oldest}.\n", self.node),
            _ => format!("{total} connections pass through node {}{oldest}.\n", self.node),
        };
        if let Some(reason) = unreliable {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "This number may be too small: {reason}.");
        }
        if !services.is_empty() {
            let header = ["SERVICE", "TCP", "UDP"].map(str::to_owned);
            let row = |row: &ServiceConnections| vec![row.service.clone(), row.tcp.to_string(), row.udp.to_string()];
            let rows: Vec<_> = services.iter().map(row).collect();
            let _ = write!(text, "\n{}", format_columns(&header, &rows));
        }
        match not_counted.len() {
            0 => {}
            _ if detail == Detail::Wide => {
                text.push_str("\nNot counted:\n");
                for line in not_counted {
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
    excluded: Vec<IpNet>,
}

impl ConnectionCounter {
    /// A counter that leaves out connections from these sources, Azure's probes, and the node itself with its pods.
    pub(crate) fn new(excluded: Vec<IpNet>) -> Self {
        Self {
            counter: Arc::default(),
            excluded,
        }
    }

    /// Counts what passes through the node of this name, which has to be the one that this process runs on.
    ///
    /// # Errors
    /// The Node, the Services or the connection table cannot be read.
    pub(crate) async fn count(&self, client: &Client, node_name: &str) -> anyhow::Result<Connections> {
        let node = Api::<Decoded<NodeObject>>::all(client.clone()).get(node_name).await;
        let node = node.and_then(Decoded::into_object);
        let node = node.map_err(|error| anyhow!("Node {node_name} cannot be read: {}", api_error_text(&error)))?;
        let node = NodeReader::own(SignalRules::default()).read(node);
        let (selecting, load_balancers) = load_balancer_services(client);
        let listed = list::<ServiceObject>(&selecting, load_balancers).await;
        let services = listed
            .map_err(anyhow::Error::msg)?
            .into_iter()
            .filter_map(Service::read)
            .collect();
        let order = CountOrder {
            api_server: kubernetes_address(client).await,
            ..CountOrder::new(NodeFacts::from(&node), services, &self.excluded)
        };
        let counter = Arc::clone(&self.counter);
        let counting = tokio::task::spawn_blocking(move || {
            let mut counter = counter.lock().unwrap_or_else(PoisonError::into_inner);
            order.count(&mut counter).0
        });
        let table_error = |error: &dyn std::error::Error| {
            anyhow!(
                "{error}; run this on the node itself, in its network namespace and with the capability CAP_NET_ADMIN, for example as root"
            )
        };
        let read = counting.await.map_err(|error| table_error(&error))?;
        Ok(Connections {
            node: node_name.to_owned(),
            taken_at: Timestamp::now(),
            count: read.map_err(|error| table_error(&error))?,
        })
    }
}
