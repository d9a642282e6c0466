//! Settings that are allowed each, but not together. Pure.

use std::net::{IpAddr, SocketAddr};

use headgate_local_pools::resolve_selection;

use super::{MarkerMode, MarkerWriter, Settings};

/// The conflicts between validated settings: a key and the message of its violation.
pub(super) fn conflicts(settings: &Settings) -> impl Iterator<Item = (&'static str, String)> {
    let (health, operations) = (settings.healthz_bind_address, settings.metrics_bind_address);
    // Both listeners would bind, because ports are shared between processes, and each would get half of the requests.
    let shared = (health.port() == operations.port() && health.port() != 0).then(|| {
        let message = format!(
            "port {} is also the port of node.healthzBindAddress; allowed: another port",
            operations.port()
        );
        ("metricsBindAddress", message)
    });
    // headgate would poll itself, and its own 503 would never end.
    let authority = settings.proxy.healthz_authority.as_deref();
    let own = authority.filter(|authority| is_own_address(authority, health)).map(|authority| {
        let message = format!(
            "\"http://{authority}\" is where headgate itself listens (node.healthzBindAddress {health}); allowed: where kube-proxy \
             listens, on another port, or off"
        );
        ("node.proxy.healthzUrl", message)
    });
    let local_pools = &settings.local_pools;
    let selection = resolve_selection(local_pools.enabled, local_pools.endpoints);
    let fought_over = selection.err().map(|error| ("localPools.endpoints", error.to_string()));
    // Both would write the condition of a Node, and contradict each other.
    let azure = &settings.azure;
    let leader = [
        ("marker.mode adminState", settings.marker.mode == MarkerMode::AdminState),
        ("azure.configFile", azure.config_file.is_some()),
        ("azure.configSecret", azure.config_secret.is_some()),
    ];
    let leader = leader
        .into_iter()
        .find(|(_, is_set)| *is_set && settings.marker.probes > 0);
    let second_writer = leader.map(|(key, _)| {
        let message = format!(
            "{} is not allowed beside {key}: a leader manages Azure; allowed: 0, with marker.mode adminState for a condition that \
             the leader writes",
            settings.marker.probes
        );
        ("node.markerProbes", message)
    });
    // Nothing but the timeout would end the delay.
    let is_delayed = settings.hold_deletion.cluster_autoscaler_timeout().is_some();
    let unconfirmed = (is_delayed && settings.marker.writer() == MarkerWriter::None).then(|| {
        let message = "candidates is not allowed without the condition headgate.dev/OutOfLoadBalancers, which ends the delay; allowed: off, \
                       or candidates with marker.mode adminState or node.markerProbes";
        ("holdDeletion.clusterAutoscaler", message.to_owned())
    });
    let notifications = super::notifications::conflict(settings);
    let all = shared.into_iter().chain(own).chain(fought_over);
    all.chain(second_writer).chain(unconfirmed).chain(notifications)
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

    #[test]
    fn conflicting_settings() {
        for (text, key) in [
            ("localPools: {endpoints: ready}\n", Some("localPools.endpoints")),
            ("localPools: {endpoints: ready, enabled: on}\n", None),
            ("marker: {probes: 2}\n", None),
            ("marker: {probes: 2, mode: adminState}\n", Some("marker.probes")),
            ("marker: {probes: 2}\nazure: {configFile: /a}\n", Some("marker.probes")),
            (
                "marker: {probes: 2}\nazure: {configSecret: a/b}\n",
                Some("marker.probes"),
            ),
            ("marker: {probes: 0, mode: adminState}\nazure: {configFile: /a}\n", None),
            ("marker: {probes: 101}\n", Some("marker.probes")),
            (
                "holdDeletion: {clusterAutoscaler: candidates}\n",
                Some("holdDeletion.clusterAutoscaler"),
            ),
            ("holdDeletion: {clusterAutoscaler: off}\n", None),
            (
                "holdDeletion: {clusterAutoscaler: candidates}\nmarker: {probes: 2}\n",
                None,
            ),
            (
                "holdDeletion: {clusterAutoscaler: candidates}\nmarker: {mode: adminState}\n",
                None,
            ),
            (
                "holdDeletion: {clusterAutoscaler: always}\n",
                Some("holdDeletion.clusterAutoscaler"),
            ),
            ("holdDeletion: {timeout: 9s}\n", Some("holdDeletion.timeout")),
            ("holdDeletion: {timeout: 11m}\n", Some("holdDeletion.timeout")),
            ("holdDeletion: {timeout: 10m}\n", None),
            (
                "healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: 127.0.0.1:1\n",
                Some("metricsBindAddress"),
            ),
            (
                "healthzBindAddress: \"[::]:1\"\nmetricsBindAddress: 127.0.0.1:1\n",
                Some("metricsBindAddress"),
            ),
            (
                "healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\n",
                None,
            ),
            ("healthzBindAddress: \"[::]:10256\"\n", Some("proxy.healthzUrl")),
            (
                "healthzBindAddress: 10.0.0.1:9\nproxy: {healthzUrl: \"http://localhost:9\"}\n",
                Some("proxy.healthzUrl"),
            ),
            (
                "healthzBindAddress: 10.0.0.1:9\nproxy: {healthzUrl: \"http://10.0.0.1:9\"}\n",
                Some("proxy.healthzUrl"),
            ),
            (
                "healthzBindAddress: 10.0.0.1:9\nproxy: {healthzUrl: \"http://10.0.0.2:9\"}\n",
                None,
            ),
            (
                "healthzBindAddress: \"[::]:10256\"\nproxy: {healthzUrl: \"http://127.0.0.1:10258\"}\n",
                None,
            ),
            ("healthzBindAddress: \"[::]:10256\"\nproxy: {healthzUrl: off}\n", None),
            (
                "notifications: {template: \"{{ note }}\"}\n",
                Some("notifications.template"),
            ),
            (
                "notifications: {template: \"{{ note }}\", contentType: text/plain}\n",
                None,
            ),
            ("notifications: {template: \"{{ note | tojson }}\"}\n", None),
            (
                "notifications: {template: \"{{ nothing }}\", contentType: text/plain}\n",
                Some("notifications.template"),
            ),
            ("notifications: {events: [node]}\n", Some("notifications.events")),
            ("notifications: {events: []}\n", None),
            (
                "notifications: {contentType: \"a\\nb/c\"}\n",
                Some("notifications.contentType"),
            ),
            ("notifications: {urlFile: relative}\n", Some("notifications.urlFile")),
        ] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let error = load(Some(file.path()), &[]).err();
            let found = error.and_then(|error| error.0[0].key.clone());
            assert_eq!(found.as_deref(), key, "{text}");
        }
    }
}
