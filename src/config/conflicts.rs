//! Settings that are allowed each, but not together. Pure.

use std::net::{IpAddr, SocketAddr};

use headgate_agent::notify::Template;
use headgate_controller::local_pools::resolve_selection;

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
    let all = shared.into_iter().chain(own).chain(fought_over);
    all.chain(second_writer)
        .chain(unconfirmed)
        .chain(unused_causes(settings))
        .chain(no_json(settings))
}

/// Nobody acts on a maintenance that nobody may create.
fn unused_causes(settings: &Settings) -> Option<(&'static str, String)> {
    let maintenance = &settings.maintenance;
    let is_unused = !maintenance.enabled && !maintenance.automatic.causes.is_empty();
    let message = "a cause is not allowed without maintenance.enabled; allowed: an empty list";
    is_unused.then(|| ("maintenance.automatic", message.to_owned()))
}

/// A body that is called JSON must be JSON.
fn no_json(settings: &Settings) -> Option<(&'static str, String)> {
    let notifications = &settings.notifications;
    let media_type = notifications.content_type.split(';').next().unwrap_or_default().trim();
    let is_json = media_type.ends_with("/json") || media_type.ends_with("+json");
    let error = Template::new(notifications.template.as_str(), is_json).err()?;
    let message = format!("{error}; or set notifications.contentType to that of the body, such as text/plain");
    Some(("notifications.template", message))
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

    /// The key of the first mistake in these settings.
    fn first_conflict(settings: &str) -> Option<String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(
            file,
            "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n{settings}"
        )
        .unwrap();
        load(Some(file.path()), &[]).err()?.0[0].key.clone()
    }

    #[test]
    fn conflicting_settings() {
        for (text, key) in [
            ("localPools: {endpoints: ready}\n", Some("localPools.endpoints")),
            ("localPools: {endpoints: ready, enabled: on}\n", None),
            ("node: {markerProbes: 2}\n", None),
            (
                "node: {markerProbes: 2}\nmarker: {mode: adminState}\n",
                Some("node.markerProbes"),
            ),
            (
                "node: {markerProbes: 2}\nazure: {configFile: /a}\n",
                Some("node.markerProbes"),
            ),
            (
                "node: {markerProbes: 2}\nazure: {configSecret: a/b}\n",
                Some("node.markerProbes"),
            ),
            (
                "node: {markerProbes: 0}\nmarker: {mode: adminState}\nazure: {configFile: /a}\n",
                None,
            ),
            ("node: {markerProbes: 101}\n", Some("node.markerProbes")),
            (
                "holdDeletion: {clusterAutoscaler: candidates}\n",
                Some("holdDeletion.clusterAutoscaler"),
            ),
            ("holdDeletion: {clusterAutoscaler: off}\n", None),
            (
                "holdDeletion: {clusterAutoscaler: candidates}\nnode: {markerProbes: 2}\n",
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
                "node: {healthzBindAddress: 127.0.0.1:1}\nmetricsBindAddress: 127.0.0.1:1\n",
                Some("metricsBindAddress"),
            ),
            (
                "node: {healthzBindAddress: \"[::]:1\"}\nmetricsBindAddress: 127.0.0.1:1\n",
                Some("metricsBindAddress"),
            ),
            (
                "node: {healthzBindAddress: 127.0.0.1:0}\nmetricsBindAddress: 127.0.0.1:0\n",
                None,
            ),
            (
                "node: {healthzBindAddress: \"[::]:10256\"}\n",
                Some("node.proxy.healthzUrl"),
            ),
            (
                "node: {healthzBindAddress: 10.0.0.1:9, proxy: {healthzUrl: \"http://localhost:9\"}}\n",
                Some("node.proxy.healthzUrl"),
            ),
            (
                "node: {healthzBindAddress: 10.0.0.1:9, proxy: {healthzUrl: \"http://10.0.0.1:9\"}}\n",
                Some("node.proxy.healthzUrl"),
            ),
            (
                "node: {healthzBindAddress: 10.0.0.1:9, proxy: {healthzUrl: \"http://10.0.0.2:9\"}}\n",
                None,
            ),
            (
                "node: {healthzBindAddress: \"[::]:10256\", proxy: {healthzUrl: \"http://127.0.0.1:10258\"}}\n",
                None,
            ),
            (
                "node: {healthzBindAddress: \"[::]:10256\", proxy: {healthzUrl: off}}\n",
                None,
            ),
        ] {
            assert_eq!(first_conflict(text).as_deref(), key, "{text}");
        }
    }

    #[test]
    fn conflicting_notifications() {
        for (text, key) in [
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
            assert_eq!(first_conflict(text).as_deref(), key, "{text}");
        }
    }
}
