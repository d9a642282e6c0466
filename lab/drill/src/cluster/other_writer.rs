//! Another program that writes the load balancer's pool, as cloud-controller-manager or another tool that keeps the protocol of
//! the shared Lease: it takes the Lease, reads the pool, writes it back with a change of its own, waits until the operation has
//! ended, and releases the Lease. It knows nothing of admin states, and writes without `If-Match`.

use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::leader::{ArmLock, LeaseName, LockMetrics};
use hyper::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::emulator::EmulatorAddresses;
use super::{ClusterError, POLL_INTERVAL};
use crate::azure;

/// The name in the Lease.
const HOLDER: &str = "drill";
/// How long it waits for the Lease before it counts the interval again.
const LEASE_WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a write may take until its operation has ended.
const WRITE_TIMEOUT: Duration = Duration::from_mins(2);
/// What it changes, which has no effect on connections here.
const FIELD: &str = "drainPeriodInSeconds";

/// Writes until it is dropped, each time so long after the last write has ended.
pub(super) async fn run(client: Client, emulator: EmulatorAddresses, interval: Duration) {
    let lease = LeaseName {
        namespace: "kube-system".to_owned(),
        name: "aks-managed-resource-locker".to_owned(),
    };
    let metrics = LockMetrics::register(MetricTable::unregistered());
    let (lock, follow_lease) = ArmLock::with_lease(client, lease, HOLDER, Clock::System, metrics);
    tokio::select! {
        () = follow_lease => {}
        () = write_by_turns(&lock, &emulator, interval) => {}
    }
}

async fn write_by_turns(lock: &ArmLock, emulator: &EmulatorAddresses, interval: Duration) {
    loop {
        sleep(interval).await;
        let Ok(mut guard) = lock.acquire(HOLDER, Instant::now() + LEASE_WAIT_TIMEOUT).await else {
            continue;
        };
        guard.mark_written();
        // What it cannot write now, it writes next time; the Lease is free meanwhile.
        let _ = timeout(WRITE_TIMEOUT, write(emulator)).await;
        guard.release().await;
    }
}

/// Writes the pool as it was read, but for a field of its own, and waits until that has ended.
async fn write(emulator: &EmulatorAddresses) -> Result<(), ClusterError> {
    let pool = azure::pool_id();
    let mut document = emulator.arm(Method::GET, &pool, None).await?;
    let value = &mut document["properties"][FIELD];
    *value = if *value == 15 { json!(30) } else { json!(15) };
    emulator.arm(Method::PUT, &pool, Some(&document)).await?;
    while !is_succeeded(&emulator.arm(Method::GET, &pool, None).await?) {
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

fn is_succeeded(document: &Value) -> bool {
    document["properties"]["provisioningState"] == "Succeeded"
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::super::emulator::tests::emulator;
    use super::*;
    use crate::azure::PoolMembers;

    #[tokio::test]
    async fn another_writer_and_a_deleted_machine_change_the_pool_and_keep_admin_states() {
        for members in [PoolMembers::Ip, PoolMembers::Nic] {
            let directory = tempfile::tempdir().unwrap();
            let mut tasks = JoinSet::new();
            let emulator = emulator(members, directory.path(), &mut tasks).await;
            let pool = azure::pool_id();
            let mut down = emulator.arm(Method::GET, &pool, None).await.unwrap();
            down["properties"]["loadBalancerBackendAddresses"][1]["properties"]["adminState"] = json!("Down");
            emulator.arm(Method::PUT, &pool, Some(&down)).await.unwrap();
            let shown = async || {
                let pool = emulator.arm(Method::GET, &pool, None).await.unwrap();
                let entries = pool["properties"]["loadBalancerBackendAddresses"]
                    .as_array()
                    .unwrap()
                    .clone();
                let states = entries.iter().map(|entry| entry["properties"]["adminState"] == "Down");
                (pool["properties"][FIELD].clone(), states.collect::<Vec<_>>())
            };
            for expected in [15, 30, 15] {
                write(&emulator).await.unwrap();
                assert_eq!(
                    shown().await,
                    (json!(expected), vec![false, true, false]),
                    "{members:?}"
                );
            }
            if members == PoolMembers::Nic {
                emulator.delete_machine(1).await.unwrap();
                while shown().await.1.len() > 2 {
                    sleep(POLL_INTERVAL).await;
                }
                emulator.create_machine(1).await.unwrap();
                assert_eq!(
                    shown().await.1,
                    [false, false, false],
                    "it comes back without its admin state"
                );
            }
            let refused = emulator.arm(Method::GET, "/subscriptions/none", None).await;
            assert!(
                matches!(refused, Err(ClusterError::EmulatorRequest { .. })),
                "{refused:?}"
            );
        }
    }
}
