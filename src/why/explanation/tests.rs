use headgate_core::node::{MarkerFact, MarkerStatus, NodeHold, Source};
use headgate_test_kubernetes::assert_contains;

use super::*;
use crate::agent_status::{ConnectionsStatus, HoldStatus, SignalStatus, WatchErrorStatus};
use crate::report::{Detail, Report as _};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn signal(name: &str) -> SignalStatus {
    SignalStatus {
        signal: name.to_owned(),
        since: Some(at(10)),
    }
}

fn agent(code: u16, signals: &[&str], source: Source, livez: u16) -> AgentStatus {
    let path = |code, second| {
        Some(PathStatus {
            code,
            since: Some(at(second)),
        })
    };
    let mut status = AgentStatus::example("n");
    "0.1.0".clone_into(&mut status.version);
    status.node.source = source;
    status.node.signals = signals.iter().map(|name| signal(name)).collect();
    (status.node.hold, status.node.watch_error, status.connections) = (None, None, None);
    (status.healthz, status.livez) = (path(code, 10), path(livez, 5));
    let proxy = status.proxy.as_mut().unwrap();
    (proxy.server, proxy.healthy) = (Some("http://p".to_owned()), livez == 200);
    status.listeners = [("healthz".to_owned(), "[::]:10456".to_owned())].into();
    status
}

fn api(signals: &[&str], cordoned: bool, excluded: bool) -> ObservedNode {
    ObservedNode {
        hold: None,
        signals: signals.iter().map(|name| signal(name)).collect(),
        taints: vec!["example.com/mine".to_owned()],
        cordoned,
        excluded,
        address: None,
        marker: None,
    }
}

/// Observations of a node without maintenances.
fn observations(agent: Result<AgentStatus, String>, api: Result<ObservedNode, String>) -> Observations {
    Observations {
        agent,
        api,
        maintenances: Ok(Vec::new()),
    }
}

fn text(agent: Result<AgentStatus, String>, api: Result<ObservedNode, String>) -> (NewConnections, String) {
    let explanation = explain("n", &observations(agent, api), at(22));
    (explanation.sent, explanation.to_string())
}

#[test]
fn eligible_node() {
    let (sent, text) = text(Ok(agent(200, &[], Source::Watch, 200)), Ok(api(&[], false, false)));
    assert_eq!(sent, NewConnections::Yes);
    assert_eq!(
        text,
        "n: /healthz answers 200, since 1970-01-01T00:00:10Z (12 s): a load balancer that probes it sends new connections.\n"
    );
}

#[test]
fn connections_through_the_node_are_a_note_while_they_count() {
    let open = "17 connections pass through this node: 12 default/web, 5 shop/api; the oldest since 4 min.";
    for (reason, message, expected) in [
        ("ConnectionsOpen", open, true),
        ("NotCounted", "Connections are not counted: no right.", true),
        ("NoSignal", "The node has no signal.", false),
    ] {
        let mut agent = agent(503, &["example.com/mine"], Source::Watch, 200);
        agent.connections = Some(ConnectionsStatus {
            reason: reason.to_owned(),
            message: message.to_owned(),
            last: None,
            counted_at: None,
        });
        let (_, text) = text(Ok(agent), Ok(api(&["example.com/mine"], false, false)));
        assert_eq!(text.contains(message), expected, "{text}");
    }
}

/// A maintenance of the node, with this text where the API server has text of others.
fn maintenance(text: &str) -> MaintenanceRow {
    MaintenanceRow::new(&serde_json::from_value(maintenance_object(text)).unwrap())
}

/// As `headgate drain n` creates it.
fn maintenance_object(text: &str) -> serde_json::Value {
    let time = |second| at(second).to_string();
    let blocker = serde_json::json!({"podRef": {"namespace": "shop", "name": text}, "reason": "DisruptionBudget", "firstObservedTime": time(12),
        "message": format!("PodDisruptionBudget {text} allows 0 disruptions")});
    let term = serde_json::json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
    serde_json::json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": text, "labels": {"headgate.dev/created-by": "drain"}},
        "spec": {"nodeSelector": {"nodeSelectorTerms": [term]}, "stage": "Drain", "reason": text},
        "status": {"stageStatuses": [{"name": "Cordon", "startTimestamp": time(8)}, {"name": "Drain", "startTimestamp": time(10)}],
            "nodeStatuses": [{"nodeRef": {"name": "n"}, "drainMessage": text, "podsPendingEvacuation": 1, "podsEvacuating": 2,
                "loadBalancer": {"state": "Out", "downTime": time(11)}, "blockers": [blocker], "blockersTotal": 3}]}})
}

