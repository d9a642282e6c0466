//! Settings that are allowed each, but not together. Pure.

use std::net::{IpAddr, SocketAddr};

use headgate_core::node::KnownSignal;
use headgate_core::settings::format_duration;

use super::{ConditionSource, Settings};

/// Keys that are not allowed together, the first of which has the message, about all of them.
pub(super) struct Conflict {
    pub(super) keys: &'static [&'static str],
    pub(super) message: String,
}

/// The conflicts between settings. One that has a mistake of its own counts with its default, so its conflicts say nothing.
pub(super) fn conflicts(settings: &Settings) -> impl Iterator<Item = Conflict> {
    [
        shared_port(settings),
        own_health_server(settings),
        contradicting_signal(settings),
        second_writer(settings),
        endless_delay(settings),
        unused_causes(settings),
        endless_drain(settings),
    ]
    .into_iter()
    .flatten()
}

/// Both listeners would bind, because ports are shared between processes, and each would get half of the requests.
fn shared_port(settings: &Settings) -> Option<Conflict> {
    let (health, operations) = (settings.healthz_bind_address, settings.metrics_bind_address);
    let is_shared = health.port() == operations.port() && health.port() != 0;
    let message =
        format!("\"{operations}\" has the port of healthzBindAddress, \"{health}\", as well; allowed: another port");
    let keys = &["metricsBindAddress", "healthzBindAddress"];
    is_shared.then_some(Conflict { keys, message })
}

/// headgate would poll itself, and its own 503 would never end.
fn own_health_server(settings: &Settings) -> Option<Conflict> {
    let health = settings.healthz_bind_address;
    let authority = settings.kube_proxy.healthz_authority.as_deref()?;
    let message = format!(
        "\"http://{authority}\" is where headgate itself listens (healthzBindAddress {health}); allowed: where kube-proxy listens, on \
         another port, or Disabled"
    );
    let keys = &["kubeProxyHealthzUrl", "healthzBindAddress"];
    is_own_address(authority, health).then_some(Conflict { keys, message })
}

/// Neither list would win.
fn contradicting_signal(settings: &Settings) -> Option<Conflict> {
    let signal = settings.signals.contradiction()?.as_str();
    let message =
        format!("\"{signal}\" is not allowed beside signals.disabled, which names it, too; allowed: one of the two");
    let keys = &["signals.extra", "signals.disabled"];
    Some(Conflict { keys, message })
}

/// Both would write the condition of a Node, and contradict each other.
fn second_writer(settings: &Settings) -> Option<Conflict> {
    let azure = &settings.azure;
    let leader = [
        ("--azure-config-file", azure.config_file.is_some()),
        ("azure.configSecret", azure.config_secret.is_some()),
    ];
    let (name, _) = leader.into_iter().find(|(_, is_set)| *is_set)?;
    let message =
        format!("\"FailedProbes\" is not allowed beside {name}: a leader manages Azure; allowed: AdminState, Disabled");
    let is_second = settings.out_of_load_balancers.source == ConditionSource::FailedProbes;
    let keys = &["outOfLoadBalancers.source", "azure.configSecret", "azureConfigFile"];
    is_second.then_some(Conflict { keys, message })
}

/// Nothing but its own end would end the delay.
fn endless_delay(settings: &Settings) -> Option<Conflict> {
    let delay = settings.cluster_autoscaler_delay?;
    let message = format!(
        "\"{}\" is not allowed without the condition headgate.dev/OutOfLoadBalancers, which ends the delay; allowed: null, or a delay with \
         outOfLoadBalancers.source",
        format_duration(delay)
    );
    let is_unconfirmed = settings.out_of_load_balancers.source == ConditionSource::Disabled;
    let keys = &["delayTermination.clusterAutoscaler", "outOfLoadBalancers.source"];
    is_unconfirmed.then_some(Conflict { keys, message })
}

/// Nobody acts on a maintenance that nobody may create.
fn unused_causes(settings: &Settings) -> Option<Conflict> {
    let maintenance = &settings.maintenance;
    let causes: Vec<_> = maintenance
        .automatic
        .causes
        .keys()
        .map(|cause| cause.as_str())
        .collect();
    let message = format!(
        "\"{}\" without maintenance.enabled is not allowed; allowed: an empty list",
        causes.join("\", \"")
    );
    let is_unused = !maintenance.enabled && !causes.is_empty();
    let keys = &["maintenance.automatic", "maintenance.enabled"];
    is_unused.then_some(Conflict { keys, message })
}

/// No load balancer would lose a node under maintenance, which its drain waits for.
fn endless_drain(settings: &Settings) -> Option<Conflict> {
    let message = "the boolean true is not allowed where the signal maintenance (signals.disabled, signals.extra) does not count for \
                   adminState, or without Azure for health: a drain with confirmation Required would wait without end; allowed: false";
    let is_endless = settings.maintenance.enabled && !settings.takes_out(KnownSignal::Maintenance);
    let keys = &[
        "maintenance.enabled",
        "signals.disabled",
        "signals.extra",
        "outOfLoadBalancers.source",
    ];
    is_endless.then(|| Conflict {
        keys,
        message: message.to_owned(),
    })
}

