//! The explanation: from the two views to words and to JSON. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::views::Views;

/// Whether new connections are sent, as far as probes decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Sent {
    /// Probes are told that the node is good.
    Yes,
    /// Probes are told, or must conclude, that it is not.
    No,
    /// The agent could not be asked, so it is not known what probes are told.
    Unknown,
}

/// One thing that speaks against the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    /// The signal, or `kube-proxy`.
    pub name: String,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
    /// What it means.
    pub meaning: String,
    /// What would end it.
    pub ends: String,
}

/// Why traffic is or is not sent to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The node.
    pub node: String,
    /// Whether traffic is sent.
    pub sent: Sent,
    /// Since when it is so, where that is known.
    pub since: Option<Timestamp>,
    /// What speaks against it.
    pub reasons: Vec<Reason>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
    /// Whether its agent was asked, or this is the API server's word alone.
    pub agent_asked: bool,
    /// When this was asked.
    pub asked_at: Timestamp,
}

/// Explains a node. Pure.
#[must_use]
pub fn explain(node: &str, views: &Views, now: Timestamp) -> Explanation {
    let mut notes = Vec::new();
    let (sent, since, mut reasons) = match (&views.agent, &views.api) {
        (Ok(agent), api) => {
            if agent.node.source != "watch" {
                notes.push(known_from(&agent.node.source).to_owned());
            }
            if let Ok(api) = api {
                let seen = |signal: &str| agent.node.signals.iter().any(|view| view.signal == signal);
                for view in api.signals.iter().filter(|view| !seen(&view.signal)) {
                    notes.push(format!(
                        "The Node carries {}, which its agent does not act on: it has not seen it yet, or its settings leave it out.",
                        view.signal
                    ));
                }
            }
            let mut reasons: Vec<_> = agent
                .node
                .signals
                .iter()
                .map(|view| reason(node, &view.signal, view.since))
                .collect();
            if agent.livez.code != 200 {
                reasons.push(stale_proxy(agent.proxy.server.as_deref(), agent.livez.since));
            }
            let sent = if agent.healthz.code == 200 { Sent::Yes } else { Sent::No };
            (sent, agent.healthz.since, reasons)
        }
        (Err(why), Ok(api)) => {
            notes.push(format!(
                "Asking its agent: {why}. If probes get no answer either, load balancers take the node out."
            ));
            let reasons = api
                .signals
                .iter()
                .map(|view| reason(node, &view.signal, view.since))
                .collect();
            (
                if api.signals.is_empty() {
                    Sent::Unknown
                } else {
                    Sent::No
                },
                None,
                reasons,
            )
        }
        (Err(_), Err(_)) => (Sent::Unknown, None, Vec::new()),
    };
    match &views.api {
        Err(why) => notes.push(format!(
            "The API server could not be asked ({why}); this is the agent's word alone."
        )),
        Ok(api) => {
            if api.cordoned {
                notes.push("It is cordoned. That keeps new Pods away, not traffic.".to_owned());
            }
            if api.excluded {
                notes.push(
                    "Its label node.kubernetes.io/exclude-from-external-load-balancers makes cloud controllers leave it \
                     out of their load balancers, whatever its probes say."
                        .to_owned(),
                );
            }
        }
    }
    reasons.sort_by(|a, b| a.name.cmp(&b.name));
    Explanation {
        node: node.to_owned(),
        sent,
        since,
        reasons,
        notes,
        agent_asked: views.agent.is_ok(),
        asked_at: now,
    }
}

fn known_from(source: &str) -> &'static str {
    match source {
        "remembered" => "Its agent has not reached the API server since it started and goes on from what it remembers.",
        _ => "Its agent has never seen its Node, so the node counts as good.",
    }
}

fn stale_proxy(server: Option<&str>, since: Option<Timestamp>) -> Reason {
    let server = server.unwrap_or("its health server");
    Reason {
        name: "kube-proxy".to_owned(),
        since,
        meaning: format!("kube-proxy does not bring the node's rules up to date, or does not answer at {server}."),
        ends: "kube-proxy answering 200 at /livez again; its own log says what keeps it from it.".to_owned(),
    }
}

/// What a signal means and what ends it.
fn reason(node: &str, signal: &str, since: Option<Timestamp>) -> Reason {
    let untaint = || format!("the taint going away: kubectl taint node {node} {signal}-");
    let (meaning, ends) = match signal {
        "deletionTimestamp" => (
            "The Node object is being deleted.",
            "nothing; a Node that is being deleted stays so until it is gone".to_owned(),
        ),
        "nodeShutdown" => (
            "kubelet says that the node is shutting down.",
            "kubelet reporting Ready again after the restart".to_owned(),
        ),
        "headgateStopping" => (
            "headgate was told to stop and drains the node for its shutdownDelay.",
            "the next headgate on this node".to_owned(),
        ),
        "azurePreempt" => (
            "Azure has announced that it takes this spot VM back.",
            "the notice vanishing from Scheduled Events".to_owned(),
        ),
        "ToBeDeletedByClusterAutoscaler" => (
            "Cluster Autoscaler is about to delete the VM.",
            format!(
                "{}; the autoscaler takes it off itself when a scale-down fails",
                untaint()
            ),
        ),
        "karpenter.sh/disrupted" => ("Karpenter is about to replace or remove the node.", untaint()),
        "node.kubernetes.io/out-of-service" => ("Somebody marked the node as out of service.", untaint()),
        "node.cloudprovider.kubernetes.io/shutdown" => (
            "The cloud says that the VM is shut down.",
            "the VM running again; cloud-controller-manager then takes the taint off".to_owned(),
        ),
        "cloudprovider.azure.microsoft.com/draining" => {
            ("The node is being drained because its VM is going away.", untaint())
        }
        "headgate.dev/maintenance" => ("The node is in maintenance.", untaint()),
        _ => ("This taint is listed in signals.health.", untaint()),
    };
    Reason {
        name: signal.to_owned(),
        since,
        meaning: meaning.to_owned(),
        ends,
    }
}

/// "since 2026-01-02T03:04:05Z (12 s)", or nothing.
struct Since(Option<Timestamp>, Timestamp);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(since) => write!(
                f,
                ", since {since:.0} ({} s)",
                self.1.duration_since(since).as_secs().max(0)
            ),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = Since(self.since, self.asked_at);
        let node = &self.node;
        match self.sent {
            Sent::Yes => writeln!(f, "{node}: new connections are sent here{since}: /healthz answers 200.")?,
            Sent::No if self.agent_asked => {
                writeln!(
                    f,
                    "{node}: no new connections are sent here{since}: /healthz answers 503."
                )?;
            }
            Sent::No => writeln!(
                f,
                "{node}: no new connections should be sent here, but its agent could not be asked."
            )?,
            Sent::Unknown => writeln!(
                f,
                "{node}: nothing speaks against it, but its agent could not be asked."
            )?,
        }
        for reason in &self.reasons {
            writeln!(f, "\n  {}{}", reason.name, Since(reason.since, self.asked_at))?;
            writeln!(f, "    {}", reason.meaning)?;
            writeln!(f, "    Ends with {}", reason.ends)?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::views::{AgentNode, AgentView, ApiView, PathView, ProxyView, SignalView};
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
        }
    }

    fn api(signals: &[&str], cordoned: bool, excluded: bool) -> ApiView {
        ApiView {
            signals: signals.iter().map(|name| signal(name)).collect(),
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
        for name in crate::config::DEFAULT_SIGNALS.iter().chain(&[
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
            "could not be asked (refused)",
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
}
