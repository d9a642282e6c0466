use super::super::views::{AgentNode, AgentView, ApiView, PathView, ProxyView, SignalView, WatchErrorView};
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn signal(name: &str) -> SignalView {
    SignalView {
        signal: name.to_owned(),
        since: Some(at(10)),
    }
}

fn agent(code: u16, signals: &[&str], source: &str, livez: u16) -> AgentView {
    AgentView {
        version: "0.1.0".to_owned(),
        node: AgentNode {
            name: "n".to_owned(),
            source: source.to_owned(),
            signals: signals.iter().map(|name| signal(name)).collect(),
            watch_error: None,
        },
        healthz: PathView {
            code,
            since: Some(at(10)),
        },
        livez: PathView {
            code: livez,
            since: Some(at(5)),
        },
        proxy: ProxyView {
            server: Some("http://p".to_owned()),
            healthy: livez == 200,
            last_updated: None,
        },
        listeners: [("healthz".to_owned(), "[::]:10456".to_owned())].into(),
    }
}

fn api(signals: &[&str], cordoned: bool, excluded: bool) -> ApiView {
    ApiView {
        signals: signals.iter().map(|name| signal(name)).collect(),
        taints: vec!["example.com/mine".to_owned()],
        cordoned,
        excluded,
        address: None,
    }
}

fn text(agent: Result<AgentView, String>, api: Result<ApiView, String>) -> (Sent, String) {
    let explanation = explain("n", &Views { agent, api }, at(22));
    (explanation.sent, explanation.to_string())
}

#[test]
fn a_good_node() {
    let (sent, text) = text(Ok(agent(200, &[], "watch", 200)), Ok(api(&[], false, false)));
    assert_eq!(sent, Sent::Yes);
    assert_eq!(
        text,
        "n: new connections are sent here, since 1970-01-01T00:00:10Z (12 s): /healthz answers 200.\n"
    );
}

#[test]
fn every_signal_is_explained_with_its_end() {
    for name in headgate_node::DEFAULT_SIGNALS.iter().chain(&[
        "deletionTimestamp",
        "nodeShutdown",
        "headgateStopping",
        "azurePreempt",
        "example.com/mine",
    ]) {
        let (sent, text) = text(Ok(agent(503, &[name], "watch", 200)), Ok(api(&[name], false, false)));
        assert_eq!(sent, Sent::No);
        assert!(
            text.contains(&format!("\n  {name}, since 1970-01-01T00:00:10Z (12 s)\n")),
            "{text}"
        );
        assert!(text.contains("\n    Ends with "), "{text}");
        let listed = text.contains("listed in signals.health");
        assert_eq!(listed, *name == "example.com/mine", "{text}");
    }
}

#[test]
fn a_stale_kube_proxy_is_a_reason() {
    let (sent, text) = text(Ok(agent(503, &[], "watch", 503)), Ok(api(&[], false, false)));
    assert_eq!(sent, Sent::No);
    assert!(
        text.contains("kube-proxy, since 1970-01-01T00:00:05Z (17 s)") && text.contains("at http://p"),
        "{text}"
    );
}

#[test]
fn what_the_two_do_not_agree_on_is_said() {
    let (sent, text) = text(
        Ok(agent(200, &[], "watch", 200)),
        Ok(api(&["karpenter.sh/disrupted"], false, false)),
    );
    assert_eq!(sent, Sent::Yes);
    assert!(
        text.contains("The Node carries karpenter.sh/disrupted, which its agent does not act on"),
        "{text}"
    );
}

#[test]
fn one_view_alone() {
    let (sent, without_agent) = text(
        Err("refused".to_owned()),
        Ok(api(&["karpenter.sh/disrupted"], true, true)),
    );
    assert_eq!(sent, Sent::No);
    for part in [
        "Asking its agent: refused.",
        "It is cordoned.",
        "exclude-from-external-load-balancers",
    ] {
        assert!(without_agent.contains(part), "{without_agent}");
    }
    assert_eq!(
        text(Err("refused".to_owned()), Ok(api(&[], false, false))).0,
        Sent::Unknown
    );
    let (sent, without_api) = text(Ok(agent(200, &[], "remembered", 200)), Err("refused".to_owned()));
    assert_eq!(sent, Sent::Yes);
    assert!(
        without_api.contains("the agent's word alone") && without_api.contains("what it remembers"),
        "{without_api}"
    );
}

#[test]
fn a_health_port_that_is_not_served_is_a_reason() {
    for (state, served) in [
        ("127.0.0.1:10456", true),
        ("closing", true),
        ("not bound yet", false),
        ("cannot be bound: Address already in use", false),
    ] {
        let mut view = agent(200, &[], "watch", 200);
        view.listeners.insert("healthz".to_owned(), state.to_owned());
        let (sent, text) = text(Ok(view), Ok(api(&[], false, false)));
        assert_eq!(sent, if served { Sent::Yes } else { Sent::No }, "{text}");
        if !served {
            let start =
                "n: no new connections should be sent here: its agent does not serve /healthz.\n\n  health port\n";
            assert!(text.starts_with(start) && text.contains(state), "{text}");
        }
    }
    // Of an agent that does not say.
    let mut view = agent(200, &[], "watch", 200);
    view.listeners.clear();
    assert_eq!(text(Ok(view), Ok(api(&[], false, false))).0, Sent::Yes);
}

#[test]
fn a_node_that_cloud_controllers_leave_out_is_sent_nothing_whatever_its_probes_say() {
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    let (sent, good) = text(Ok(agent(200, &[], "watch", 200)), Ok(api(&[], false, true)));
    assert_eq!(sent, Sent::No);
    assert!(
        good.starts_with("n: no new connections should be sent here, though /healthz answers 200.\n"),
        "{good}"
    );
    assert!(good.contains(&format!("kubectl label node n {label}-")), "{good}");
    let (_, drained) = text(Ok(agent(503, &["a"], "watch", 200)), Ok(api(&["a"], false, true)));
    assert!(
        drained.contains("/healthz answers 503.") && drained.contains(label),
        "{drained}"
    );
    let (sent, silent) = text(Err("refused".to_owned()), Ok(api(&[], false, true)));
    assert_eq!(sent, Sent::No, "{silent}");
}

#[test]
fn an_agent_that_cannot_watch_says_so() {
    let mut view = agent(200, &[], "watch", 200);
    view.node.watch_error = Some(WatchErrorView {
        error: "connection refused".to_owned(),
        since: Some(at(12)),
    });
    let (sent, text) = text(Ok(view), Ok(api(&[], false, false)));
    assert_eq!(sent, Sent::Yes);
    let note = "Its agent cannot watch the Node, since 1970-01-01T00:00:12Z (10 s): connection refused. What it knows goes on.";
    assert!(text.contains(note), "{text}");
}

#[test]
fn a_signal_that_the_node_no_longer_carries_is_said_to_be_old() {
    let signals = [
        "karpenter.sh/disrupted",
        "azurePreempt",
        "headgateStopping",
        "example.com/mine",
    ];
    let (sent, text) = text(Ok(agent(503, &signals, "watch", 200)), Ok(api(&[], false, false)));
    assert_eq!(sent, Sent::No);
    assert!(
        text.contains("The Node no longer carries karpenter.sh/disrupted, which its agent has not seen yet."),
        "{text}"
    );
    // Two are no marks of the Node, one is there and listed in the agent's settings alone.
    assert_eq!(text.matches("no longer carries").count(), 1, "{text}");
}
