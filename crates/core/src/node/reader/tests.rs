use serde_json::{Value, json};

use super::*;
use crate::node::known_signals::SignalSettings;
use crate::node::marker::MarkerStatus;
use crate::node::matcher::SignalMatcher;
use crate::node::names::SPOT_NOTICE_ANNOTATION;
use crate::node::report::NodeReport;

/// As an agent reads its own Node.
fn own(object: &Value) -> Node {
    let reader = NodeReader::own(SignalSettings::default().health());
    reader.read(serde_json::from_value(object.clone()).unwrap())
}

/// As a leader reads all Nodes.
fn read(object: &Value) -> Node {
    let reader = NodeReader {
        rules: SignalSettings::default().admin_state(),
        health_rules: SignalSettings::default().health(),
        ..NodeReader::default()
    };
    reader.read(serde_json::from_value(object.clone()).unwrap())
}

#[test]
fn bare_node_has_nothing_but_its_uid() {
    let bare = Node {
        uid: "u".into(),
        ..Node::default()
    };
    assert_eq!(own(&json!({"metadata": {"uid": "u"}})), bare);
}

#[test]
fn what_changes_with_each_renewal_is_kept_of_the_own_node_only() {
    let object = |second: &str| {
        let hold = json!({"nodeUid": "u", "pools": ["lb/p"], "probesHeadgate": true, "signals": ["k"], "renewedAt": format!("2026-01-01T00:00:{second}Z")});
        json!({"metadata": {"name": "n", "uid": "u", "annotations": {"headgate.dev/hold": hold.to_string()}},
            "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": second, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "headgate.dev/OutOfLoadBalancers", "status": "True", "reason": "r",
                "lastHeartbeatTime": format!("2026-01-01T00:00:{second}Z")}, {"type": "Ready", "status": "True",
                "lastHeartbeatTime": format!("2026-01-01T00:00:{second}Z")}]}})
    };
    assert_eq!(read(&object("01")), read(&object("02")));
    let (first, second) = (own(&object("01")), own(&object("02")));
    assert!(first.hold != second.hold && first.marker != second.marker && first.taints != second.taints);
}

#[test]
fn the_time_of_a_taint_is_kept_of_the_own_cordon_only() {
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"});
    let object = json!({"metadata": {}, "spec": {"taints": [taint(CORDON_TAINT), taint("other")]}});
    for (node, expected) in [(own(&object), [true, false]), (read(&object), [false, false])] {
        let kept: Vec<_> = node.taints.iter().map(|taint| taint.time_added.is_some()).collect();
        assert_eq!(kept, expected);
    }
}

#[test]
fn windows_and_virtual_nodes_lack_an_agent() {
    for (labels, lacks_agent) in [
        (json!({}), false),
        (json!({"kubernetes.io/os": "linux", "type": "x"}), false),
        (json!({"kubernetes.io/os": "windows"}), true),
        (json!({"kubernetes.io/os": "linux", "type": "virtual-kubelet"}), true),
        (json!({"eks.amazonaws.com/compute-type": "fargate"}), true),
        (json!({"eks.amazonaws.com/compute-type": "auto"}), false),
    ] {
        let node = read(&json!({"metadata": {"labels": labels}}));
        assert_eq!(node.lacks_agent, lacks_agent, "{labels}");
    }
}

#[test]
fn taints_and_deletion_are_read() {
    let node = json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "v", "effect": "NoExecute"}]}});
    let node = own(&node);
    assert!(node.is_deleting);
    let keys: Vec<_> = node.taints.iter().map(|taint| taint.key.as_str()).collect();
    assert_eq!(keys, ["a", "b"]);
}

#[test]
fn machine_and_own_annotations_are_read() {
    let node = json!({"metadata": {"annotations": {"headgate.dev/a": "1", "other.dev/b": "2", "headgate.dev/c": "x".repeat(5000)}},
        "spec": {"providerID": "azure:///x"}, "status": {"nodeInfo": {"bootID": "b", "machineID": "m"}}});
    let node = own(&node);
    assert_eq!((node.provider_id.as_str(), node.boot_id.as_str()), ("azure:///x", "b"));
    assert_eq!(node.annotations, [("headgate.dev/a".to_owned(), "1".to_owned())].into());
}

