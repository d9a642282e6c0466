//! A panic of the leader task, in a program built like the image's (`make static-binary`) but with the feature that
//! panics and without optimisation, which saves minutes.

use super::*;

/// The path to which `make static-binary` writes.
fn with_a_defect() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").filter(|directory| !directory.is_empty());
    let target = target.map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(target);
    let path = root.join("static/headgate-panic-drill");
    assert!(path.is_file(), "no {}: run `make static-binary` first", path.display());
    path
}

#[tokio::test]
async fn a_panic_of_the_leader_task_ends_the_term_and_not_the_process() {
    let lease = ExclusiveLease::free().await;
    let program = with_a_defect();
    let mut first = Instance::start(&program, &[], &[("HEADGATE_PANIC_DRILL", "1")]).await;
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
        if text.lines().any(|found| found == line) {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await;
    eventually(SOON, "the Lease is given back", async || {
        let holder = lease.holder().await;
        if holder.is_empty() { Ok(()) } else { Err(holder) }
    })
    .await;
    first.shows("headgate_leader 0").await;
    assert!(answers > 0);
    let log = first.log();
    assert!(
        log.contains("leader task failed, releasing the lease and abstaining"),
        "{log}"
    );

    // An instance without the panic takes over, while the first one abstains and still answers probes.
    let second = Instance::start(&program, &[], &[]).await;
    lease.held_by(&second.node).await;
    assert_eq!(http::get(healthz, "/healthz").await.unwrap().status, 200);
    assert_eq!(first.process.id(), Some(process));
    assert!(first.process.try_wait().is_none());
    assert!(first.stop().await.success());
    assert!(second.stop().await.success());
}
