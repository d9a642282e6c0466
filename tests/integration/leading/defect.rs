//! A panic of the leader task. A program with debug assertions has the one that panics; that the image's program unwinds as
//! this one does, the compiler checks (`src/agent/leader_election.rs`).

use super::*;

#[tokio::test]
async fn a_panic_of_the_leader_task_ends_the_term_and_not_the_process() {
    let lease = ExclusiveLease::free().await;
    let mut first = Instance::start(program(), &[], &[("HEADGATE_PANIC_DRILL", "1")]).await;
    let (healthz, node) = (first.address("healthz").await, first.node.clone());
    let process = first.process.id().unwrap();
    let mut answers = 0;
    lease.held_by(&node).await;
    let address = first.address("metrics").await;
    eventually(SOON, "the term fails", async || {
        assert_eq!(http::get(healthz, "/healthz").await.unwrap().status, 200);
        answers += 1;
        let text = http::get(address, "/metrics").await.unwrap().text();
        let line = "headgate_leader_failed_terms_total{reason=\"panic\"} 1";
        met(text.lines().any(|found| found == line), text)
    })
    .await;
    eventually(SOON, "the Lease is given back", async || {
        let holder = lease.holder().await;
        met(holder.is_empty(), holder)
    })
    .await;
    first.shows("headgate_leader 0").await;
    assert!(answers > 0);
    let log = first.log();
    assert!(
        log.contains("work of the term failed; released the Lease, and stands again later"),
        "{log}"
    );

    // An instance without the panic takes over, while the first one abstains and still answers probes.
    let second = Instance::start(program(), &[], &[]).await;
    lease.held_by(&second.node).await;
    assert_eq!(http::get(healthz, "/healthz").await.unwrap().status, 200);
    assert_eq!(first.process.id(), Some(process));
    assert!(first.process.try_wait().is_none());
    assert!(first.stop().await.success());
    assert!(second.stop().await.success());
}