#[test]
fn what_ends_a_maintenance_follows_from_who_created_it() {
    let labels =
        serde_json::json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]});
    let owner = serde_json::json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]);
    let automatic =
        serde_json::json!({"name": "m", "labels": {"headgate.dev/automatic": "preempt"}, "ownerReferences": owner});
    let of_drain = maintenance_object("m")["metadata"].clone();
    let of_team = serde_json::json!({"name": "m"});
    let by_name = maintenance_object("m")["spec"]["nodeSelector"].clone();
    let deletion = "Ends with its deletion, for all of its nodes: kubectl delete hgnm m";
    for (metadata, selector, stage, expected) in [
        (
            &of_drain,
            &by_name,
            "Drain",
            "Ends with its deletion: headgate undrain n, or kubectl delete hgnm m",
        ),
        (
            &of_drain,
            &labels,
            "Drain",
            "Ends with its deletion: headgate undrain with the labels that headgate drain got, or kubectl delete hgnm m",
        ),
        (&of_team, &by_name, "Drain", deletion),
        (&of_team, &labels, "Cordon", deletion),
        (
            &automatic,
            &by_name,
            "Drain",
            "Ends with the stage Complete (deleted, it is created again): \
             kubectl patch hgnm m --type merge -p '{\"spec\":{\"stage\":\"Complete\"}}'",
        ),
        (&of_drain, &by_name, "Idle", deletion),
        (&of_drain, &by_name, "Complete", ""),
        (&automatic, &by_name, "Complete", ""),
    ] {
        let mut object = maintenance_object("m");
        object["metadata"] = metadata.clone();
        object["spec"]["nodeSelector"] = selector.clone();
        object["spec"]["stage"] = serde_json::json!(stage);
        let mut observed = observations(Ok(agent(200, &[], Source::Watch, 200)), Ok(api(&[], true, false)));
        observed.maintenances = Ok(vec![MaintenanceRow::new(&serde_json::from_value(object).unwrap())]);
        let text = explain("n", &observed, at(22)).to_string();
        let ends = text.lines().map(str::trim).find(|line| line.starts_with("Ends with"));
        assert_eq!(ends.unwrap_or_default(), expected);
    }
}

#[test]
fn maintenances_of_the_node_say_what_they_wait_for() {
    let mut observed = observations(Ok(agent(200, &[], Source::Watch, 200)), Ok(api(&[], true, false)));
    observed.maintenances = Ok(vec![maintenance("kernel")]);
    let explanation = explain("n", &observed, at(22));
    assert_eq!(explanation.maintenances[0].nodes[0].blockers[0].pod, "shop/kernel");
    let text = explanation.to_string();
    assert_contains!(
        text,
        "\n  NodeMaintenance kernel, stage Drain, since 1970-01-01T00:00:10Z (12 s)\n    For: kernel\n    \
             The node is out of its load balancers since 1970-01-01T00:00:11Z; 3 pods have to leave, 2 of them evacuate; kernel\n    \
             shop/kernel stays, since 1970-01-01T00:00:12Z (10 s): PodDisruptionBudget kernel allows 0 disruptions\n    \
             2 more pods are blocked.\n    Ends with its deletion: headgate undrain n, or kubectl delete hgnm kernel\n"
    );
    observed.maintenances = Err("forbidden".to_owned());
    let text = explain("n", &observed, at(22)).to_string();
    assert!(text.contains("  NodeMaintenances are not known: forbidden\n"), "{text}");
    observed.api = Ok(api(&[], false, false));
    let text = explain("n", &observed, at(22)).to_string();
    assert!(!text.contains("NodeMaintenances"), "nothing indicates one: {text}");
}

