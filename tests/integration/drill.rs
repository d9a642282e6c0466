//! `headgate drill` as a program: real agents on the data plane of this machine's kernel.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use headgate_drill::network::namespace::Namespace;
use headgate_sandbox::process::{Process, command_in};
use headgate_test_kubernetes::scratch;
use nix::sys::signal::Signal;
use serde_json::Value;

/// How long a drill of a test may take, on a machine that is busy with other tests.
const DRILL_TIMEOUT: Duration = Duration::from_mins(4);

/// Whether namespaces are available; without them a test prints a line and passes, except with `CI=true`.
pub(crate) fn can_run(test: &str) -> bool {
    let Err(obstacle) = Namespace::create() else {
        return true;
    };
    let checked = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(
        !checked,
        "{test} cannot run: {obstacle}; and CI=true allows no skipping"
    );
    let _ = writeln!(std::io::stderr(), "{test} not run: {obstacle}");
    false
}

fn drill(flags: &str) -> Command {
    let mut command = command_in(env!("CARGO_BIN_EXE_headgate"), &scratch("drill"));
    command.arg("drill").args(flags.split_whitespace()).args(["-o", "json"]);
    command
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a drill to its end; returns its results and its output.
fn results(flags: &str) -> Vec<Value> {
    let directory = scratch("drill-output");
    let log = directory.join("drill.log");
    let status = runtime().block_on(async {
        let mut process = Process::start("headgate drill", drill(flags), &log).unwrap();
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
    let mut entries = run["timeline"].as_array()?.iter();
    entries.find(|entry| entry["event"] == event && entry["node"] == 0)?["t"].as_f64()
}

#[test]
fn admin_state_loses_nothing_where_the_node_dies_unnoticed_by_kube_proxy() {
    if !can_run("admin_state_loses_nothing_where_the_node_dies_unnoticed_by_kube_proxy") {
        return;
    }
    let flags =
        "--scenario maintenance --strategy kube-proxy,admin-state --nodes 3 --delete-delay 60s --operation-delay 5s";
    let runs = results(flags);
    let [kube_proxy, admin_state] = runs.as_slice() else {
        panic!("{runs:?}")
    };
    assert!(kube_proxy["failed"].as_u64().unwrap() > 0, "{kube_proxy}");
    for field in ["failed", "establishedLostBeforeNodeGone"] {
        assert_eq!(admin_state[field], 0, "{field} in {admin_state}");
    }
    assert!(admin_state["attempted"].as_u64().unwrap() > 500, "{admin_state}");
    assert!(admin_state["established"].as_u64().unwrap() >= 30, "{admin_state}");
    let events = ["signal", "putAccepted", "downShown", "outOfRotation", "nodeGone"];
    let times = events.map(|event| time(admin_state, event).unwrap_or_else(|| panic!("{event} in {admin_state}")));
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[2] - times[1] >= 4.9, "the operation takes 5 s: {times:?}");
    assert!(time(admin_state, "healthz503").is_some(), "{admin_state}");
}

#[test]
fn an_interrupt_ends_a_drill_and_its_processes() {
    if !can_run("an_interrupt_ends_a_drill_and_its_processes") {
        return;
    }
    let directory = scratch("drill-interrupted");
    let log = directory.join("drill.log");
    runtime().block_on(async {
        let flags = "--scenario spot --strategy healthz --nodes 2 --notice 10m";
        let mut process = Process::start("headgate drill", drill(flags), &log).unwrap();
        let started = async {
            while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("run 1 of 1")) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(DRILL_TIMEOUT, started).await.unwrap();
        let id = process.id().unwrap();
        let children = descendants(id);
        assert!(children.len() >= 4, "etcd, kube-apiserver and two agents: {children:?}");
        process.signal(Signal::SIGINT);
        let status = process.wait(Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.code(), Some(1));
        let alive = || children.iter().filter(|child| is_alive(**child)).count();
        for _ in 0..100 {
            if alive() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(alive(), 0, "{children:?}");
    });
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
