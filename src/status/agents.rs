//! The health answers of the nodes' agents, from their `/statusz`.
//!
//! All agents are queried concurrently and within one time limit, because from outside the cluster none may answer at its node's
//! address. Those that do not are queried again through the API server. A node without an answer keeps the verdict that its
//! signals imply.

use std::collections::BTreeMap;
use std::future::ready;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use hyper::Uri;
use kube::Client;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use super::report::{NodeRow, StatusReport, VerdictRow};
use crate::agent_status::AgentStatus;
use crate::why::{AgentAccess, AgentPods, AgentRoute, fetch_agent_at, statusz_uri};

/// Time for all agents together, and again for those that are queried through the API server.
const ALL_AGENTS_TIMEOUT: Duration = Duration::from_secs(3);
/// Agents that are queried at the same time.
const MAX_CONCURRENT_QUERIES: usize = 64;

/// Queries the agents of the report's nodes, some of them at the addresses of `overrides`, and enters their answers.
pub(crate) async fn query_agents(
    report: &mut StatusReport,
    client: &Client,
    access: &AgentAccess,
    overrides: &BTreeMap<String, Uri>,
) {
    let deadline = Instant::now() + ALL_AGENTS_TIMEOUT;
    let directly = &async |node: &NodeRow| {
        let address = node.address.filter(|_| access.route != AgentRoute::ApiServer);
        let own = address.and_then(|address| statusz_uri(address, access.port));
        let uri = overrides.get(&node.name).cloned().or(own);
        let uri = uri.ok_or_else(|| "its address is not known".to_owned())?;
        in_time(deadline, Box::pin(fetch_agent_at(uri, &node.name))).await
    };
    let asked = report.nodes.iter_mut().map(|node| async move {
        let direct = directly(node).await;
        (node, direct)
    });
    let asked: Vec<_> = asked.collect();
    let answers = stream::iter(asked).buffer_unordered(MAX_CONCURRENT_QUERIES);
    let answers: Vec<_> = answers.collect().await;
    let pods = OnceCell::new();
    let list_pods = async || {
        let pods = AgentPods::list(client, access, None).await;
        (pods, Instant::now() + ALL_AGENTS_TIMEOUT)
    };
    let entered = answers.into_iter().map(|(node, direct)| async {
        let through = async {
            let (pods, deadline) = pods.get_or_init(&list_pods).await;
            in_time(*deadline, pods.as_ref().map_err(String::clone)?.fetch(&node.name)).await
        };
        let answer = if overrides.contains_key(&node.name) {
            direct
        } else {
            access.route.fetch(ready(direct), through).await
        };
        match answer {
            Ok(agent) => node.verdict = verdict_row(&agent),
            Err(error) => node.verdict.why = Some(error),
        }
    });
    let entered: Vec<_> = entered.collect();
    let mut entered = stream::iter(entered).buffer_unordered(MAX_CONCURRENT_QUERIES);
    while entered.next().await.is_some() {}
}

/// The answer of an agent by the deadline of all.
async fn in_time(
    deadline: Instant,
    answer: impl Future<Output = Result<AgentStatus, String>>,
) -> Result<AgentStatus, String> {
    let late = |_| Err(format!("no answer within {} s", ALL_AGENTS_TIMEOUT.as_secs()));
    timeout_at(deadline, answer).await.unwrap_or_else(late)
}

