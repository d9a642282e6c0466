//! What the agents of the nodes that are shown answer at `/healthz`, by their own word.
//!
//! All are asked side by side and within one bound, since from outside the cluster none may answer; for those who have
//! not by then, what their signals imply stays.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use hyper::Uri;
use tokio::time::{Instant, timeout_at};

use super::report::{Report, VerdictRow};
use crate::why::{AgentView, statusz_uri};

/// For all of them together.
const ALL: Duration = Duration::from_secs(3);
/// Asked at a time.
const AT_ONCE: usize = 64;

/// Where agents show their status.
#[derive(Clone, Debug)]
pub struct Places {
    /// The port on the node's address.
    pub port: u16,
    /// Where it is not there, by the node's name.
    pub elsewhere: BTreeMap<String, Uri>,
}

/// Asks the agents of the report's nodes.
pub async fn ask_agents(report: &mut Report, places: &Places) {
    let by = Instant::now() + ALL;
    let questions = report.nodes.iter().enumerate().map(|(number, node)| {
        let own = || statusz_uri(node.address?, places.port);
        let (uri, name) = (
            places.elsewhere.get(&node.name).cloned().or_else(own),
            node.name.clone(),
        );
        async move {
            let Some(uri) = uri else {
                return (number, Err("its address is not known".to_owned()));
            };
            let late = |_| Err(format!("no answer within {} s", ALL.as_secs()));
            (
                number,
                timeout_at(by, AgentView::ask(uri, &name)).await.unwrap_or_else(late),
            )
        }
    });
    let questions: Vec<_> = questions.collect();
    let mut answers = stream::iter(questions).buffer_unordered(AT_ONCE);
    let mut verdicts = Vec::new();
    while let Some((number, answer)) = answers.next().await {
        verdicts.push((number, answer.map(|agent| heard(&agent))));
    }
    for (number, answer) in verdicts {
        let Some(node) = report.nodes.get_mut(number) else {
            continue;
        };
        match answer {
            Ok(verdict) => node.verdict = verdict,
            Err(why) => node.verdict.why = Some(why),
        }
    }
}

/// What an agent says of its health port.
fn heard(agent: &AgentView) -> VerdictRow {
    match agent.health_port_trouble() {
        None => VerdictRow {
            healthz: Some(agent.healthz.code),
            asked: true,
            since: agent.healthz.since,
            why: None,
        },
        Some(trouble) => VerdictRow {
            healthz: None,
            asked: true,
            since: None,
            why: Some(format!("its health port: {trouble}")),
        },
    }
}
