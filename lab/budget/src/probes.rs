//! The probe settings of a Service's load balancer: from its rules in ARM, from its annotations, or the provider's.
//!
//! A Service can have several probes. The one that notices last counts.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
use serde_json::Value;

use crate::probe::{ProbeRule, ProbeSettings, Provider};

/// The prefix of the annotations of all providers.
const PREFIX: &str = "service.beta.kubernetes.io/";

/// Probe settings and where they are from.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundProbe {
    /// The settings.
    pub settings: ProbeSettings,
    /// Where they are from, in words.
    pub source: String,
    /// Rules without a probe, by their names: their backends are never taken out.
    pub unprobed_rules: Vec<String>,
}

/// The settings of the probes that a Service's rules use, in the `loadBalancingRules` and `probes` of one load balancer;
/// none if it has no rule that `is_own` accepts.
pub fn from_rules(load_balancer: &str, rules: &Value, is_own: impl Fn(&str) -> bool) -> Option<FoundProbe> {
    let list = |name: &str| rules[name].as_array().into_iter().flatten();
    let name = |item: &Value| item["name"].as_str().unwrap_or_default().to_owned();
    let own: Vec<_> = list("loadBalancingRules").filter(|rule| is_own(&name(rule))).collect();
    let mut found: Option<(ProbeSettings, String)> = None;
    let mut unprobed_rules = Vec::new();
    for rule in &own {
        let id = rule["properties"]["probe"]["id"].as_str().unwrap_or_default();
        let used = id.rsplit('/').next().unwrap_or_default();
        let probe = list("probes").find(|probe| !used.is_empty() && name(probe).eq_ignore_ascii_case(used));
        let Some(settings) = probe.and_then(azure_probe) else {
            unprobed_rules.push(name(rule));
            continue;
        };
        if found
            .as_ref()
            .is_none_or(|(slowest, _)| slowness(&settings) > slowness(slowest))
        {
            found = Some((settings, format!("probe {used} of load balancer {load_balancer}")));
        }
    }
    if own.is_empty() {
        return None;
    }
    let (settings, source) = found.unwrap_or_else(|| {
        let source = format!("no rule of load balancer {load_balancer} has a probe; cloud-provider-azure's default");
        (Provider::Azure.probe(), source)
    });
    Some(FoundProbe {
        settings,
        source,
        unprobed_rules,
    })
}

/// By which the slowest of several probes is chosen: how late it notices another answer than 200, then none at all.
pub fn slowness(probe: &ProbeSettings) -> (Duration, Duration) {
    (probe.longest_detection(), probe.longest_detection_by_threshold())
}

/// A probe as ARM shows it. `probeThreshold` counts both ways; without it `numberOfProbes` does.
fn azure_probe(probe: &Value) -> Option<ProbeSettings> {
    let number = |name: &str| probe["properties"][name].as_u64().filter(|number| *number > 0);
    let interval = Duration::from_secs(number("intervalInSeconds")?.min(86_400));
    let threshold = number("probeThreshold")
        .or_else(|| number("numberOfProbes"))
        .unwrap_or(1);
    let threshold = u32::try_from(threshold).unwrap_or(u32::MAX).min(1000);
    Some(ProbeSettings {
        interval,
        timeout: interval,
        unhealthy_threshold: threshold,
        healthy_threshold: threshold,
        rule: match probe["properties"]["protocol"].as_str() {
            Some(protocol) if protocol.eq_ignore_ascii_case("tcp") => ProbeRule::Threshold,
            _ => ProbeRule::FirstNon200,
        },
    })
}