#[test]
fn only_the_shutdown_condition_of_kubelet_counts() {
    let (down, other) = ("node is shutting down", "container runtime is down");
    let several = "[PLEG is not healthy, node is shutting down]";
    // The type, the status and the reason of the condition.
    for (condition, message, is_shutting_down) in [
        ("Ready False KubeletNotReady", down, true),
        ("Ready False KubeletNotReady", several, true),
        ("Ready True KubeletReady", down, false),
        ("Ready Unknown NodeStatusUnknown", down, false),
        ("Ready False KubeletNotReady", other, false),
        ("Ready False Other", down, false),
        ("DiskPressure False KubeletNotReady", down, false),
    ] {
        let mut words = condition.split(' ');
        let condition =
            json!({"type": words.next(), "status": words.next(), "reason": words.next(), "message": message});
        let node = own(&json!({"metadata": {}, "status": {"conditions": [&condition]}}));
        assert_eq!(node.shutting_down, is_shutting_down, "{condition}");
    }
}

#[test]
fn reads_the_fields_that_pools_need() {
    let node = json!({"metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"providerID": "azure:///subscriptions/S/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/N",
            "taints": [{"key": "k", "effect": "NoExecute"}, {"key": "bare"}]},
        "status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.4"},
            {"type": "InternalIP", "address": "FD00::4"}, {"type": "ExternalIP", "address": "1.2.3.4"}, {"type": "InternalIP", "address": "x"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let node = read(&node);
    let machine = "/subscriptions/s/resourcegroups/rg/providers/microsoft.compute/virtualmachines/n";
    assert_eq!(node.machine, machine);
    let addresses = ["10.0.0.4", "fd00::4"].map(|text| text.parse::<IpAddr>().unwrap());
    assert_eq!(node.addresses, addresses);
    assert_eq!(node.taints[0], Taint::new("k", "NoExecute"));
    assert!(node.ready && node.not_ready_since.is_none() && node.excluded.is_none() && node.name == "n");
    assert_eq!(node.created.to_string(), "2026-01-01T00:00:00Z");
    assert!(!node.is_terminal() && node.hold.is_none());
    let bare = read(&json!({"metadata": {"name": "n"}}));
    assert!(bare.machine.is_empty() && bare.addresses.is_empty() && !bare.ready);
}

#[test]
fn health_signals_have_the_names_that_the_agent_uses() {
    let object = json!({"metadata": {"name": "n", "uid": "u", "labels": {"example.com/state": "leaving"},
            "annotations": {"example.com/leaving": "soon"}},
        "spec": {"unschedulable": true, "taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"},
            {"key": "headgate.dev/maintenance", "effect": "NoSchedule"}, {"key": "other", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"},
            {"type": "DiskPressure", "status": "True", "reason": "Full", "message": "disk is full"}]}});
    let matchers = [
        json!({"taint": "headgate.dev/maintenance"}),
        json!({"taint": "aws-node-termination-handler/*"}),
        json!({"condition": {"type": "DiskPressure", "status": "True", "messagePrefix": "disk"}}),
        json!({"label": {"key": "example.com/state", "value": "leaving"}}),
        json!({"annotation": {"key": "example.com/leaving"}}),
        json!({"signal": "cordon", "after": "1h"}),
    ];
    let parsed = matchers.iter().map(|matcher| SignalMatcher::parse(matcher).unwrap());
    let rules = SignalRules {
        matchers: parsed.collect(),
    };
    let leader = NodeReader {
        health_rules: rules.clone(),
        ..NodeReader::default()
    };
    let node = leader.read(serde_json::from_value(object.clone()).unwrap());
    let agent = NodeReader::own(rules.clone()).read(serde_json::from_value(object).unwrap());
    let now = crate::clock::Clock::System.now();
    let report = NodeReport::initial(None, &rules, now).with_node(agent, now);
    let signals = report.signals().keys().chain(report.periods.pending().keys());
    let signals: BTreeSet<_> = signals.cloned().collect();
    assert_eq!(signals.len(), matchers.len());
    assert_eq!(node.health_signals.iter().cloned().collect::<BTreeSet<_>>(), signals);
    assert!(node.signals.is_empty() && !node.is_terminal());
}

