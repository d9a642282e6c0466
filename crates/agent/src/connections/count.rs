//! One count, as it is ordered and as it is reported: plain data that passes between the process that decides and the one that has the
//! right to count, and the work between them.

use headgate_core::service::NamespacedName;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_core::node::Node;
use ipnet::IpNet;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::counter::{Count, Counter, Flows};
use super::data_plane::{Bypass, NodeNetwork};
use super::destinations::Destinations;
use super::exclusions::{AZURE_PROBES, parse_prefix, prefix_of};
use super::services::Service;
use super::table::ReadError;

/// For one count. The largest tables take 2 s.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Lines about what is not counted in one report; more are only numbered.
const MAX_NOT_COUNTED: usize = 1_000;

/// What to count on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CountOrder {
    /// The Services whose connections count.
    pub services: Vec<Service>,
    /// The node's addresses, on which node ports are open.
    pub node_addresses: Vec<IpAddr>,
    /// Whose connections do not count.
    pub excluded: Vec<IpNet>,
    /// The address by which pods of every node reach the API server, if it is known: connections to it show whether Services pass the
    /// kernel's table.
    pub api_server: Option<SocketAddr>,
}

/// The connections of one Service through the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceConnections {
    /// `NAMESPACE/NAME`.
    pub service: String,
    /// TCP connections, established or half-closed.
    pub tcp: u64,
    /// UDP flows that the kernel has not forgotten. Nothing waits for them.
    pub udp: u64,
}

/// The result of one count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionCount {
    /// The Services with connections, in the order of their names.
    pub services: Vec<ServiceConnections>,
    /// Whole seconds since the oldest TCP connection began, at least; missing where the kernel does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<u64>,
    /// What no count contains, and why.
    pub not_counted: Vec<String>,
    /// Why a small number does not mean that there are few.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreliable: Option<String>,
}

impl CountOrder {
    /// Counts connections to these Services through a node, apart from Azure's probes, those of the node and its pods, and those of
    /// `excluded` sources.
    pub fn new(node: NodeFacts, services: Vec<Service>, excluded: &[IpNet]) -> Self {
        let mut all = excluded.to_vec();
        all.extend(AZURE_PROBES.map(prefix_of));
        all.extend(node.addresses.iter().copied().map(prefix_of));
        all.extend(node.pod_ranges);
        Self {
            services,
            node_addresses: node.addresses,
            excluded: all,
            api_server: None,
        }
    }

    /// Counts in the network namespace of this thread. Also gives the processor time that this took, whatever the outcome: it says when the
    /// next count is due.
    pub fn count(&self, counter: &mut Counter) -> (Result<ConnectionCount, ReadError>, Duration) {
        let started = thread_cpu_time();
        let outcome = self.count_once(counter);
        (outcome, thread_cpu_time().saturating_sub(started))
    }

    fn count_once(&self, counter: &mut Counter) -> Result<ConnectionCount, ReadError> {
        let destinations = Destinations::new(self.services.clone(), &self.node_addresses);
        let count = counter.count(&destinations, &self.excluded, TIMEOUT)?;
        let finds = |address| counter.has_translation(address, TIMEOUT).unwrap_or(false);
        let network = NodeNetwork::look();
        let mut bypass = network.bypass(count.has_translation);
        // Looked for only where it decides.
        if bypass.is_some() && !count.has_translation && self.api_server.is_some_and(finds) {
            bypass = network.bypass(true);
        }
        Ok(ConnectionCount::new(&count, &destinations, bypass))
    }
}

/// What a count needs of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// All addresses of its status that are IP addresses.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`: where the node's own pods connect from.
    pub pod_ranges: Vec<IpNet>,
}

impl From<&Node> for NodeFacts {
    fn from(node: &Node) -> Self {
        Self {
            addresses: [&*node.addresses, &*node.other_addresses].concat(),
            pod_ranges: node
                .pod_cidrs
                .iter()
                .filter_map(|range| parse_prefix(range).ok())
                .collect(),
        }
    }
}

