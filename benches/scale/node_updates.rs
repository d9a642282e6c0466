//! What kubelets write: the status of each Node once in five minutes, and, where kwok does not, the Leases.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::azure_emulator::node_name;
use crate::measuring::figures::float;
use crate::options::Options;

/// Between two status updates of a kubelet without changes (`nodeStatusReportFrequency`).
const STATUS_PERIOD: f64 = 300.0;
/// Between two renewals of its Lease: a quarter of 40 s.
const LEASE_PERIOD: f64 = 10.0;
/// Concurrent requests to the API server.
const AT_ONCE: usize = 32;
/// Each update is of a Node this far from the one before, so that no two follow each other in etcd.
const STRIDE: usize = 7919;

/// Writes what kubelets write, and counts it.
pub(crate) struct NodeUpdates {
    client: Client,
    nodes: usize,
    /// Leases a second.
    leases: f64,
    next: Cell<usize>,
    written: Cell<u64>,
    failed: Cell<u64>,
}

impl NodeUpdates {
    pub(crate) fn new(client: Client, options: &Options) -> Self {
        let all = float(options.nodes as u64);
        Self {
            client,
            nodes: options.nodes,
            leases: if options.has_kwok() { 0.0 } else { all / LEASE_PERIOD },
            next: Cell::new(0),
            written: Cell::new(0),
            failed: Cell::new(0),
        }
    }

    /// The status updates a second of kubelets that have nothing to say.
    pub(crate) fn rate_at_rest(&self) -> f64 {
        float(self.nodes as u64) / STATUS_PERIOD
    }

    /// The updates so far that succeeded, and those that failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.written.get(), self.failed.get())
    }

    /// Writes so many statuses a second, and the Leases, for ever.
    pub(crate) async fn run(&self, per_second: f64) -> Infallible {
        tokio::join!(
            self.at_rate(per_second, async |number| self.count(&self.update_status(number).await)),
            self.at_rate(self.leases, async |number| drop(self.renew(number).await))
        )
        .0
    }

    async fn at_rate(&self, per_second: f64, write: impl AsyncFn(usize)) -> Infallible {
        if per_second <= 0.0 {
            return std::future::pending().await;
        }
        let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
        // What the API server could not take in time is not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let numbers = stream::unfold(ticks, async |mut ticks| {
            ticks.tick().await;
            self.next.set((self.next.get() + STRIDE) % self.nodes);
            Some((self.next.get(), ticks))
        });
        numbers
            .for_each_concurrent(AT_ONCE, async |number| write(number).await)
            .await;
        std::future::pending().await
    }

    /// In an outage, or where a Node is gone for a while, an update fails.
    fn count(&self, updated: &kube::Result<()>) {
        let count = if updated.is_ok() { &self.written } else { &self.failed };
        count.set(count.get() + 1);
    }

    async fn update_status(&self, number: usize) -> kube::Result<()> {
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": Timestamp::now().to_string()});
        let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
        let nodes = Api::<Node>::all(self.client.clone());
        nodes
            .patch_status(&node_name(number), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn renew(&self, number: usize) -> kube::Result<()> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-node-lease");
        let name = node_name(number);
        let now = MicroTime(Timestamp::now());
        let patch = Patch::Merge(json!({"spec": {"renewTime": now}}));
        match leases.patch(&name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let mut lease = Lease::default();
                lease.metadata.name = Some(name.clone());
                let spec = lease.spec.get_or_insert_default();
                (spec.holder_identity, spec.renew_time) = (Some(name), Some(now));
                spec.lease_duration_seconds = Some(40);
                leases.create(&PostParams::default(), &lease).await?;
                Ok(())
            }
            patched => patched.map(drop),
        }
    }
}
