//! The `NetworkPolicy` of the controllers: that it selects their pods and no others, and that it opens the ports on which
//! the program listens and those to which it connects.

use std::collections::BTreeSet;

use headgate::config::{METRICS_PORT, Settings};
use serde_json::{Value, json};

use super::rendering::{folder, hardened, merged};
use super::{only, render};

/// The ports of a list of rules, with the addresses to which a rule limits them.
fn ports(rules: &Value) -> BTreeSet<(u64, String, Option<String>)> {
    let rules = rules.as_array().unwrap();
    let of_rule = |rule: &Value| {
        let cidr = rule["to"][0]["ipBlock"]["cidr"].as_str().map(str::to_owned);
        let ports = rule["ports"].as_array().unwrap().clone();
        ports.into_iter().map(move |port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            (port["port"].as_u64().unwrap(), protocol, cidr.clone())
        })
    };
    rules.iter().flat_map(of_rule).collect()
}

#[test]
fn network_policy_opens_the_ports_of_the_controllers() {
    let objects = render(&folder(&hardened()));
    let policy = only(&objects, "NetworkPolicy");
    let spec = &policy["spec"];
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));

    let selected = spec["podSelector"]["matchLabels"].as_object().unwrap();
    let matches = |kind: &str| {
        let labels = &only(&objects, kind)["spec"]["template"]["metadata"]["labels"];
        selected.iter().all(|(key, value)| labels[key] == *value)
    };
    assert!(matches("Deployment"), "{spec}");
    assert!(
        !matches("DaemonSet"),
        "no plugin applies it to the host network: {spec}"
    );
    let deployment = only(&objects, "Deployment");
    assert_eq!(
        policy["metadata"]["namespace"], deployment["metadata"]["namespace"],
        "a policy selects pods of its own namespace"
    );

    let settings = Settings::default();
    let tcp = |port: u16| (u64::from(port), "TCP".to_owned(), None);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["ports"][0]["containerPort"], METRICS_PORT);
    assert_eq!(settings.metrics_bind_address.port(), METRICS_PORT);
    assert_eq!(ports(&spec["ingress"]), [tcp(METRICS_PORT)].into());
    assert!(
        spec["ingress"]
            .as_array()
            .unwrap()
            .iter()
            .all(|rule| rule["from"].is_array()),
        "metrics are not open to every pod: {spec}"
    );

    let (host, port) = match settings.azure.imds_authority.split_once(':') {
        Some((host, port)) => (host, port.parse().unwrap()),
        None => (settings.azure.imds_authority.as_str(), 80),
    };
    let imds = (port, "TCP".to_owned(), Some(format!("{host}/32")));
    let dns = ["TCP", "UDP"].map(|protocol| (53, protocol.to_owned(), None));
    let egress: BTreeSet<_> = [tcp(443), tcp(6443), tcp(METRICS_PORT), imds]
        .into_iter()
        .chain(dns)
        .collect();
    assert_eq!(ports(&spec["egress"]), egress);
}

#[test]
fn network_policy_opens_the_ports_of_the_proxies_and_what_the_values_add() {
    let egress = |values: Value| {
        let objects = render(&folder(&merged(hardened(), values)));
        ports(&only(&objects, "NetworkPolicy")["spec"]["egress"])
    };
    let before = egress(json!({}));
    let tcp = |port| (port, "TCP".to_owned(), None);
    for (values, expected) in [
        (json!({"proxy": {"https": "http://proxy.example.com:3128"}}), vec![3128]),
        (
            json!({"proxy": {"http": "http://user:p%40ss@10.0.0.9:8080/"}}),
            vec![8080],
        ),
        (
            json!({"proxy": {"https": "http://[fd00::9]:3128", "http": "http://[fd00::9]"}}),
            vec![80, 3128],
        ),
        (json!({"proxy": {"https": "http://proxy"}}), vec![80]),
        (
            json!({"networkPolicy": {"extraEgress": [{"ports": [{"port": 4318, "protocol": "TCP"}]}]}}),
            vec![4318],
        ),
    ] {
        let added: Vec<_> = egress(values.clone()).difference(&before).cloned().collect();
        let expected: Vec<_> = expected.into_iter().map(tcp).collect();
        assert_eq!(added, expected, "{values}");
    }
}