/// What this thread has used.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn not_counted(destinations: &Destinations) -> Vec<String> {
    let all = destinations.not_countable();
    let mut lines: Vec<_> = (all.iter().take(MAX_NOT_COUNTED))
        .map(|one| {
            let more = if one.items > 1 {
                format!(" (and {} more)", one.items - 1)
            } else {
                String::new()
            };
            format!("{}: {}{more}", one.service, one.reason)
        })
        .collect();
    if all.len() > lines.len() {
        lines.push(format!("and {} more", all.len() - lines.len()));
    }
    lines
}

impl ConnectionCount {
    fn new(count: &Count, destinations: &Destinations, bypass: Option<Bypass>) -> Self {
        let zones = (count.in_other_zones > 0).then(|| {
            format!(
                "connections in conntrack zones that kube-proxy does not use: {}",
                count.in_other_zones
            )
        });
        let mut noted = destinations.not_countable().iter();
        let hidden = noted.any(|one| one.reason.hides_connections());
        let row = |(name, flows): (&NamespacedName, &Flows)| ServiceConnections {
            service: name.to_string(),
            tcp: flows.tcp,
            udp: flows.udp,
        };
        Self {
            services: count.services.iter().map(row).collect(),
            oldest_seconds: count.oldest.map(|age| age.as_secs()),
            not_counted: not_counted(destinations),
            unreliable: bypass.map(|bypass| bypass.to_string()).or(zones).or_else(|| {
                hidden.then(|| "some Services cannot be counted, see headgate connections -o wide".to_owned())
            }),
        }
    }

    /// The TCP connections of all Services.
    pub fn total(&self) -> u64 {
        self.services.iter().map(|row| row.tcp).sum()
    }

