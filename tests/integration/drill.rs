//! `headgate-lab drill` as a program: real agents on the data plane of this machine's kernel.

#[expect(dead_code, reason = "some of it is for the tests of the drill itself")]
#[path = "../../lab/drill/tests/fixture/fixture.rs"]
mod fixture;
mod kep;
mod missing;
mod negative_controls;
mod outage;
mod terminal;

use std::process::Command;
use std::time::Duration;

use headgate_sandbox::process::{Process, command_in};
use headgate_test_kubernetes::{assert_contains, lab_program, scratch};
use nix::sys::signal::Signal;
use serde_json::Value;

use fixture::runtime;

/// How long a drill of a test may take, on a machine that is busy with other tests.
const DRILL_TIMEOUT: Duration = Duration::from_mins(4);

/// Drills of one test, at most, where the machine is too busy.
const ATTEMPTS: usize = 4;
/// How late a client or step may be in a drill of a test, in real seconds: these check an order of events, and no time.
const LONGEST_LAG_SECONDS: f64 = 0.3;

fn drill(flags: &str) -> Command {
    let mut command = command_in(lab_program(), &scratch("drill"));
    command.arg("drill").args(flags.split_whitespace()).args(["-o", "json"]);
    command
}

/// Runs a drill to its end; returns its results. Where the machine was too busy in a run, the whole drill runs again.
fn results(flags: &str) -> Vec<Value> {
    for _ in 1..ATTEMPTS {
        let runs = results_of_one(flags);
        let longest_lag = runs.iter().map(lag).fold(0.0, f64::max);
        if longest_lag <= LONGEST_LAG_SECONDS {
            return runs;
        }
        println!("the machine is too busy: a client or step was {longest_lag} s late; again");
    }
    results_of_one(flags)
}

/// How late a client or a step of a run was, in real seconds.
fn lag(run: &Value) -> f64 {
    run["longestLagSeconds"].as_f64().unwrap()
}

fn results_of_one(flags: &str) -> Vec<Value> {
    let directory = scratch("drill-output");
    let log = directory.join("drill.log");
    let status = runtime().block_on(async {
        let mut process = Process::start("headgate-lab drill", drill(flags), &log).unwrap();
        process.wait(DRILL_TIMEOUT).await
    });
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        status.is_some_and(|status| status.success()),
        "{flags}: {status:?}\n{text}"
    );
    let (_, json) = text.split_once("\n[\n").unwrap_or_else(|| panic!("no JSON in {text}"));
    serde_json::from_str(&format!("[{json}")).unwrap()
}

/// The time of the first such event of the first node.
fn time(run: &Value, event: &str) -> Option<f64> {
    time_on(run, event, 0)
}

fn time_on(run: &Value, event: &str, node: usize) -> Option<f64> {
    let mut entries = run["timeline"].as_array()?.iter();
    entries.find(|entry| entry["event"] == event && entry["node"] == node)?["t"].as_f64()
}

/// How a node goes by its admin state.
const BY_ADMIN_STATE: [&str; 5] = ["signal", "putAccepted", "downShown", "outOfRotation", "nodeGone"];

/// The times of these events of node 0, which come in this order.
fn in_order<const N: usize>(run: &Value, events: [&str; N]) -> [f64; N] {
    let times = events.map(|event| time(run, event).unwrap_or_else(|| panic!("{event} in {run}")));
    assert!(times.is_sorted(), "{times:?} of {events:?}");
    times
}