#[test]
fn the_taint_of_a_maintenance_ends_with_it() {
    let ends = |maintenances: Vec<MaintenanceRow>| {
        let mut observed = observations(
            Err("gone".to_owned()),
            Ok(api(&["headgate.dev/maintenance"], true, false)),
        );
        observed.maintenances = Ok(maintenances);
        let reasons = explain("n", &observed, at(22)).reasons;
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons[0].ends.clone()
    };
    let by_hand = "the removal of the taint: kubectl taint node n headgate.dev/maintenance-";
    assert_eq!(ends(Vec::new()), by_hand, "people set it, too");
    let dry = MaintenanceRow {
        dry_run: true,
        ..maintenance("a")
    };
    assert_eq!(ends(vec![dry.clone()]), by_hand);
    assert_eq!(
        ends(vec![dry, maintenance("kernel")]),
        "that of NodeMaintenance kernel; removed by hand, the taint comes back"
    );
}

#[test]
fn text_of_maintenances_cannot_control_the_terminal() {
    let mut observed = observations(Ok(agent(200, &[], Source::Watch, 200)), Ok(api(&[], false, false)));
    observed.maintenances = Ok(vec![maintenance(HOSTILE)]);
    let hostile = explain("n", &observed, at(22)).to_string();
    assert!(
        !hostile
            .chars()
            .any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')),
        "{hostile:?}"
    );
    observed.maintenances = Ok(vec![maintenance("a")]);
    let harmless = explain("n", &observed, at(22)).to_string();
    assert_eq!(hostile.lines().count(), harmless.lines().count(), "{hostile}");
}

#[test]
fn marker_of_the_node_is_a_note() {
    let mut marked = api(&["drain"], false, false);
    marked.marker = Some(MarkerFact {
        status: MarkerStatus::False,
        reason: "NotDown".to_owned(),
        message: "Not Down in lb/a\u{1b}[31m.".to_owned(),
        ..MarkerFact::default()
    });
    let (sent, text) = text(Ok(agent(503, &["drain"], Source::Watch, 200)), Ok(marked));
    assert_eq!(sent, NewConnections::No);
    assert_contains!(
        text,
        "\n  headgate.dev/OutOfLoadBalancers is False (NotDown): Not Down in lb/a\\u{1b}[31m.\n"
    );
}

#[test]
fn what_headgate_has_set_down_gets_no_new_connections() {
    let down = MarkerFact {
        status: MarkerStatus::True,
        reason: "AdminStateDown".to_owned(),
        message: "Down in lb/a.".to_owned(),
        since: Some(at(3)),
        confirmed_at: Some(at(20)),
    };
    let with = |reason: &str, status, confirmed_at| MarkerFact {
        status,
        reason: reason.to_owned(),
        confirmed_at: Some(at(confirmed_at)),
        ..down.clone()
    };
    let (no_traffic, alone) = (NewConnections::No, "That keeps new Pods away, not traffic.");
    for (marker, expected, is_cordon_alone) in [
        (Some(down.clone()), no_traffic, false),
        (
            Some(with("ProbesFailed", MarkerStatus::True, 20)),
            NewConnections::Yes,
            false,
        ),
        (
            Some(with("NotDown", MarkerStatus::False, 20)),
            NewConnections::Yes,
            false,
        ),
        (
            Some(with("NoSignal", MarkerStatus::False, 20)),
            NewConnections::Yes,
            true,
        ),
        // Nothing confirms it any more.
        (
            Some(with("AdminStateDown", MarkerStatus::True, -3600)),
            NewConnections::Yes,
            false,
        ),
        (None, NewConnections::Yes, true),
    ] {
        let mut cordoned = api(&[], true, false);
        cordoned.marker = marker.clone();
        let (sent, text) = text(Ok(agent(200, &[], Source::Watch, 200)), Ok(cordoned.clone()));
        assert_eq!(sent, expected, "{marker:?}");
        assert_eq!(text.contains(alone), is_cordon_alone, "{text}");
        assert_contains!(text, "The node is cordoned.");
        let explanation = explain("n", &observations(Err("gone".to_owned()), Ok(cordoned)), at(22));
        assert_eq!(explanation.sent == no_traffic, expected == no_traffic, "{marker:?}");
        let reasons: Vec<_> = explanation
            .reasons
            .iter()
            .map(|found| (found.name.as_str(), found.since))
            .collect();
        let expected = (expected == no_traffic).then_some(("admin state", Some(at(3))));
        assert_eq!(reasons, Vec::from_iter(expected));
    }
}