#[test]
fn hold_is_read_unless_it_is_another_nodes() {
    let hold =
        r#"{"nodeUid":"u","pools":["lb/p"],"probesHeadgate":true,"signals":["k"],"renewedAt":"2026-01-01T00:00:00Z"}"#;
    let read_hold = |uid: &str| {
        let metadata = json!({"name": "n", "uid": uid, "annotations": {"headgate.dev/hold": hold}});
        read(&json!({"metadata": metadata})).hold
    };
    assert_eq!(read_hold("u").unwrap().pools, ["lb/p".to_owned()].into());
    assert_eq!(read_hold("v"), None);
}

#[test]
fn excludes_the_nodes_that_cloud_provider_azure_excludes() {
    for (label, value, always, with_control_plane) in [
        (EXCLUDE_LABEL, "", true, true),
        (EXCLUDE_LABEL, "false", true, true),
        (MANAGED_LABEL, "false", true, true),
        (MANAGED_LABEL, "False", true, true),
        (MANAGED_LABEL, "true", false, false),
        (CONTROL_PLANE_LABELS[0], "", false, true),
        (CONTROL_PLANE_LABELS[1], "", false, true),
        ("kubernetes.io/role", "master", false, true),
        ("kubernetes.io/role", "agent", false, false),
        ("other", "", false, false),
    ] {
        let labels = BTreeMap::from([(label.to_owned(), value.to_owned())]);
        assert_eq!(excluding_label(&labels).is_some(), always, "{label}={value}");
        let node = read(&json!({"metadata": {"name": "n", "labels": labels}}));
        let node = Arc::new(node).exclude_control_plane();
        assert_eq!(node.excluded.is_some(), with_control_plane, "{label}={value}");
    }
    let in_group = |group: &str| own(&json!({"metadata": {"name": "n", "labels": {RESOURCE_GROUP_LABEL: group}}}));
    for (group, own_group, is_excluded) in [("a", "", true), ("a", "b", true), ("a", "A", false), ("", "b", false)] {
        let other = Arc::new(in_group(group)).exclude_other_resource_group(Some(&in_group(own_group)));
        assert_eq!(other.excluded.is_some(), is_excluded, "{group} {own_group}");
    }
    let labels = json!({EXCLUDE_LABEL: "", CONTROL_PLANE_LABELS[0]: ""});
    let both = Arc::new(read(&json!({"metadata": {"name": "n", "labels": labels}})));
    assert_eq!(both.exclude_control_plane().excluded, Some(EXCLUDE_LABEL));
    assert_eq!(machine_id("gce://p/z/n"), "");
    assert_eq!(machine_id("AZURE:///A"), "/a");
    assert_eq!(machine_id(""), "");
}

