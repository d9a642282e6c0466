//! ARM accepts a write, reports Succeeded, and does not apply it.

use headgate_test_kubernetes::assert_contains;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use hyper::{Method, Response};
use serde_json::json;
use tokio::time::sleep;

use super::rows::cluster::{DOWN, DRAINING, FAILED, SECOND, TestCluster, between};
use super::rows::lease::holder;
use super::world::{ENFORCE, entries, id_of, load_balancer, one_pool};

const BY_ID: &str = "/loadBalancers/kubernetes$";

#[tokio::test(start_paused = true)]
async fn ignored_write_is_repeated_after_minutes_and_the_event_says_so() {
    let cluster = TestCluster::new(3).await;
    let lost = json!({"operation": "succeed", "effect": "lost"});
    cluster.fault("PUT", "/loadBalancers/kubernetes/", None, &lost);
    cluster.taint(2, &[DRAINING]);
    sleep(3600 * SECOND).await;
    let path = "/loadBalancers/kubernetes/backendAddressPools/kubernetes$";
    let puts = cluster.sent("PUT", path);
    // After 30 s, 1 min, 2, 4 and every 5; it was every 20 s.
    assert!((10..=17).contains(&puts.len()), "{}", puts.len());
    let waits: Vec<_> = puts.windows(2).map(|pair| between(&pair[0], &pair[1])).collect();
    assert!(waits[0] >= 29 * SECOND && waits[5] >= 290 * SECOND, "{waits:?}");
    // Each of them is read back twice under the Lease.
    let reads = cluster.sent("GET", BY_ID);
    let after_first = reads.iter().filter(|read| read.at > puts[0].at && read.at < puts[1].at);
    assert!(after_first.count() >= 2);
    let notes = cluster.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "reported Succeeded, but did not apply it");
    // The other load balancer is not affected.
    assert_eq!(cluster.world.down("kubernetes-internal", "kubernetes").len(), 1);
    cluster.clear_faults();
    sleep(310 * SECOND).await;
    cluster.settle(&["node-2"]).await;
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn other_pools_are_written_beside_an_ignored_one() {
    let pools = [("kubernetes", entries(1..=3, false)), ("local", entries(1..=3, false))];
    let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
    let lost = json!({"operation": "succeed", "effect": "lost"});
    cluster.fault("PUT", "/backendAddressPools/kubernetes$", None, &lost);
    cluster.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert_eq!(cluster.world.down("kubernetes", "local").len(), 1);
    assert_eq!(cluster.puts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_read_back_is_not_an_ignored_write() {
    let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
    let old = cluster.get(&id_of("kubernetes")).await.to_string();
    let stale_reads = Arc::new(AtomicU32::new(0));
    let left = Arc::clone(&stale_reads);
    cluster.world.intercept = Some(Arc::new(move |request| {
        let is_read = request.method() == Method::GET && request.uri().path().ends_with("/loadBalancers/kubernetes");
        if request.method() == Method::PUT {
            left.store(1, Ordering::SeqCst);
        }
        let is_stale = is_read && left.swap(0, Ordering::SeqCst) == 1;
        is_stale.then(|| Response::new(Bytes::from(old.clone())))
    }));
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    sleep(10 * SECOND).await;
    assert_eq!(cluster.puts().len(), 1);
    assert!(cluster.notes(FAILED, "node-2").await.is_empty());
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    assert_eq!(stale_reads.load(Ordering::SeqCst), 0);
}

/// Reads may lag a write. One that shows a version that a write has replaced says nothing: neither that the write was ignored nor what
/// another one could be made from. Also where a pool is `Succeeded` while its load balancer is not, so that a write seems to have ended.
#[tokio::test(start_paused = true)]
async fn reads_that_lag_lead_to_no_other_write() {
    for (operation, deviations) in [
        ("0s", json!([])),
        ("3s", json!([])),
        ("3s", json!(["poolsStaySucceeded"])),
        (
            "3s",
            json!(["poolsStaySucceeded", "poolsHaveOwnEtags", "secondWriteRefused"]),
        ),
    ] {
        let pools = [("kubernetes", entries(1..=3, false)), ("local", entries(1..=3, false))];
        let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
        let settings = json!({"readLag": "2s", "operationDelay": operation, "deviations": deviations});
        cluster.configure(&settings);
        for (keys, down) in [(&[DRAINING][..], &["node-2"][..]), (&[], &[])] {
            let before = cluster.puts().len();
            cluster.taint(2, keys);
            let took = cluster.until_down(down).await;
            assert!(took < 10 * SECOND, "{down:?} after {took:?} with {settings}");
            sleep(60 * SECOND).await;
            cluster.settle(down).await;
            let puts = cluster.puts();
            let statuses: Vec<_> = puts[before..].iter().map(|put| put.status).collect();
            assert_eq!(statuses, [200, 200], "one write of each pool with {settings}");
        }
        assert!(cluster.notes(FAILED, "node-2").await.is_empty());
    }
}

/// Two 412 say that the version was replaced, so a read that still shows it lags, and a write from it would be refused again.
#[tokio::test(start_paused = true)]
async fn reads_that_lag_another_writer_cost_two_refused_writes() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    cluster.configure(&json!({"readLag": "2s"}));
    cluster.change_pool("kubernetes").await;
    let before = cluster.puts().len();
    cluster.taint(2, &[DRAINING]);
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 10 * SECOND, "{took:?}");
    let statuses: Vec<_> = cluster.puts()[before..].iter().map(|put| put.status).collect();
    assert_eq!(statuses, [412, 412, 200]);
}