#[test]
fn held_node_is_in_service_in_spite_of_its_signals() {
    let mut held = agent(200, &["headgate.dev/maintenance"], Source::Watch, 200);
    held.node.hold = Some(HoldStatus {
        pools: ["lb/p".to_owned(), "lb/\u{1b}[31m".to_owned()].into(),
        renewed_at: at(1),
    });
    let (sent, text) = text(Ok(held), Ok(api(&["headgate.dev/maintenance"], false, false)));
    assert_eq!(sent, NewConnections::Yes);
    assert_contains!(text, "in spite of headgate.dev/maintenance: too few others can serve");
    assert!(text.contains("lb/p") && !text.contains('\u{1b}'), "{text}");
    assert!(!text.contains("Ends with"), "{text}");
}

#[test]
fn reason_of_a_hold_is_the_leaders() {
    let maintenance = "headgate.dev/maintenance";
    let recorded = |probes_headgate| NodeHold {
        node_uid: "u".to_owned(),
        pools: ["lb/p".to_owned()].into(),
        probes_headgate,
        signals: [maintenance.to_owned()].into(),
        reason: "no other node serves default/web".to_owned(),
        ..NodeHold::default()
    };
    let node = |probes_headgate| ObservedNode {
        hold: Some(recorded(probes_headgate)),
        ..api(&[maintenance], false, false)
    };
    let expected = "The leader holds the node back in service in lb/p in spite of headgate.dev/maintenance: no other node serves default/web.";
    let (sent, out) = text(Ok(agent(503, &[maintenance], Source::Watch, 200)), Ok(node(false)));
    assert_eq!(sent, NewConnections::No);
    assert_contains!(out, expected, "/healthz answers 503 all the same.");
    let mut held = agent(200, &[maintenance], Source::Watch, 200);
    held.node.hold = Some(HoldStatus {
        pools: ["lb/p".to_owned()].into(),
        renewed_at: at(1),
    });
    let (sent, out) = text(Ok(held), Ok(node(true)));
    assert_eq!(sent, NewConnections::Yes);
    assert!(out.contains(expected) && !out.contains("all the same"), "{out}");
    // What is left of a hold, or does not apply yet, is no hold.
    let (_, out) = text(Ok(agent(503, &[maintenance], Source::Watch, 200)), Ok(node(true)));
    assert!(!out.contains("holds the node back"), "{out}");
}

#[test]
fn every_signal_is_explained_with_its_end() {
    for name in headgate_core::node::DEFAULT_SIGNAL_TAINTS.iter().chain(&[
        "deletionTimestamp",
        "kubelet-shutdown",
        "preempt",
        "example.com/mine",
    ]) {
        let (sent, text) = text(
            Ok(agent(503, &[name], Source::Watch, 200)),
            Ok(api(&[name], false, false)),
        );
        assert_eq!(sent, NewConnections::No);
        assert_contains!(text, format!("\n  {name}, since 1970-01-01T00:00:10Z (12 s)\n"));
        assert!(text.contains("\n    Ends with "), "{text}");
        let listed = text.contains("listed in the settings under signals.extra");
        assert_eq!(listed, *name == "example.com/mine", "{text}");
    }
}

#[test]
fn unhealthy_kube_proxy_is_a_reason() {
    let (sent, text) = text(Ok(agent(503, &[], Source::Watch, 503)), Ok(api(&[], false, false)));
    assert_eq!(sent, NewConnections::No);
    assert_contains!(text, "kube-proxy, since 1970-01-01T00:00:05Z (17 s)", "at http://p");
}

#[test]
fn difference_between_agent_and_node_is_a_note() {
    let (sent, text) = text(
        Ok(agent(200, &[], Source::Watch, 200)),
        Ok(api(&["karpenter.sh/disrupted"], false, false)),
    );
    assert_eq!(sent, NewConnections::Yes);
    assert_contains!(
        text,
        "The Node has karpenter.sh/disrupted, which the agent does not act on"
    );
}