/// None of these was lost.
fn assert_none(run: &Value, fields: &[&str]) {
    for field in fields {
        assert_eq!(run[field], 0, "{field} in {run}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn admin_state_loses_nothing_where_the_node_dies_unnoticed_by_kube_proxy() {
    let flags =
        "--scenario maintenance --strategy kube-proxy,admin-state --nodes 3 --delete-delay 60s --operation-delay 5s";
    let runs = results(flags);
    let [kube_proxy, admin_state] = runs.as_slice() else {
        panic!("{runs:?}")
    };
    assert!(kube_proxy["failed"].as_u64().unwrap() > 0, "{kube_proxy}");
    assert_none(admin_state, &["failed", "establishedLostBeforeNodeGone"]);
    assert!(admin_state["attempted"].as_u64().unwrap() > 500, "{admin_state}");
    assert!(admin_state["established"].as_u64().unwrap() >= 30, "{admin_state}");
    let times = in_order(admin_state, BY_ADMIN_STATE);
    assert!(times[2] - times[1] >= 4.9, "the operation takes 5 s: {times:?}");
    // By the admin state alone: the probe of the node port finds nothing before the machine is dead.
    assert!(time(admin_state, "healthz503").is_none(), "{admin_state}");
    let probed = admin_state["timeline"].as_array().unwrap().iter().find(|entry| {
        let is_before = (times[0]..times[4]).contains(&entry["t"].as_f64().unwrap());
        entry["event"] == "probeFailed" && entry["node"] == 0 && is_before
    });
    assert_eq!(probed, None, "{admin_state}");
}

/// The pool has network interfaces, of which that of the deleted machine goes, and another program writes it all the time, by turns
/// with the leader.
#[test]
#[ignore = "needs network namespaces"]
fn admin_state_loses_nothing_in_a_pool_of_interfaces_beside_another_writer() {
    let flags = "--scenario scale-down --strategy admin-state --nodes 3 --runs 2 --delete-delay 60s --operation-delay 2s \
                 --pool-members nic --deleted-machines leave --other-writer 1s --expect-no-loss admin-state";
    let runs = results(flags);
    assert_eq!(runs.len(), 2, "the interface is back in the second one");
    for run in &runs {
        let conditions = &run["conditions"];
        let stated = ["poolMembers", "deletedMachines", "otherWriterSeconds"].map(|name| conditions[name].clone());
        assert_eq!(stated, ["nic".into(), "leave".into(), Value::from(1.0)], "{run}");
        in_order(run, BY_ADMIN_STATE);
    }
}

/// Azure's notice reaches the agent through IMDS; its own taint makes the leader set the admin state. Here and below, where
/// probes ask headgate as well, two of them take a node out, so that the first one is not sooner than the admin state.
#[test]
#[ignore = "needs network namespaces"]
fn an_agent_takes_its_node_out_at_a_spot_notice_of_10_seconds() {
    let flags =
        "--scenario spot --strategy kube-proxy,headgate --nodes 3 --notice 10s --speed 1.5 --probe-rule threshold";
    let runs = results(flags);
    let [kube_proxy, headgate] = runs.as_slice() else {
        panic!("{runs:?}")
    };
    assert!(
        kube_proxy["failed"].as_u64().unwrap() > 0,
        "kube-proxy reads no notice: {kube_proxy}"
    );
    assert!(time(kube_proxy, "healthz503").is_none(), "{kube_proxy}");
    assert_eq!(headgate["failed"], 0, "{headgate}");
    in_order(
        headgate,
        [
            "signal",
            "healthz503",
            "putAccepted",
            "downShown",
            "outOfRotation",
            "nodeGone",
        ],
    );
}

/// The node hosts a Pod, and the controllers create the maintenance by themselves, in each of two runs.
#[test]
#[ignore = "needs network namespaces"]
fn a_pod_of_a_spot_node_has_the_rest_of_the_notice() {
    // Its connections would live for longer than the notice: it serves until its grace period is over.
    let flags = "--scenario spot --strategy node-maintenance --nodes 3 --notice 30s --speed 2 --connection-lifetime 60s --runs 2 \
                 --probe-rule threshold";
    let runs = results(flags);
    assert_eq!(runs.len(), 2, "the second one after the first maintenance has ended");
    for run in &runs {
        assert_eq!(run["failed"], 0, "{run}");
        let times = in_order(
            run,
            [
                "signal",
                "putAccepted",
                "downShown",
                "outOfRotation",
                "podTerminating",
                "podEnded",
                "nodeGone",
            ],
        );
        let [signal, .., told, ended, gone] = times;
        assert!((gone - signal - 30.0).abs() < 1.0, "at its time: {times:?}");
        // The announced time is in whole real seconds, and so is a grace period.
        assert!(told - signal < 20.0 && gone - ended <= 2.0 * 2.5, "{times:?}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn kube_proxys_own_process_takes_nodes_out_and_keeps_terminating_pods_in_use() {
    // Its /healthz at the autoscaler's taint, in two runs: after the first one the machine and its kube-proxy start again.
    let runs = results("--scenario scale-down --strategy kube-proxy --nodes 3 --delete-delay 30s --runs 2");
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(run["failed"], 0, "{run}");
        in_order(run, ["signal", "healthz503", "probeDown", "outOfRotation", "nodeGone"]);
    }
    // Its healthCheckNodePort, and ProxyTerminatingEndpoints.
    let runs = results(
        "--scenario rolling-update --strategy pre-stop-sleep,healthcheck-fail --nodes 3 --restart 15s --probe-rule threshold",
    );
    let [sleep, fail] = runs.as_slice() else {
        panic!("{runs:?}")
    };
    assert_eq!(sleep["failed"], 0, "{sleep}");
    assert!(time(sleep, "healthz503").is_some(), "{sleep}");
    assert!(fail["failed"].as_u64().unwrap() > 0, "not ready means not used: {fail}");
}

#[test]
#[ignore = "needs network namespaces"]
fn controllers_evict_the_pod_after_the_load_balancer_is_out() {
    let flags = "--scenario maintenance --strategy node-maintenance --nodes 3 --delete-delay 30s --runs 2 --probe-rule threshold";
    let runs = results(flags);
    assert_eq!(runs.len(), 2, "the second one after the first maintenance is undone");
    for run in &runs {
        assert_none(run, &["failed", "establishedLostBeforeNodeGone"]);
        let times = in_order(run, BY_ADMIN_STATE);
        // Drain time, the Pod's connections, and a second; less one real second, to which the gate's times are rounded.
        assert!(times[4] - times[3] >= 30.0 + 20.0 + 1.0 - 10.0, "{times:?}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn a_node_of_a_local_service_is_drained_without_azure() {
    let runs = results("--scenario local --strategy node-maintenance --nodes 3 --delete-delay 30s --runs 2");
    assert_eq!(runs.len(), 2, "the second one after the first maintenance is undone");
    for run in &runs {
        assert_none(run, &["failed", "establishedLost"]);
        in_order(run, ["signal", "healthz503", "outOfRotation", "nodeGone"]);
        assert!(time(run, "putAccepted").is_none(), "there is no Azure: {run}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn a_deletion_waits_for_the_last_connection_through_the_node() {
    let flags = "--scenario scale-down --strategy admin-state,connections --nodes 3 --connections 60 --connection-lifetime 40s \
                 --runs 2 --probe-rule threshold --expect-no-loss connections";
    let runs = results(flags);
    let (fixed_delay, held) = runs.split_at(2);
    assert!(
        fixed_delay
            .iter()
            .all(|run| run["establishedLost"].as_u64().unwrap() > 0),
        "{fixed_delay:?}"
    );
    for run in held {
        assert_none(run, &["failed", "establishedLost"]);
        assert!(run["establishedAtSignal"].as_u64().unwrap() > 0, "{run}");
        let times = in_order(run, BY_ADMIN_STATE);
        // Some connections were new at the signal; the wait ends with the last of them and not with its bound of 20 min.
        let gone_after = times[4] - times[0];
        assert!((20.0..300.0).contains(&gone_after), "{times:?}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn a_loss_that_was_not_expected_is_an_error() {
    let flags = "drill --scenario scale-down --strategy none --expect-no-loss none --nodes 2 --speed 20";
    let output = command_in(lab_program(), &scratch("drill-loss"))
        .args(flags.split_whitespace())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_contains!(text, "not as expected", "none, seed 1:");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("blackhole seconds"),
        "the table all the same"
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn an_interrupt_ends_a_drill_and_its_processes() {
    let flags = "--scenario spot --strategy kube-proxy --nodes 2 --notice 10m";
    let directory = scratch("drill-interrupted");
    let log = directory.join("drill.log");
    runtime().block_on(async {
        let mut command = drill(flags);
        command.env("TMPDIR", &directory);
        let mut process = Process::start("headgate-lab drill", command, &log).unwrap();
        let started = async {
            while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("run 1 of 1")) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(DRILL_TIMEOUT, started).await.unwrap();
        let id = process.id().unwrap();
        let children = descendants(id);
        assert!(children.len() >= 4, "etcd, kube-apiserver and two agents: {children:?}");
        let on_nodes = children.iter().filter(|child| runs(**child, "kube-proxy")).count();
        assert!(on_nodes >= 2, "kube-proxy on each node: {children:?}");
        let files = || std::fs::read_dir(&directory).unwrap().count();
        assert!(files() > 1, "the log, and the files of the control plane");
        process.signal(Signal::SIGINT);
        let status = process.wait(Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.code(), Some(130));
        let alive = || children.iter().filter(|child| is_alive(**child)).count();
        for _ in 0..100 {
            if alive() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(alive(), 0, "{children:?}");
        assert_eq!(files(), 1, "only the log is left");
    });
}

/// Whether the process with this id was started from such a program.
fn runs(id: u32, program: &str) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let first = line.split('\0').next().unwrap_or_default();
    first.rsplit('/').next() == Some(program)
}

fn is_alive(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// The children of all threads of a process.
fn descendants(id: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let ids: Vec<_> = children.collect();
    ids.iter()
        .flat_map(|text| text.split_whitespace())
        .filter_map(|id| id.parse().ok())
        .collect()
}