/// ARM refuses each write of a pool for a version that reads go on showing.
#[tokio::test(start_paused = true)]
async fn writes_refused_for_a_version_that_reads_still_show_are_repeated_after_minutes_too() {
    for names in [&["kubernetes"][..], &["kubernetes", "local"]] {
        let pools: Vec<_> = names.iter().map(|name| (*name, entries(1..=3, false))).collect();
        let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
        let refused = json!({"answer": {"code": "PreconditionFailed"}});
        cluster.fault("PUT", "/backendAddressPools/kubernetes$", None, &refused);
        cluster.taint(2, &[DRAINING]);
        let mut held = 0;
        for _ in 0..3600 {
            sleep(SECOND).await;
            held += u32::from(!holder(&cluster).is_empty());
        }
        let puts = cluster.sent("PUT", "/backendAddressPools/kubernetes$");
        assert!(puts.iter().all(|put| put.status == 412), "{names:?}");
        // Three in the first 10 s, then after 30 s, 1 min, 2, 4 and every 5; they were 215, with the Lease held for 36 min.
        assert!((13..=20).contains(&puts.len()), "{names:?}: {}", puts.len());
        assert!(held <= 60, "{names:?}: held for {held} s");
        let others = cluster.sent("PUT", "/backendAddressPools/local$");
        assert_eq!(others.len(), names.len() - 1, "written once");
        let notes = cluster.notes(FAILED, "node-2").await;
        // As of any failure that may pass, every 5 min.
        assert!((1..=13).contains(&notes.len()), "{names:?}: {notes:?}");
        assert!(notes[0].contains("although reads show the version"), "{notes:?}");
        cluster.clear_faults();
        if others.is_empty() {
            // Another writer replaces the version.
            cluster.change_pool("kubernetes").await;
            let took = cluster.until_down(&["node-2"]).await;
            assert!(took < 20 * SECOND, "{took:?}");
        }
        sleep(310 * SECOND).await;
        cluster.settle(&["node-2"]).await;
    }
}

/// ARM refuses every write of a load balancer while an operation of another writer lasts, and no read shows that one does.
#[tokio::test(start_paused = true)]
async fn writes_refused_because_of_another_operation_do_not_follow_at_once() {
    let pools = [("kubernetes", entries(1..=3, false)), ("local", entries(1..=3, false))];
    let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
    let deviations = json!(["poolsStaySucceeded", "loadBalancersStaySucceeded", "secondWriteRefused"]);
    let settings = json!({"operationDelay": "5s", "deviations": deviations});
    cluster.configure(&settings);
    cluster.change_pool("kubernetes").await;
    let before = cluster.puts().len();
    cluster.taint(2, &[DRAINING]);
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 20 * SECOND, "{took:?}");
    let statuses: Vec<_> = cluster.puts()[before..].iter().map(|put| put.status).collect();
    assert_eq!(
        statuses,
        [409, 409, 409, 200, 200],
        "after 1, 3 and 7 s, then one of each pool"
    );
    cluster.settle(&["node-2"]).await;
    // The same with the other code that ARM has for it.
    let before = cluster.puts().len();
    let refused = json!({"answer": {"code": "ConflictingConcurrentWriteNotAllowed"}});
    cluster.fault("PUT", "/loadBalancers/kubernetes/", Some(3), &refused);
    cluster.taint(1, &[DRAINING]);
    let took = cluster.until_down(&["node-1", "node-2"]).await;
    assert!(took < 20 * SECOND, "{took:?}");
    let statuses: Vec<_> = cluster.puts()[before..].iter().map(|put| put.status).collect();
    assert_eq!(statuses, [409, 409, 409, 200, 200]);
    for node in ["node-1", "node-2"] {
        assert!(cluster.notes(FAILED, node).await.is_empty());
    }
}