#[test]
fn what_maintenances_read_is_kept_for_them_only() {
    let object = json!({
        "metadata": {"name": "one", "labels": {"pool": "a"}, "annotations": {CORDON_ANNOTATION: "false", "headgate.dev/other": "",
            CLUSTER_API_ANNOTATIONS[0]: "ns", CLUSTER_API_ANNOTATIONS[1]: "m"}},
        "spec": {"unschedulable": true, "taints": [
            {"key": MAINTENANCE_TAINT, "value": "by-hand", "effect": "NoExecute"},
            {"key": MAINTENANCE_TAINT, "value": "uid", "effect": "NoSchedule"}]},
        "status": {"conditions": [
            {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
            {"type": "Drained", "status": "True", "message": "m".repeat(2 * MAX_MESSAGE_BYTES)},
            {"type": "headgate.dev/OutOfLoadBalancers", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}]},
    });
    for (detail, maintains, has_times) in [
        (NodeDetail::Signals, false, false),
        (NodeDetail::Maintenance, true, false),
        (NodeDetail::MaintenanceByProbes, true, true),
    ] {
        let reader = NodeReader {
            detail,
            ..NodeReader::default()
        };
        let node = reader.read(serde_json::from_value(object.clone()).unwrap());
        assert!(node.ready && node.annotations.is_empty(), "{detail:?}");
        assert_eq!(node.was_unschedulable, Some(false));
        assert_eq!(node.maintenance_taint.as_deref(), Some("uid"));
        assert_eq!(node.cluster_api_machine.as_deref(), maintains.then_some("ns/m"));
        let kept = (node.unschedulable, node.labels.len(), node.conditions.len());
        assert_eq!(kept, if maintains { (true, 1, 1) } else { (false, 0, 0) }, "{detail:?}");
        let message = node.conditions.get("Drained").map(|condition| condition.message.len());
        assert_eq!(message, maintains.then_some(2 * MAX_MESSAGE_BYTES), "{detail:?}");
        assert_eq!(node.marker.unwrap().confirmed_at.is_some(), has_times, "{detail:?}");
    }
}

#[test]
fn notice_is_a_deadline_while_its_taint_is_there() {
    let notice = r#"{"eventId": "A1", "notBefore": "2026-01-02T03:04:05Z"}"#;
    let taint = json!([{"key": DRAINING_TAINT, "value": "spot-eviction", "effect": "NoSchedule"}]);
    for (taints, record, expected) in [
        (&taint, notice, Some("2026-01-02T03:04:05Z")),
        // Somebody else's, beside a notice that may long have ended.
        (&json!([{"key": DRAINING_TAINT, "effect": "NoSchedule"}]), notice, None),
        (&json!([{"key": DRAINING_TAINT, "value": "reboot"}]), notice, None),
        (&json!([]), notice, None),
        (&taint, "{}", None),
    ] {
        let node = read(&json!({
            "metadata": {"name": "one", "uid": "u", "annotations": {SPOT_NOTICE_ANNOTATION: record}},
            "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"}, "status": {"images": []},
        }));
        let expected = expected.map(|time| time.parse::<Timestamp>().unwrap());
        assert_eq!(node.eviction_deadline(), expected, "{record}");
    }
}

#[test]
fn what_only_the_own_node_needs_is_read() {
    let object = json!({
        "metadata": {"name": "n", "annotations": {CORDON_ANNOTATION: "true", SCALE_DOWN_ANNOTATION: "",
            UPGRADE_PAUSED_ANNOTATION: "", DELETION_DELAY_ANNOTATION: "", "example.com/other": ""}},
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "ExternalIP", "address": "1.2.3.4"}, {"type": "InternalIP", "address": "10.0.0.4"}],
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "DiskPressure", "status": "True"},
                {"type": CONNECTIONS_CONDITION, "status": "False", "reason": "ConnectionsOpen", "message": "m"}]},
    });
    let node = own(&object);
    assert_eq!(node.other_addresses, ["1.2.3.4".parse::<IpAddr>().unwrap()]);
    assert_eq!(node.pod_cidrs, ["10.1.0.0/24"]);
    assert_eq!((node.was_unschedulable, node.ready), (Some(true), false));
    assert_eq!(node.not_ready_since, "2026-01-01T00:00:00Z".parse().ok());
    assert!(node.is_deletion_delayed() && node.is_kept_from_scale_down && node.is_upgrade_paused);
    assert_eq!((node.open_connections(), node.annotations.len()), (Some("m"), 4));
    let other = read(&object);
    assert!(other.other_addresses.is_empty() && other.pod_cidrs.is_empty() && other.connections.is_none());
    assert!(!other.is_deletion_delayed());
}