    /// "17 connections pass through this node: 12 default/web, 5 shop/api; the oldest since 4 min". The Services with the most come first,
    /// and those beyond `limit` are only numbered.
    pub fn sentence(&self, limit: usize) -> String {
        let mut rows: Vec<_> = self.services.iter().filter(|row| row.tcp > 0).collect();
        rows.sort_by(|a, b| b.tcp.cmp(&a.tcp).then_with(|| a.service.cmp(&b.service)));
        let (total, others) = (self.total(), rows.len().saturating_sub(limit));
        let named = rows
            .iter()
            .take(limit)
            .map(|row| format!("{} {}", row.tcp, row.service));
        let more = (others > 0).then(|| format!("and of {others} more"));
        let named: Vec<_> = named.chain(more).collect();
        let oldest = self.oldest_seconds.filter(|seconds| *seconds > 0 && total > 0);
        let oldest = oldest.map_or_else(String::new, |seconds| format!("; the oldest since {}", age(seconds)));
        match total {
            0 => "no connection passes through this node".to_owned(),
            1 => format!("1 connection passes through this node: {}{oldest}", named.join(", ")),
            _ => format!(
                "{total} connections pass through this node: {}{oldest}",
                named.join(", ")
            ),
        }
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_count_in_words() {
        let row = |service: &str, tcp, udp| ServiceConnections {
            service: service.to_owned(),
            tcp,
            udp,
        };
        let count = |services: Vec<ServiceConnections>, oldest_seconds| ConnectionCount {
            services,
            oldest_seconds,
            ..ConnectionCount::default()
        };
        let none = "no connection passes through this node";
        let one = "1 connection passes through this node: 1 a/b";
        let two = "17 connections pass through this node: 12 shop/api, 5 default/web; the oldest since 4 min";
        let three = "6 connections pass through this node: 3 a/c, and of 2 more; the oldest since 24 h";
        let [of_web, of_api] = [row("default/web", 5, 0), row("shop/api", 12, 0)];
        let of_three = vec![row("a/a", 1, 0), row("a/b", 2, 0), row("a/c", 3, 0)];
        for (count, limit, expected) in [
            (count(vec![], None), 3, none),
            (count(vec![row("a/dns", 0, 7)], None), 3, none),
            (count(vec![row("a/b", 1, 0)], Some(0)), 3, one),
            (count(vec![of_web, of_api], Some(240)), 3, two),
            (count(of_three, Some(86_400)), 1, three),
        ] {
            assert_eq!(count.sentence(limit), expected);
        }
    }

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in [
            (1, "1 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7199, "119 min"),
            (7200, "2 h"),
        ] {
            assert_eq!(age(seconds), expected);
        }
    }

    /// A Service `default/NAME` of the type `LoadBalancer`.
    fn service(name: &str, ports: &serde_json::Value, ingress: &serde_json::Value) -> Service {
        let object = serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "LoadBalancer", "ports": ports},
            "status": {"loadBalancer": {"ingress": ingress}},
        }));
        Service::read(object.unwrap()).unwrap()
    }

    #[test]
    fn a_count_says_why_it_may_be_too_small() {
        let port = json!([{"port": 80}]);
        let countable = service("web", &port, &json!([{"ip": "203.0.113.10"}]));
        let without_address = service("waits", &port, &json!([]));
        let with_name = service("named", &port, &json!([{"hostname": "lb.example"}]));
        let all = |services: &[&Service]| Destinations::new(services.iter().copied().cloned().collect(), &[]);
        let in_zones = |in_other_zones| Count {
            in_other_zones,
            ..Count::default()
        };
        let hidden = "some Services cannot be counted, see headgate connections -o wide";
        let zones = "connections in conntrack zones that kube-proxy does not use: 1";
        let bypassed = Bypass::NoTable.to_string();
        for (services, in_other_zones, bypass, expected) in [
            (vec![&countable], 0, None, None),
            (vec![&countable, &without_address], 0, None, None),
            (vec![&countable, &with_name], 0, None, Some(hidden)),
            (vec![&countable, &with_name], 1, None, Some(zones)),
            (vec![&countable, &with_name], 1, Some(Bypass::NoTable), Some(&*bypassed)),
        ] {
            let count = ConnectionCount::new(&in_zones(in_other_zones), &all(&services), bypass);
            assert_eq!(count.unreliable.as_deref(), expected);
        }
    }

    #[test]
    fn what_is_not_counted_is_listed_once_for_a_service_and_reason() {
        let nowhere = |name: &str, ports: i32| {
            let ports: Vec<_> = (1..=ports).map(|port| json!({"port": port})).collect();
            service(name, &json!(ports), &json!([]))
        };
        let lines = |services: Vec<Service>| not_counted(&Destinations::new(services, &[]));
        let reason = "port 1 has neither an address of a load balancer nor a node port on an address of this node";
        assert_eq!(lines(vec![]), Vec::<String>::new());
        let listed = lines(vec![nowhere("one", 1), nowhere("three", 3)]).join("\n");
        assert_eq!(
            listed,
            format!("default/one: {reason}\ndefault/three: {reason} (and 2 more)")
        );
        let many = |count| (0..count).map(|number| nowhere(&format!("s{number}"), 1)).collect();
        let (most, more) = (lines(many(MAX_NOT_COUNTED)), lines(many(MAX_NOT_COUNTED + 2)));
        assert_eq!((most.len(), more.len()), (MAX_NOT_COUNTED, MAX_NOT_COUNTED + 1));
        assert!(most.iter().all(|line| line.ends_with(reason)));
        assert_eq!(more[MAX_NOT_COUNTED], "and 2 more");
    }

    #[test]
    fn a_nodes_own_addresses_and_pods_are_known() {
        let node = Node {
            addresses: vec!["10.0.0.4".parse().unwrap()],
            other_addresses: vec!["203.0.113.4".parse().unwrap()],
            pod_cidrs: vec!["10.244.1.0/24".into(), "none".into()],
            ..Node::default()
        };
        let facts = NodeFacts::from(&node);
        assert_eq!(facts.addresses, [node.addresses, node.other_addresses].concat());
        assert_eq!(facts.pod_ranges, ["10.244.1.0/24".parse().unwrap()]);
    }

    #[test]
    fn an_order_survives_the_way_to_the_counter() {
        let node = NodeFacts {
            addresses: vec!["10.0.0.4".parse().unwrap(), "fd00::4".parse().unwrap()],
            pod_ranges: vec!["10.244.1.0/24".parse().unwrap()],
        };
        let object = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "api"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.10", "ipMode": "VIP"}, {"hostname": "lb.example"}]}},
        }));
        let services = vec![Service::read(object.unwrap()).unwrap()];
        let order = CountOrder::new(node, services, &["192.0.2.0/24".parse().unwrap()]);
        assert_eq!(order.excluded.len(), 6);
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<CountOrder>(&text).unwrap(), order, "{text}");
        let destinations = Destinations::new(order.services, &order.node_addresses);
        // The frontend's two ports, and the node port in both families.
        assert_eq!(destinations.len(), 4);
    }
}
