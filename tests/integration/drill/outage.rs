//! An API server that is away, and agents and kube-proxies that restart meanwhile.

use std::ops::Range;

use serde_json::Value;

use super::{LONGEST_LAG_SECONDS, assert_none, lag, results, time, time_on};

/// Of Azure's probes, in seconds.
const PROBE_INTERVAL: f64 = 5.0;

/// An API server that stops and starts, and agents that restart, take seconds at any speed. The node dies at its time all the same.
#[test]
#[ignore = "needs network namespaces"]
fn an_outage_of_the_api_server_delays_no_death() {
    let runs = results("--scenario api-outage --strategy healthz,kube-proxy --nodes 3 --runs 2 --speed 10");
    assert_eq!(runs.len(), 4, "each one after the API server is back");
    for run in &runs {
        // Planned for second 10; a second of this machine is ten of the scenario. A death that waits for the API server is later.
        let gone = time(run, "nodeGone").unwrap();
        assert!((10.0..20.0).contains(&gone), "{run}");
        assert!(gone <= 10.0 + 10.0 * lag(run).max(LONGEST_LAG_SECONDS), "{run}");
    }
}

/// An outage that is longer than all else: from second 17, 12 s after the signal, until second 67, 2 s after the node is off. kube-proxy and
/// the agents restart in second 18. An agent that remembered nothing would wait for 5 s of this machine, until second 43, while its
/// predecessor answers, and then let the node back.
#[test]
#[ignore = "needs network namespaces"]
fn an_outage_of_the_api_server_takes_kube_proxys_nodes_out_and_headgate_loses_nothing() {
    const RESTARTED: f64 = 18.0;
    const BACK: f64 = 67.0;
    const SPEED: f64 = 5.0;
    let runs = results(
        "--scenario api-outage --strategy kube-proxy,healthz,admin-state --nodes 3 --speed 5 --delete-delay 60s",
    );
    let [kube_proxy, healthz, admin_state] = runs.as_slice() else {
        panic!("{runs:?}")
    };
    // kube-proxy does not listen before it has read its Node, and a node is in rotation again after two good probes.
    let out = [0, 1, 2]
        .map(|node| out_of_rotation(kube_proxy, node).unwrap_or_else(|| panic!("node {node} in {kube_proxy}")));
    let all_out = out.into_iter().fold(0.0, f64::max);
    let noticed = RESTARTED + PROBE_INTERVAL + 1.0 + SPEED * lag(kube_proxy).max(LONGEST_LAG_SECONDS);
    assert!((RESTARTED..noticed).contains(&all_out), "{out:?} in {kube_proxy}");
    let (attempted, failed) = connections(kube_proxy, 0.0..RESTARTED);
    assert!(
        attempted > 100 && failed == 0,
        "before: {failed} of {attempted} in {kube_proxy}"
    );
    let (attempted, failed) = connections(kube_proxy, all_out..BACK + PROBE_INTERVAL);
    assert!(
        attempted > 300 && failed == attempted,
        "meanwhile: {failed} of {attempted} in {kube_proxy}"
    );
    // Agents answer from what they remember of their Node, and what ARM has stays so.
    for run in [healthz, admin_state] {
        assert!(run["attempted"].as_u64().unwrap() > 500, "{run}");
        assert_none(run, &["failed", "establishedLostBeforeNodeGone"]);
        assert!(out_of_rotation(run, 0).is_some_and(|out| out < RESTARTED), "{run}");
    }
    assert_eq!(
        [1, 2].map(|node| out_of_rotation(admin_state, node)),
        [None, None],
        "{admin_state}"
    );
}

fn out_of_rotation(run: &Value, node: usize) -> Option<f64> {
    time_on(run, "outOfRotation", node)
}

/// The new connections of the seconds that are within this time, and those that failed.
fn connections(run: &Value, within: Range<f64>) -> (u64, u64) {
    let seconds = run["perSecond"].as_array().unwrap().iter();
    let counted = seconds.filter(|second| {
        let t = second["t"].as_f64().unwrap();
        within.start <= t && t + 1.0 <= within.end
    });
    let count = |second: &Value, field: &str| second[field].as_u64().unwrap();
    counted.fold((0, 0), |(attempted, failed), second| {
        (attempted + count(second, "attempted"), failed + count(second, "failed"))
    })
}
