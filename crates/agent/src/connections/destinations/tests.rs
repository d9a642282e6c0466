use headgate_core::service::Ingress;
use proptest::prelude::*;

use super::*;

const NODE: [&str; 2] = ["10.0.0.4", "fd00::4"];

/// A Service with ports (protocol, port, node port) and a load balancer with addresses or, with `test` in it, a name.
fn service(name: &str, ports: &[(&str, i32, i32)], load_balancer: &[&str]) -> Service {
    let port = |(protocol, port, node_port): &(&str, i32, i32)| ServicePort {
        protocol: (*protocol).to_owned(),
        port: *port,
        node_port: *node_port,
        ..ServicePort::default()
    };
    let ingress = |text: &&str| {
        let (ip, hostname) = if text.contains("test") {
            ("", *text)
        } else {
            (*text, "")
        };
        Ingress {
            ip: ip.to_owned(),
            hostname: hostname.to_owned(),
        }
    };
    Service {
        name: NamespacedName::new("default", name),
        ports: ports.iter().map(port).collect(),
        ingress: load_balancer.iter().map(ingress).collect(),
    }
}

fn node(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|text| text.parse().unwrap()).collect()
}

fn listed(destinations: &Destinations) -> Vec<String> {
    let mut all: Vec<Destination> = destinations.iter().collect();
    all.sort_unstable();
    all.iter().map(ToString::to_string).collect()
}

fn named(destinations: &Destinations) -> Vec<String> {
    let notes = destinations.not_countable().iter();
    notes
        .map(|note| format!("{} ({}): {}", note.service, note.items, note.reason))
        .collect()
}

#[test]
fn destinations_are_frontends_and_node_ports() {
    let ports = [("TCP", 80, 30080), ("UDP", 53, 30053), ("", 443, 0)];
    let web = service("web", &ports, &["20.1.2.3", "2001:db8::9"]);
    let found = Destinations::new(vec![web], &node(&NODE));
    assert_eq!(
        listed(&found),
        [
            "tcp 10.0.0.4:30080",
            "tcp 20.1.2.3:80",
            "tcp 20.1.2.3:443",
            "tcp [2001:db8::9]:80",
            "tcp [2001:db8::9]:443",
            "tcp [fd00::4]:30080",
            "udp 10.0.0.4:30053",
            "udp 20.1.2.3:53",
            "udp [2001:db8::9]:53",
            "udp [fd00::4]:30053",
        ]
    );
    assert_eq!(named(&found), [""; 0]);
}

#[test]
fn what_is_not_countable_is_named() {
    const LB: &[&str] = &["20.1.2.3"];
    const MAPPED: &[&str] = &["::ffff:20.1.2.3", "20.1.2.3"];
    let unreachable =
        "(1): port 80 has neither an address of a load balancer nor a node port on an address of this node";
    let named_only = "(2): the load balancer has the name a.test instead of an address, and there is no node port";
    let unusable = "(4): the load balancer's address \"20.1.2\" is not usable";
    let web = [("TCP", 80, 30080)].as_slice();
    let without_node_port = [("TCP", 80, 0)].as_slice();
    let two_without = [("TCP", 80, 0), ("TCP", 81, 0)].as_slice();
    let no_ports = [
        ("TCP", 0, 30080),
        ("TCP", 70_000, 0),
        ("TCP", -1, 30081),
        ("TCP", 80, -7),
    ]
    .as_slice();
    let protocols = [("SCTP", 80, 30080), ("TCP", 80, 30080), ("quic", 1, 1)].as_slice();
    let twice = [("TCP", 80, 30080), ("TCP", 80, 30080)].as_slice();
    let odd = ["20.1.2", "0.0.0.0", "::1", "ff02::1", "20.1.2.3"].as_slice();
    let odd_node = ["10.0.0.4", "::ffff:10.0.0.4", "127.0.0.1", "::"].as_slice();
    for (ports, load_balancer, addresses, count, expected) in [
        (&[][..], LB, &NODE[..], 0, Some("(1): it has no ports")),
        (web, &["a.test"], &NODE, 2, None),
        (two_without, &["a.test", "b.test"], &NODE, 0, Some(named_only)),
        (without_node_port, &[], &NODE, 0, Some(unreachable)),
        (web, &[], &[], 0, Some(unreachable)),
        (without_node_port, LB, &NODE, 1, None),
        (no_ports, LB, &NODE, 0, Some("(4): 0 is not a port")),
        (protocols, LB, &NODE, 3, Some("(2): the protocol SCTP is not counted")),
        (without_node_port, odd, &NODE, 1, Some(unusable)),
        (twice, MAPPED, odd_node, 2, None),
    ] {
        let found = Destinations::new(vec![service("web", ports, load_balancer)], &node(addresses));
        let expected: Vec<_> = expected.iter().map(|text| format!("default/web {text}")).collect();
        assert_eq!(
            (found.len(), named(&found)),
            (count, expected),
            "{ports:?} {load_balancer:?}"
        );
    }
}

