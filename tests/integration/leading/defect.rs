//! A panic of the leader task. A program with debug assertions has the one that panics; that the image's program unwinds as
//! this one does, the compiler checks (`src/agent/leader_election.rs`).

use std::time::Duration;

use super::*;

#[tokio::test]
async fn a_panic_of_the_leader_task_ends_the_term_and_not_the_process() {
    let lease = ExclusiveLease::free().await;
    let (options, node) = candidate().await;
    let mut first = options.environment("HEADGATE_PANIC_DRILL", "1").start().await;
    let (healthz, metrics) = (first.healthz_address(), first.metrics_address());
    let process = first.pid();
    let mut answers = 0;
    lease.held_by(&node).await;
    eventually(SOON, "the term fails", async || {
        assert_eq!(http::get(healthz, "/healthz").await.unwrap().status, 200);
        answers += 1;
        let text = http::get(metrics, "/metrics").await.unwrap().text();
        let line = "headgate_leader_failed_terms_total{reason=\"panic\"} 1";
        met(text.lines().any(|found| found == line), text)
    })
    .await;
    eventually(SOON, "the Lease is given back", async || {
        let holder = lease.holder().await;
        met(holder.is_empty(), holder)
    })
    .await;
    shows(metrics, "headgate_leader 0").await;
    assert!(answers > 0);
    let log = first.log();
    assert!(
        log.contains("work of the term failed; released the Lease, and stands again later"),
        "{log}"
    );
    assert_eq!(crate::chaos::panics(&log).count(), 1, "{log}");

    // An instance without the panic takes over, while the first one abstains and still answers probes.
    let (options, node) = candidate().await;
    let second = options.start().await;
    lease.held_by(&node).await;
    assert_eq!(http::get(healthz, "/healthz").await.unwrap().status, 200);
    assert!(first.wait(Duration::ZERO).await.is_none());
    assert_eq!(first.pid(), process);
    assert!(first.stop(SOON).await.success());
    assert!(second.stop(SOON).await.success());
}