/// Whether a request to `authority` may come to a listener at `address`.
fn is_own_address(authority: &str, address: SocketAddr) -> bool {
    let Some((host, port)) = authority.rsplit_once(':') else {
        return false;
    };
    let local = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback() || ip.is_unspecified() || ip == address.ip(),
        Err(_) => host == "localhost",
    };
    local && port.parse() == Ok(address.port()) && address.port() != 0
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::load;

    /// The keys of the mistakes in these settings.
    fn keys(settings: &str) -> Vec<String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let header = "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n";
        write!(file, "{header}{settings}").unwrap();
        let mistakes = load(Some(file.path()), &[])
            .err()
            .map_or_else(Vec::new, |error| error.0);
        mistakes.into_iter().map(|mistake| mistake.key.unwrap()).collect()
    }

    #[test]
    fn conflicting_settings() {
        for (key, texts) in [
            (
                Some("outOfLoadBalancers.source"),
                &["outOfLoadBalancers: {source: FailedProbes}\nazure: {configSecret: a/b}\n"] as &[_],
            ),
            (
                Some("outOfLoadBalancers.failedProbes"),
                &[
                    "outOfLoadBalancers: {failedProbes: 101}\n",
                    "outOfLoadBalancers: {failedProbes: 0}\n",
                ],
            ),
            (
                Some("delayTermination.clusterAutoscaler"),
                &[
                    "delayTermination: {clusterAutoscaler: 2m}\n",
                    "delayTermination: {clusterAutoscaler: true}\n",
                    "delayTermination: {clusterAutoscaler: 9s}\n",
                    "delayTermination: {clusterAutoscaler: 11m}\n",
                ],
            ),
            (
                Some("signals.extra"),
                &["signals: {disabled: [spot], extra: [{signal: spot, for: [health]}]}\n"],
            ),
            (
                Some("maintenance.enabled"),
                &[
                    "maintenance: {enabled: true}\nsignals: {disabled: [maintenance]}\n",
                    "maintenance: {enabled: true}\noutOfLoadBalancers: {source: AdminState}\n\
                     signals: {extra: [{signal: maintenance, for: [health]}]}\n",
                    "maintenance: {enabled: true}\nazure: {configSecret: a/b}\n\
                     signals: {extra: [{signal: maintenance, for: [health]}]}\n",
                    "maintenance: {enabled: true}\noutOfLoadBalancers: {source: FailedProbes}\n\
                     signals: {extra: [{signal: maintenance, for: [adminState]}]}\n",
                ],
            ),
            (
                Some("metricsBindAddress"),
                &[
                    "healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: 127.0.0.1:1\n",
                    "healthzBindAddress: \"[::]:1\"\nmetricsBindAddress: 127.0.0.1:1\n",
                ],
            ),
            (
                Some("kubeProxyHealthzUrl"),
                &[
                    "healthzBindAddress: \"[::]:10256\"\n",
                    "healthzBindAddress: 10.0.0.1:9\nkubeProxyHealthzUrl: \"http://localhost:9\"\n",
                    "healthzBindAddress: 10.0.0.1:9\nkubeProxyHealthzUrl: \"http://10.0.0.1:9\"\n",
                ],
            ),
            (
                Some("notifications.template"),
                &[
                    "notifications: {template: '{\"text\": {{ note }}}'}\n",
                    "notifications: {template: \"{{ nothing }}\"}\n",
                ],
            ),
            (Some("notifications.events"), &["notifications: {events: [node]}\n"]),
            (Some("notifications.urlFile"), &["notifications: {urlFile: relative}\n"]),
            (
                None,
                &[
                    "outOfLoadBalancers: {source: FailedProbes}\n",
                    "outOfLoadBalancers: {source: AdminState}\n",
                    "outOfLoadBalancers: {source: AdminState, failedProbes: 7}\nazure: {configSecret: a/b}\n",
                    "delayTermination: {clusterAutoscaler: null}\n",
                    "delayTermination: {clusterAutoscaler: 10m}\noutOfLoadBalancers: {source: FailedProbes}\n",
                    "delayTermination: {clusterAutoscaler: 10s}\noutOfLoadBalancers: {source: AdminState}\n",
                    "signals: {disabled: [spot], extra: [{signal: cordon, for: [health]}]}\n",
                    "healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\n",
                    "healthzBindAddress: 10.0.0.1:9\nkubeProxyHealthzUrl: \"http://10.0.0.2:9\"\n",
                    "healthzBindAddress: \"[::]:10256\"\nkubeProxyHealthzUrl: \"http://127.0.0.1:10258\"\n",
                    "healthzBindAddress: \"[::]:10256\"\nkubeProxyHealthzUrl: Disabled\n",
                    "maintenance: {enabled: true}\nsignals: {disabled: [spot]}\n",
                    "maintenance: {enabled: true}\noutOfLoadBalancers: {source: AdminState}\n\
                     signals: {extra: [{signal: maintenance, for: [adminState]}]}\n",
                    "maintenance: {enabled: true}\nsignals: {extra: [{signal: maintenance, for: [health]}]}\n",
                    "signals: {disabled: [maintenance]}\n",
                    "notifications: {template: \"{{ note }}\"}\n",
                    "notifications: {template: \"{{ note | tojson }}\"}\n",
                    "notifications: {events: []}\n",
                ],
            ),
        ] {
            for text in texts {
                assert_eq!(keys(text).first().map(String::as_str), key, "{text}");
            }
        }
    }

    #[test]
    fn conflicts_are_reported_beside_other_mistakes_but_not_of_a_key_that_has_one() {
        let delay = "delayTermination: {clusterAutoscaler: 2m}\n";
        assert_eq!(
            keys(&format!("{delay}logFormat: x\n")),
            ["logFormat", "delayTermination.clusterAutoscaler"]
        );
        assert_eq!(
            keys(&format!("{delay}outOfLoadBalancers: {{source: x}}\n")),
            ["outOfLoadBalancers.source"]
        );
    }
}