fn verdict_row(agent: &AgentStatus) -> VerdictRow {
    let error = agent.health_port_error();
    let healthz = agent.healthz.filter(|_| error.is_none());
    VerdictRow {
        healthz: healthz.map(|path| path.code),
        answered: true,
        since: healthz.and_then(|path| path.since),
        why: error.map(|error| format!("its health port: {error}")),
        connections: agent.connections.clone(),
        kept_services: agent.kept_services.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::net::{IpAddr, Ipv4Addr};

    use headgate_test_kubernetes::{FakeApi, Fault};
    use jiff::Timestamp;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::agent_status::PathStatus;

    const NAMESPACE: &str = "kube-system";
    const UNKNOWN: &str = "its address is not known";
    const NO_POD: &str = "through the API server: kube-system has no running pod of headgate's agents on this node";

    #[test]
    fn the_row_has_what_the_agent_answers_unless_nobody_gets_its_answer() {
        let since = Timestamp::from_second(7).unwrap();
        let answer = Some(PathStatus {
            code: 503,
            since: Some(since),
        });
        let refused = Some("its health port: in use");
        for (listener, healthz, expected) in [
            (Some("127.0.0.1:10456"), answer, (Some(503), Some(since), None)),
            (Some("closing"), answer, (Some(503), Some(since), None)),
            // An agent of another version may not name it.
            (None, answer, (Some(503), Some(since), None)),
            (Some("in use"), answer, (None, None, refused)),
            (Some("127.0.0.1:10456"), None, (None, None, None)),
        ] {
            let mut agent = AgentStatus::example("a");
            agent.healthz = healthz;
            agent.listeners = listener
                .map(|state| ("healthz".to_owned(), state.to_owned()))
                .into_iter()
                .collect();
            let row = verdict_row(&agent);
            let (code, since, why) = expected;
            let expected = VerdictRow {
                healthz: code,
                answered: true,
                since,
                why: why.map(str::to_owned),
                connections: agent.connections,
                kept_services: agent.kept_services,
            };
            assert_eq!(row, expected, "{listener:?} {healthz:?}");
        }
    }

    /// What a node's row says after no agent has answered, and how many requests the API server has got. Nothing listens at the address of
    /// the node, and none of headgate's pods run.
    async fn not_answered(
        route: AgentRoute,
        address: Option<IpAddr>,
        is_given: bool,
        fault: Fault,
    ) -> (VerdictRow, usize) {
        let fake = FakeApi::default();
        let (client, faults) = fake.client();
        faults.set(fault);
        let implied = VerdictRow {
            healthz: Some(200),
            ..VerdictRow::default()
        };
        let node = NodeRow {
            name: "node-1".to_owned(),
            address,
            verdict: implied,
            ..NodeRow::default()
        };
        let mut report = StatusReport {
            nodes: vec![node],
            ..StatusReport::default()
        };
        let given = Uri::from_static("http://127.0.0.1:2/statusz");
        let access = AgentAccess {
            port: 1,
            route,
            namespace: NAMESPACE.to_owned(),
        };
        let overrides = is_given.then(|| ("node-1".to_owned(), given)).into_iter().collect();
        query_agents(&mut report, &client, &access, &overrides).await;
        (report.nodes.remove(0).verdict, faults.tries())
    }

    #[tokio::test]
    async fn a_node_is_asked_by_the_ways_of_its_route_and_keeps_what_its_signals_imply() {
        let known = Some(IpAddr::from(Ipv4Addr::LOCALHOST));
        let (own, given) = ("http://127.0.0.1:1/statusz: ", "http://127.0.0.1:2/statusz: ");
        for (route, address, is_given, begin, end, requests) in [
            (AgentRoute::Direct, None, false, UNKNOWN, UNKNOWN, 0),
            (AgentRoute::Direct, known, false, own, "", 0),
            (AgentRoute::Direct, known, true, given, "", 0),
            (AgentRoute::Auto, None, false, UNKNOWN, NO_POD, 1),
            (AgentRoute::Auto, known, false, own, NO_POD, 1),
            // Whoever gives an address wants to know what is there.
            (AgentRoute::Auto, known, true, given, "", 0),
            (AgentRoute::ApiServer, None, false, NO_POD, NO_POD, 1),
            (AgentRoute::ApiServer, known, false, NO_POD, NO_POD, 1),
            (AgentRoute::ApiServer, known, true, given, "", 0),
        ] {
            let (row, tried) = not_answered(route, address, is_given, Fault::None).await;
            let case = format!("{route:?} {address:?} {is_given}: {row:?}");
            let why = row.why.as_deref().unwrap_or_default();
            assert!(why.starts_with(begin) && why.ends_with(end), "{case}");
            assert_eq!(why.contains("through the API server"), requests > 0, "{case}");
            assert_eq!(
                (row.healthz, row.answered, tried),
                (Some(200), false, requests),
                "{case}"
            );
        }
    }

    #[tokio::test]
    async fn an_agent_that_hangs_keeps_none_of_those_behind_it_waiting() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let serving = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = |listener: &TcpListener| format!("http://{}/statusz", listener.local_addr().unwrap());
        let overrides = [("first", &silent), ("last", &serving)]
            .map(|(name, listener)| (name.to_owned(), uri(listener).parse().unwrap()))
            .into();
        let answer = serde_json::to_string(&AgentStatus::example("last")).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        let server = tokio::spawn(async move {
            let (mut connection, _) = serving.accept().await.unwrap();
            connection.read_exact(&mut [0; 16]).await.unwrap();
            connection.write_all(answer.as_bytes()).await.unwrap();
            connection
        });
        let unknown = (0..MAX_CONCURRENT_QUERIES).map(|number| format!("node-{number}"));
        let names = iter::once("first".to_owned()).chain(unknown).chain(["last".to_owned()]);
        let node = |name| NodeRow {
            name,
            ..NodeRow::default()
        };
        let mut report = StatusReport {
            nodes: names.map(node).collect(),
            ..StatusReport::default()
        };
        let access = AgentAccess {
            port: 1,
            route: AgentRoute::Direct,
            namespace: NAMESPACE.to_owned(),
        };
        query_agents(&mut report, &FakeApi::default().client().0, &access, &overrides).await;
        let [first, .., last] = &report.nodes[..] else {
            panic!("{report:?}")
        };
        let why = first.verdict.why.as_deref().unwrap_or_default();
        assert!(why.ends_with("no answer within 3 s"), "{why}");
        assert!(last.verdict.answered, "{:?}", last.verdict);
        server.await.unwrap();
    }

    #[tokio::test]
    async fn pods_that_cannot_be_listed_are_a_reason_for_each_node() {
        let (row, _) = not_answered(AgentRoute::Auto, None, false, Fault::Status(403)).await;
        let why = row.why.unwrap();
        let expected = format!("{UNKNOWN}; through the API server: the pods of {NAMESPACE} cannot be listed: ");
        assert!(why.starts_with(&expected), "{why}");
    }
}