/// ARM ignores writes, no read shows that an operation lasts, and reads lag: they show for a moment what is about to be lost.
#[tokio::test(start_paused = true)]
async fn ignored_writes_that_reads_show_for_a_moment_are_repeated_after_minutes_too() {
    for names in [&["kubernetes"][..], &["kubernetes", "local"]] {
        let pools: Vec<_> = names.iter().map(|name| (*name, entries(1..=3, false))).collect();
        let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
        let deviations = json!(["poolsStaySucceeded", "loadBalancersStaySucceeded", "secondWriteRefused"]);
        let settings = json!({"readLag": "2s", "operationDelay": "1s", "deviations": deviations});
        cluster.configure(&settings);
        let lost = json!({"operation": "succeed", "effect": "lost"});
        cluster.fault("PUT", "/loadBalancers/kubernetes/", None, &lost);
        cluster.taint(2, &[DRAINING]);
        sleep(3600 * SECOND).await;
        for pool in names {
            let puts = cluster.sent("PUT", &format!("/loadBalancers/kubernetes/backendAddressPools/{pool}$"));
            // At most three at once, then after 30 s, 1 min, 2, 4 and every 5; they were 616 of each of two pools, half of them refused.
            assert!((13..=20).contains(&puts.len()), "{pool} of {names:?}: {}", puts.len());
            let waits = puts.windows(2).map(|pair| between(&pair[0], &pair[1]));
            let late_waits: Vec<_> = waits.skip(puts.len() - 5).collect();
            assert!(late_waits.iter().all(|wait| *wait >= 290 * SECOND), "{late_waits:?}");
        }
        // A single pool is shown to be written in between.
        let failed = cluster.notes(FAILED, "node-2").await;
        assert!((1..=14).contains(&failed.len()), "{names:?}: {failed:?}");
        cluster.clear_faults();
        sleep(310 * SECOND).await;
        cluster.settle(&["node-2"]).await;
        cluster.taint(2, &[]);
        cluster.settle(&[]).await;
    }
}

/// Every write is planned from reads of the load balancer and confirmed by them. This is what happens where these show no admin states
/// (docs/concepts/limits.md).
#[tokio::test(start_paused = true)]
async fn load_balancers_that_show_no_admin_states_are_reported_as_ignoring_writes() {
    let mut cluster = TestCluster::without_leader(8, &one_pool(8)).await;
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-1", "Down")
        .await;
    cluster.configure(&json!({"deviations": ["loadBalancersHideAdminStates"]}));
    cluster.lead(ENFORCE).await;
    for (node, down) in [(2, &["node-2"][..]), (3, &["node-2", "node-3"])] {
        cluster.taint(node, &[DRAINING]);
        // Each write repeats what it is to keep of headgate's, and loses what only others know.
        let took = cluster.until_down(down).await;
        assert!(took < 5 * SECOND, "{took:?}");
        sleep(60 * SECOND).await;
        let notes = cluster.notes(FAILED, &format!("node-{node}")).await;
        assert_contains!(notes[0], "reported Succeeded, but did not apply it");
    }
    let before = cluster.puts().len();
    cluster.taint(2, &[]);
    cluster.taint(3, &[]);
    sleep(1200 * SECOND).await;
    // A read that does not show `Down` is taken for proof that it is gone.
    assert_eq!(cluster.puts().len(), before);
    cluster.settle(&["node-2", "node-3"]).await;
}

/// What was ignored waits no longer than the signal lasts.
#[tokio::test(start_paused = true)]
async fn a_new_signal_does_not_wait_for_the_ignored_write_of_the_last_one() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    let lost = json!({"operation": "succeed", "effect": "lost"});
    cluster.fault("PUT", "/loadBalancers/kubernetes/", None, &lost);
    cluster.taint(2, &[DRAINING]);
    sleep(600 * SECOND).await;
    cluster.clear_faults();
    cluster.taint(2, &[]);
    sleep(40 * SECOND).await;
    cluster.taint(2, &[DRAINING]);
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 5 * SECOND, "{took:?}");
}

/// A pool whose writes are refused is not tried again when another pool's writes turn out to be ignored.
#[tokio::test(start_paused = true)]
async fn a_refused_pool_keeps_its_waits_beside_an_ignored_one() {
    let pools = [("kubernetes", entries(1..=3, false)), ("local", entries(1..=3, false))];
    let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
    let lost = json!({"operation": "succeed", "effect": "lost"});
    cluster.fault("PUT", "/backendAddressPools/kubernetes$", None, &lost);
    let refused = json!({"answer": {"code": "AuthorizationFailed"}});
    cluster.fault("PUT", "/backendAddressPools/local$", None, &refused);
    cluster.taint(2, &[DRAINING]);
    sleep(25 * SECOND).await;
    assert_eq!(cluster.sent("PUT", "/backendAddressPools/local$").len(), 1);
    assert_eq!(cluster.sent("PUT", "/backendAddressPools/kubernetes$").len(), 1);
    // The refusal ends, the other pool's writes are still ignored: the event names them then.
    cluster.clear_faults();
    cluster.fault("PUT", "/backendAddressPools/kubernetes$", None, &lost);
    sleep(310 * SECOND).await;
    assert_eq!(cluster.world.down("kubernetes", "local").len(), 1);
    let notes = cluster.notes(FAILED, "node-2").await;
    assert!(notes.last().unwrap().contains("did not apply it"), "{notes:?}");
}