/// The settings that a provider's cloud controller manager takes from a Service's annotations, over its defaults. A value
/// that is not a number above zero is ignored. Azure probes a node port over TCP by default, and a `healthCheckNodePort` over HTTP.
pub fn from_annotations(provider: Provider, annotations: &BTreeMap<String, String>, spec: &ServiceSpec) -> FoundProbe {
    let text = |name: &str| annotations.get(&format!("{PREFIX}{name}")).map(|value| value.trim());
    let number = |name: &str| -> Option<u32> {
        let value = text(name)?.parse().ok()?;
        (1..=86_400).contains(&value).then_some(value)
    };
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let mut preset = provider.probe();
    if provider == Provider::Azure && !is_local {
        preset.rule = ProbeRule::Threshold;
    }
    let mut settings = preset;
    match provider {
        Provider::Azure => {
            let of_port = |port: Option<&ServicePort>| {
                let key = |name: &str| port.map(|port| format!("port_{}_health-probe_{name}", port.port));
                let general = |name: &str| format!("azure-load-balancer-health-probe-{name}");
                let own = |name: &str| {
                    key(name)
                        .and_then(|key| number(&key))
                        .or_else(|| number(&general(name)))
                };
                let has_own_probe = !is_local || key("port").is_some_and(|key| text(&key).is_some());
                let app_protocol = || port.and_then(|port| port.app_protocol.as_deref());
                let protocol = key("protocol").and_then(|key| text(&key)).or_else(app_protocol);
                let protocol = protocol
                    .or_else(|| text(&general("protocol")))
                    .unwrap_or("tcp")
                    .to_ascii_lowercase();
                let is_http = !has_own_probe || ["http", "https"].contains(&protocol.as_str());
                let interval = own("interval").map_or(preset.interval, |seconds| Duration::from_secs(seconds.into()));
                let threshold = own("num-of-probe").unwrap_or(preset.unhealthy_threshold);
                ProbeSettings {
                    interval,
                    timeout: interval,
                    unhealthy_threshold: threshold,
                    healthy_threshold: threshold,
                    rule: if is_http {
                        ProbeRule::FirstNon200
                    } else {
                        ProbeRule::Threshold
                    },
                }
            };
            let each = spec.ports.iter().flatten().map(|port| of_port(Some(port)));
            settings = each.max_by_key(slowness).unwrap_or_else(|| of_port(None));
        }
        Provider::AwsCluster | Provider::AwsLocal => {
            let own = |name: &str| number(&format!("aws-load-balancer-healthcheck-{name}"));
            let seconds = |name: &str| own(name).map(|seconds| Duration::from_secs(seconds.into()));
            settings.interval = seconds("interval").unwrap_or(preset.interval);
            settings.timeout = seconds("timeout").unwrap_or(preset.timeout);
            settings.unhealthy_threshold = own("unhealthy-threshold").unwrap_or(preset.unhealthy_threshold);
            settings.healthy_threshold = own("healthy-threshold").unwrap_or(preset.healthy_threshold);
        }
        // Its probes are fixed.
        Provider::Gcp => {}
    }
    let name = match provider {
        Provider::Azure => "cloud-provider-azure",
        Provider::AwsCluster | Provider::AwsLocal => "cloud-provider-aws",
        Provider::Gcp => "cloud-provider-gcp",
    };
    FoundProbe {
        settings,
        source: if settings == preset {
            format!("default of {name}")
        } else {
            "annotations of the Service".to_owned()
        },
        unprobed_rules: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(found: &FoundProbe) -> (u64, u32) {
        (found.settings.interval.as_secs(), found.settings.unhealthy_threshold)
    }

    #[test]
    fn the_slowest_probe_of_the_services_rules_counts() {
        let probe = |name: &str, interval: u32, count: Value| json!({"name": name, "properties": {"intervalInSeconds": interval, "numberOfProbes": 1, "probeThreshold": count}});
        let rule = |name: &str, probe: &str| json!({"name": name, "properties": {"probe": {"id": format!("/x/probes/{probe}")}}});
        let rules = json!({
            "probes": [probe("fast", 5, json!(2)), probe("slow", 10, json!(3)), probe("other", 60, json!(9)), probe("old", 15, Value::Null)],
            "loadBalancingRules": [rule("own-80", "fast"), rule("own-443", "SLOW"), rule("else-80", "other"), rule("old-80", "old"),
                {"name": "bare-80", "properties": {}}],
        });
        let found = from_rules("kubernetes", &rules, |name| name.starts_with("own-")).unwrap();
        assert_eq!(figures(&found), (10, 3));
        assert_eq!(found.source, "probe SLOW of load balancer kubernetes");
        let old = from_rules("kubernetes", &rules, |name| name == "old-80").unwrap();
        assert_eq!(figures(&old), (15, 1), "numberOfProbes without probeThreshold");
        let bare = from_rules("kubernetes", &rules, |name| name == "bare-80").unwrap();
        assert_eq!(
            (figures(&bare), bare.unprobed_rules),
            ((5, 2), vec!["bare-80".to_owned()])
        );
        let equal = json!({"probes": [probe("one", 5, json!(2)), probe("two", 5, json!(2)), probe("never", 0, json!(2))],
            "loadBalancingRules": [rule("a", "one"), rule("b", "two"), rule("c", "never")]});
        let equal = from_rules("kubernetes", &equal, |_| true).unwrap();
        assert_eq!(
            equal.source, "probe one of load balancer kubernetes",
            "the first of several"
        );
        assert_eq!(equal.unprobed_rules, ["c"], "an interval of 0 s is none");
        assert_eq!(from_rules("kubernetes", &rules, |_| false), None);
        assert_eq!(from_rules("kubernetes", &json!([]), |_| true), None);
    }

    #[test]
    fn a_tcp_probe_counts_every_failure_against_its_threshold() {
        let probe = |protocol: &str| {
            azure_probe(&json!({"properties": {"protocol": protocol, "intervalInSeconds": 5, "probeThreshold": 3}}))
        };
        let longest = ["Tcp", "Http", "Https"].map(|protocol| probe(protocol).unwrap().longest_detection().as_secs());
        assert_eq!(longest, [15, 5, 5]);
    }

    /// A Service with two ports, of which the second has this `appProtocol`, if any.
    fn spec(policy: &str, app_protocol: &str) -> ServiceSpec {
        let app_protocol = Some(app_protocol).filter(|name| !name.is_empty());
        let ports = json!([{"port": 80, "appProtocol": "http"}, {"port": 443, "appProtocol": app_protocol}]);
        serde_json::from_value(json!({"externalTrafficPolicy": policy, "ports": ports})).unwrap()
    }

    #[test]
    fn azure_probes_a_node_port_over_tcp_unless_the_service_says_http() {
        let general = ("azure-load-balancer-health-probe-protocol", "Http");
        let (own_http, own_tcp) = (
            ("port_443_health-probe_protocol", "https"),
            ("port_443_health-probe_protocol", "tcp"),
        );
        let own_port = ("port_443_health-probe_port", "10456");
        for (policy, app_protocol, pairs, longest) in [
            ("Cluster", "", &[][..], 10),
            ("Cluster", "", &[general], 5),
            ("Cluster", "", &[own_http], 5),
            ("Cluster", "http", &[], 5),
            ("Cluster", "tcp", &[general], 10),
            ("Cluster", "http", &[own_tcp, general], 10),
            ("Local", "", &[], 5),
            ("Local", "", &[own_tcp], 5),
            ("Local", "", &[own_port], 10),
            ("Local", "", &[own_port, own_http], 5),
        ] {
            let annotations = pairs
                .iter()
                .map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned()));
            let found = from_annotations(Provider::Azure, &annotations.collect(), &spec(policy, app_protocol));
            let found = found.settings.longest_detection().as_secs();
            assert_eq!(found, longest, "{policy} {app_protocol:?} {pairs:?}");
        }
    }

    #[test]
    fn annotations_of_a_port_win_over_those_of_the_service() {
        let found = |provider: Provider, pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned()));
            from_annotations(provider, &pairs.collect(), &spec("Local", ""))
        };
        let defaults = found(Provider::Azure, &[]);
        assert_eq!(figures(&defaults), (5, 2));
        assert_eq!(defaults.source, "default of cloud-provider-azure");
        let azure = [
            ("azure-load-balancer-health-probe-interval", "10"),
            ("azure-load-balancer-health-probe-num-of-probe", "3"),
            ("port_443_health-probe_interval", "20"),
        ];
        assert_eq!(figures(&found(Provider::Azure, &azure)), (20, 3), "the slower port");
        assert_eq!(found(Provider::Azure, &azure).source, "annotations of the Service");
        let aws = [
            ("aws-load-balancer-healthcheck-interval", "30"),
            ("aws-load-balancer-healthcheck-unhealthy-threshold", "x"),
        ];
        assert_eq!(figures(&found(Provider::AwsLocal, &aws)), (30, 2));
        assert_eq!(figures(&found(Provider::Gcp, &aws)), (8, 3));
    }
}
