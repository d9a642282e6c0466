//! Maintenances end to end: a real kube-apiserver, kube-controller-manager and kube-scheduler, kwok in place of kubelets, the
//! emulated Azure, and two controllers of headgate as child processes.
//!
//! All rows (`rows.rs`) share one cluster and run at the same time, each with its own nodes and namespace. An observer follows
//! all objects and the load balancers meanwhile; its rules (`observer/rules.rs`) hold in every row.
//!
//! `HEADGATE_MAINTENANCE_ROWS` is a part of the names of the rows to run, `HEADGATE_MAINTENANCE_KILLS` how often the leader is
//! killed (3 by default).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

mod cluster;
#[allow(dead_code, reason = "shared with the integration tests, which use more of it")]
#[path = "../integration/emulator/emulator_process.rs"]
mod emulator_process;
mod follow;
#[allow(dead_code, reason = "shared with the integration tests, which use more of it")]
#[path = "../integration/harness/http.rs"]
mod http;
mod killer;
mod observer;
mod rows;
mod scene;
mod seed;

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Instant;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio::task::LocalSet;

use self::cluster::Cluster;
use self::killer::Killer;
use self::observer::Observer;
use self::rows::{ROWS, Row};
use self::scene::Scene;

/// Runs rows at the same time; gives the names of those that failed. Their messages are in the output.
async fn run(cluster: &Rc<Cluster>, observer: &Rc<Observer>, rows: &[&Row], suffix: &str) -> Vec<String> {
    let outcomes = join_all(rows.iter().map(|row| async move {
        let start = Instant::now();
        let namespace = format!("{}{suffix}", row.namespace());
        let row_run = async {
            let scene = Scene::new(cluster.clone(), observer.clone(), row, namespace).await;
            (row.run)(scene.clone()).await;
            scene.nothing_is_left().await;
            scene.remove_workloads().await;
        };
        let outcome = AssertUnwindSafe(row_run).catch_unwind().await;
        let result = if outcome.is_ok() { "passed" } else { "FAILED" };
        println!("{result}: {}{suffix} ({} s)", row.name, start.elapsed().as_secs());
        outcome.err().map(|_| format!("{}{suffix}", row.name))
    }));
    outcomes.await.into_iter().flatten().collect()
}

#[tokio::test]
async fn maintenances_on_a_real_control_plane_with_workloads() {
    // The observer and the killer are tasks of this thread.
    Box::pin(LocalSet::new().run_until(all_rows())).await;
}

async fn all_rows() {
    let wanted = std::env::var("HEADGATE_MAINTENANCE_ROWS").unwrap_or_default();
    let kills = std::env::var("HEADGATE_MAINTENANCE_KILLS").map_or(3, |text| text.parse().unwrap());
    let rows: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains(&wanted)).collect();
    assert!(!rows.is_empty(), "no row has {wanted:?} in its name");
    let cluster = Rc::new(Cluster::start().await);
    let observer = Observer::start(&cluster);

    let mut failed = run(&cluster, &observer, &rows, "").await;
    let repeated: Vec<&Row> = rows.into_iter().filter(|row| row.survives_kills).collect();
    if kills > 0 && !repeated.is_empty() && failed.is_empty() {
        let killer = Killer::start(&cluster, &observer, kills);
        failed.extend(run(&cluster, &observer, &repeated, "-killed").await);
        let times = killer.stop().await;
        println!("the leader was killed {times} times");
        assert!(times > 0, "no row was disturbed");
    }
    let violations = observer.violations();
    assert!(
        failed.is_empty() && violations.is_empty(),
        "failed: {failed:?}\nviolations: {violations:#?}\n{}",
        cluster.logs()
    );
    println!("{}", observer.summary());
    let cluster = Rc::into_inner(cluster);
    drop(observer);
    if let Some(cluster) = cluster {
        cluster.stop().await;
    }
}