#[test]
fn a_node_whose_machine_ends_is_terminal() {
    let tainted = |key: &str, value: &str| json!({"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]});
    let conditions = json!({"conditions": [
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": SHUTDOWN_MESSAGE}]});
    let out_of_service = tainted("node.kubernetes.io/out-of-service", "");
    let shutdown = tainted("node.cloudprovider.kubernetes.io/shutdown", "");
    for (deleted, spec, status, ends, is_terminal) in [
        (None, json!({}), json!({}), false, false),
        (Some("2026-01-01T00:00:00Z"), json!({}), json!({}), true, true),
        (None, out_of_service, json!({}), true, true),
        (None, shutdown, json!({}), true, true),
        (None, tainted(DRAINING_TAINT, "spot-eviction"), json!({}), true, true),
        (None, tainted(DRAINING_TAINT, "terminate"), json!({}), true, true),
        (None, tainted(DRAINING_TAINT, "reboot"), json!({}), false, false),
        (None, tainted(AUTOSCALER_TAINT, "terminate"), json!({}), false, false),
        (None, json!({}), conditions, false, true),
    ] {
        let object = json!({"metadata": {"deletionTimestamp": deleted}, "spec": spec, "status": status});
        let node = own(&object);
        assert_eq!((node.ends, node.is_terminal()), (ends, is_terminal), "{object}");
    }
}

#[test]
fn an_excluded_node_is_exempt_unless_it_is_about_to_go() {
    for (label, value, is_exempt, is_exempt_while_deleted) in [
        (EXCLUDE_LABEL, "", true, false),
        (EXCLUDE_LABEL, "karpenter", false, false),
        (MANAGED_LABEL, "false", true, true),
        ("other", "", false, false),
    ] {
        for (deleted, expected) in [
            (None, is_exempt),
            (Some("2026-01-01T00:00:00Z"), is_exempt_while_deleted),
        ] {
            let metadata = json!({"name": "n", "labels": {label: value}, "deletionTimestamp": deleted});
            let node = read(&json!({"metadata": metadata}));
            let found = node.exempting_label();
            assert_eq!(found, expected.then_some(label), "{label}={value} {deleted:?}");
        }
    }
}

#[test]
fn a_node_may_go_once_it_is_out_and_its_connections_have_ended() {
    let fact = |status, message: &str| {
        Some(MarkerFact {
            status,
            message: message.to_owned(),
            ..MarkerFact::default()
        })
    };
    let (yes, no, unknown) = (MarkerStatus::True, MarkerStatus::False, MarkerStatus::Unknown);
    let missing = "the condition headgate.dev/OutOfLoadBalancers is missing";
    for (marker, connections, may_go, waits_for) in [
        (None, None, false, missing),
        (fact(no, "in service"), None, false, "in service"),
        (fact(no, "in service"), fact(no, "3 connections"), false, "in service"),
        (fact(yes, "out"), fact(no, "3 connections"), false, "3 connections"),
        (fact(yes, "out"), fact(yes, "none"), true, "none"),
        (fact(yes, "out"), fact(unknown, "not counted"), true, "not counted"),
        (fact(yes, "out"), None, true, "out"),
    ] {
        let is_out = marker.as_ref().is_some_and(|marker| marker.status == yes);
        let open = connections.as_ref().filter(|fact| fact.status == no);
        let node = Node {
            marker: marker.clone(),
            connections: connections.clone(),
            ..Node::default()
        };
        assert_eq!((node.is_marked_out(), node.may_go()), (is_out, may_go), "{node:?}");
        assert_eq!(node.waits_for(), waits_for);
        assert_eq!(node.open_connections(), open.map(|fact| fact.message.as_str()));
    }
}

#[test]
fn cluster_autoscalers_taints_are_read() {
    let mark = format!("1700000000{}", "0".repeat(MAX_MARK_BYTES));
    let taint = |key: &str| json!({"key": key, "value": mark, "effect": "NoSchedule"});
    let node = |taints: &[Value]| own(&json!({"metadata": {"name": "n"}, "spec": {"taints": taints}}));
    let both = node(&[taint("other"), taint(CANDIDATE_TAINT), taint(AUTOSCALER_TAINT)]);
    assert!(both.is_deletion_candidate());
    assert_eq!(both.deletion_mark(), Some(&mark[..MAX_MARK_BYTES]));
    let other = node(&[taint("other")]);
    assert!(!other.is_deletion_candidate() && other.deletion_mark().is_none());
}