#[test]
fn one_observation_is_enough() {
    let (sent, without_agent) = text(
        Err("refused".to_owned()),
        Ok(api(&["karpenter.sh/disrupted"], true, true)),
    );
    assert_eq!(sent, NewConnections::No);
    assert_contains!(
        without_agent,
        "The agent did not answer: refused.",
        "The node is cordoned.",
        "exclude-from-external-load-balancers"
    );
    assert_eq!(
        text(Err("refused".to_owned()), Ok(api(&[], false, false))).0,
        NewConnections::Unknown
    );
    let (sent, without_api) = text(Ok(agent(200, &[], Source::Remembered, 200)), Err("refused".to_owned()));
    assert_eq!(sent, NewConnections::Yes);
    assert_contains!(without_api, "the agent's status alone", "its remembered state");
}

#[test]
fn unbound_health_port_is_a_reason() {
    for (state, served) in [
        ("127.0.0.1:10456", true),
        ("closing", true),
        ("not bound yet", false),
        ("cannot be bound: Address already in use", false),
    ] {
        let mut status = agent(200, &[], Source::Watch, 200);
        status.listeners.insert("healthz".to_owned(), state.to_owned());
        let (sent, text) = text(Ok(status), Ok(api(&[], false, false)));
        assert_eq!(
            sent,
            if served {
                NewConnections::Yes
            } else {
                NewConnections::No
            },
            "{text}"
        );
        if !served {
            let start = "n: its agent does not serve /healthz: a load balancer that probes it sends no new connections.\n\n  health port\n";
            assert!(text.starts_with(start) && text.contains(state), "{text}");
        }
    }
    // An agent of a version that does not list its listeners.
    let mut status = agent(200, &[], Source::Watch, 200);
    status.listeners.clear();
    assert_eq!(text(Ok(status), Ok(api(&[], false, false))).0, NewConnections::Yes);
}

#[test]
fn excluded_node_gets_no_connections_with_any_probe_answer() {
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    let (sent, good) = text(Ok(agent(200, &[], Source::Watch, 200)), Ok(api(&[], false, true)));
    assert_eq!(sent, NewConnections::No);
    assert!(
        good.starts_with("n: no new connections should be sent here, though /healthz answers 200.\n"),
        "{good}"
    );
    assert!(good.contains(&format!("kubectl label node n {label}-")), "{good}");
    let (_, drained) = text(Ok(agent(503, &["a"], Source::Watch, 200)), Ok(api(&["a"], false, true)));
    assert_contains!(drained, "/healthz answers 503,", label);
    let (sent, silent) = text(Err("refused".to_owned()), Ok(api(&[], false, true)));
    assert_eq!(sent, NewConnections::No, "{silent}");
}

#[test]
fn failing_watch_is_a_note() {
    let mut status = agent(200, &[], Source::Watch, 200);
    status.node.watch_error = Some(WatchErrorStatus {
        reason: "connection".to_owned(),
        error: "connection refused".to_owned(),
        since: at(12),
    });
    let (sent, text) = text(Ok(status), Ok(api(&[], false, false)));
    assert_eq!(sent, NewConnections::Yes);
    let note = "The agent cannot watch the Node, since 1970-01-01T00:00:12Z (10 s): connection refused. The last known state stays in use.";
    assert!(text.contains(note), "{text}");
}

#[test]
fn signal_that_the_node_no_longer_has_is_a_note() {
    let signals = ["karpenter.sh/disrupted", "preempt", "example.com/mine"];
    let (sent, text) = text(Ok(agent(503, &signals, Source::Watch, 200)), Ok(api(&[], false, false)));
    assert_eq!(sent, NewConnections::No);
    assert_contains!(
        text,
        "The Node no longer has karpenter.sh/disrupted, which the agent has not observed yet."
    );
    // Two are not in Node objects; one is a taint that only the agent's settings list.
    assert_eq!(text.matches("no longer has").count(), 1, "{text}");
}

/// Ends the line, clears the screen (as ESC and as C1), sets the title, turns the text around, and is a shell command.
const HOSTILE: &str = "a\n\r\u{1b}[2J\u{9b}2J\u{1b}]0;x\u{7}\u{202e}b; reboot #";