#[test]
fn destination_of_two_services_belongs_to_the_first_by_name() {
    let shared = [("TCP", 80, 30080)];
    let services = vec![
        service("b", &shared, &["20.1.2.3"]),
        service("a", &shared, &["20.1.2.3"]),
        service("c", &[("TCP", 80, 30081), ("UDP", 80, 30080)], &["20.1.2.3"]),
        service("a", &shared, &["20.1.2.4"]),
    ];
    let found = Destinations::new(services, &node(&["10.0.0.4"]));
    let owner = |text: &str| {
        let address: std::net::SocketAddr = text.parse().unwrap();
        let destination = Destination {
            protocol: Protocol::Tcp,
            address: address.ip(),
            port: address.port(),
        };
        let index = found.service_of(&destination);
        index.map(|index| found.services()[index].name())
    };
    for (destination, expected) in [
        ("20.1.2.3:80", Some("a")),
        ("20.1.2.4:80", Some("a")),
        ("10.0.0.4:30080", Some("a")),
        ("10.0.0.4:30081", Some("c")),
        ("10.0.0.4:80", None),
    ] {
        assert_eq!(owner(destination), expected, "{destination}");
    }
    assert_eq!(
        named(&found),
        [
            "default/b (2): tcp 10.0.0.4:30080 is counted for default/a",
            "default/c (1): tcp 20.1.2.3:80 is counted for default/a",
        ]
    );
    let mut notes = found.not_countable().iter();
    assert!(notes.all(|note| !note.reason.hides_connections()));
}

#[test]
fn service_beyond_the_limit_is_left_out_whole() {
    let ports: Vec<(&str, i32, i32)> = (1..=1_000).map(|port| ("TCP", port, 30_000 + port)).collect();
    let many = |name: &str, address: &str| service(name, &ports, &[address]);
    let found = Destinations::new(vec![many("web", "20.1.2.3")], &node(&NODE));
    assert_eq!((found.len(), found.not_countable().len()), (3_000, 0));
    let services = (10..25).map(|n| many(&format!("web{n}"), &format!("20.1.2.{n}")));
    let found = Destinations::new(services.collect(), &[]);
    assert_eq!(found.len(), MAX_DESTINATIONS);
    let reasons: Vec<&Reason> = found.not_countable().iter().map(|note| &note.reason).collect();
    assert!(reasons.contains(&&Reason::TooMany) && reasons.iter().any(|reason| reason.hides_connections()));
    let all: Vec<(&str, i32, i32)> = (1..=65_535).map(|port| ("TCP", port, 0)).collect();
    let found = Destinations::new(vec![service("huge", &all, &["20.1.2.3"])], &[]);
    assert_eq!(
        named(&found),
        ["default/huge (1): there are more than 10000 addresses and ports to count"]
    );
}

fn any_service() -> impl Strategy<Value = Service> {
    let protocol = prop::sample::select(vec!["TCP", "UDP", "SCTP", "", "x"]);
    let ports = prop::collection::vec((protocol, prop_oneof![any::<i32>(), 0..20_i32], 0..20_i32), 0..6);
    let addresses = [
        "20.1.2.3",
        "::ffff:20.1.2.3",
        "fd00::4",
        "10.0.0.4",
        "x",
        "a.test",
        "::",
    ];
    let address = prop::sample::select(addresses.to_vec());
    ("[ab]", ports, prop::collection::vec(address, 0..4)).prop_map(|(name, ports, addresses)| {
        let mut service = service(&name, &ports, &addresses);
        // A status may have both, or neither.
        service.ingress.push(Ingress::default());
        service
    })
}

proptest! {
    #[test]
    fn every_destination_has_a_service_and_order_does_not_matter(services in prop::collection::vec(any_service(), 0..8)) {
        let found = Destinations::new(services.clone(), &node(&NODE));
        for destination in found.iter() {
            let index = found.service_of(&destination).unwrap();
            prop_assert!(index < found.services().len());
            prop_assert!(destination.port != 0);
            prop_assert_eq!(destination.address, destination.address.to_canonical());
        }
        let reversed = Destinations::new(services.into_iter().rev().collect(), &node(&NODE));
        prop_assert_eq!(listed(&found), listed(&reversed));
    }
}