#[test]
fn what_others_sent_is_text_on_one_line() {
    let mut status = agent(503, &[HOSTILE], Source::None, 503);
    status.node.watch_error = Some(WatchErrorStatus {
        reason: "server".to_owned(),
        error: HOSTILE.to_owned(),
        since: at(0),
    });
    status.proxy.as_mut().unwrap().server = Some(HOSTILE.to_owned());
    let mut unbound = status.clone();
    unbound.listeners = [("healthz".to_owned(), HOSTILE.to_owned())].into();
    for (agent, api) in [
        (Ok(status), Ok(api(&[HOSTILE], false, false))),
        (Ok(unbound), Err(HOSTILE.to_owned())),
        (Err(HOSTILE.to_owned()), Ok(api(&[HOSTILE], true, true))),
    ] {
        let plain = |text: &str| text.replace(HOSTILE, "a");
        let harmless = Observations {
            agent: agent.clone().map_err(|error| plain(&error)).map(|mut status| {
                status.node.watch_error = status.node.watch_error.map(|failure| WatchErrorStatus {
                    error: plain(&failure.error),
                    ..failure
                });
                status.node.signals = vec![signal("a")];
                status
            }),
            api: api
                .clone()
                .map_err(|error: String| plain(&error))
                .map(|mut node: ObservedNode| {
                    node.signals = vec![signal("a")];
                    node
                }),
            maintenances: Ok(Vec::new()),
        };
        let text = explain("n", &observations(agent, api), at(22)).to_string();
        assert!(
            !text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')),
            "{text:?}"
        );
        assert_contains!(text, "a\\n\\r\\u{1b}[2J\\u{9b}2J\\u{1b}]0;x\\u{7}\\u{202e}b");
        assert!(!text.contains("kubectl taint node n a"), "{text}");
        let harmless = explain("n", &harmless, at(22)).to_string();
        assert_eq!(text.lines().count(), harmless.lines().count(), "{text}\n{harmless}");
    }
}

#[test]
fn wide_text_has_the_facts_behind_the_explanation() {
    let mut observed = observations(
        Ok(agent(503, &["drain"], Source::Watch, 200)),
        Ok(api(&["drain"], true, false)),
    );
    let explanation = explain("n", &observed, at(22));
    let facts = "\n  InternalIP:         none\n  Taints:             example.com/mine\n  Cordoned:           yes\n  \
                 Excluded by label:  no\n  Agent:              0.1.0, state of the Node from: watch\n  \
                 /livez:             200, since 1970-01-01T00:00:05Z\n  kube-proxy:         http://p, healthy or unknown\n  \
                 Listener:           healthz [::]:10456\n";
    assert_eq!(explanation.text(Detail::Wide), format!("{explanation}{facts}"));

    // Of what did not answer there are none, and what others sent cannot control the terminal.
    let mut hostile = agent(200, &[], Source::Watch, 200);
    HOSTILE.clone_into(&mut hostile.version);
    hostile.proxy.as_mut().unwrap().server = Some(HOSTILE.to_owned());
    hostile.listeners = [(HOSTILE.to_owned(), HOSTILE.to_owned())].into();
    observed.agent = Ok(hostile);
    observed.api = Err("refused".to_owned());
    let text = explain("n", &observed, at(22)).text(Detail::Wide);
    assert!(!text.contains("Taints:") && text.contains("\n  Agent: "), "{text}");
    assert!(
        !text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')),
        "{text:?}"
    );
}

#[test]
fn a_watch_sees_no_change_in_time_alone() {
    let mut failing = agent(200, &[], Source::Watch, 200);
    let failure = |since| WatchErrorStatus {
        reason: "server".to_owned(),
        error: "refused".to_owned(),
        since: at(since),
    };
    failing.node.watch_error = Some(failure(3));
    let mut observed = observations(Ok(failing.clone()), Ok(api(&[], false, false)));
    let shown = explain("n", &observed, at(22));
    let later = explain("n", &observed, at(27));
    assert_ne!(shown, later);
    assert_eq!(shown.comparable(), later.comparable());
    failing.node.watch_error = Some(failure(4));
    observed.agent = Ok(failing);
    assert_ne!(shown.comparable(), explain("n", &observed, at(22)).comparable());
}
