//! A process with the ARM lock, and another process that locks as cloud-controller-manager's `azure_lock.go` does.

use std::ops::Deref;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{ArmLock, LeaseName, LockError, LockGuard, LockMetrics};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAMESPACE: &str = "kube-system";
const PREVIOUS_HOLDER_ANNOTATION: &str = "aks-managed-resource-locker-previous-holder";
pub(crate) const CCM: &str = "cloud-controller-manager";

/// A process with the lock and its task.
pub(crate) struct Locker {
    lock: ArmLock,
    task: JoinHandle<()>,
    pub(crate) registry: Registry,
}

impl Deref for Locker {
    type Target = ArmLock;

    fn deref(&self) -> &ArmLock {
        &self.lock
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Locker {
    pub(crate) fn new(client: Client, lease: &str, holder: &str, clock: Clock) -> Self {
        let mut registry = Registry::default();
        let metrics = LockMetrics::register(&mut registry);
        let name = LeaseName {
            namespace: NAMESPACE.to_owned(),
            name: lease.to_owned(),
        };
        let (lock, run) = ArmLock::with_lease(client, name, holder, clock, metrics);
        let task = tokio::spawn(run);
        Self { lock, task, registry }
    }

    /// Acquires the lock within so long.
    pub(crate) async fn acquire_within(&self, time: Duration) -> Result<LockGuard, LockError> {
        self.lock.acquire("test", Instant::now() + time).await
    }

    /// The lock, for other tasks.
    pub(crate) fn handle(&self) -> ArmLock {
        self.lock.clone()
    }

    /// Ends the process and its task. The Lease stays as it is.
    pub(crate) async fn crash(self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// Drops the lock, waits for the end of the task, and returns how long that took.
    pub(crate) async fn end(mut self) -> Duration {
        let began = Instant::now();
        let task = std::mem::replace(&mut self.task, tokio::spawn(async {}));
        drop(self);
        timeout(10 * SECOND, task).await.expect("the task ends").unwrap();
        began.elapsed()
    }
}

/// Another process, and an operator.
#[derive(Clone)]
pub(crate) struct OtherProcess {
    leases: Api<Lease>,
    name: String,
    clock: Clock,
}

impl OtherProcess {
    pub(crate) fn new(client: Client, name: &str, clock: Clock) -> Self {
        Self {
            leases: Api::namespaced(client, NAMESPACE),
            name: name.to_owned(),
            clock,
        }
    }

    pub(crate) async fn lease(&self) -> Option<Lease> {
        self.leases.get_opt(&self.name).await.unwrap()
    }

    /// The holder; empty if the Lease is released.
    pub(crate) async fn holder(&self) -> String {
        let spec = self.lease().await.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    /// The previous holder in the annotation.
    pub(crate) async fn previous_holder(&self) -> Option<String> {
        self.lease()
            .await?
            .metadata
            .annotations?
            .remove(PREVIOUS_HOLDER_ANNOTATION)
    }

    pub(crate) async fn delete(&self) {
        self.leases.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    /// Creates the Lease with a holder since so long ago; an empty holder means released.
    pub(crate) async fn create(&self, holder: &str, ago: Duration) {
        let since = self.clock.now().wall - SignedDuration::try_from(ago).unwrap();
        let mut lease = Lease::default();
        lease.metadata.name = Some(self.name.clone());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            acquire_time: Some(MicroTime(since)),
            renew_time: Some(MicroTime(since)),
            lease_duration_seconds: Some(900),
            ..LeaseSpec::default()
        });
        self.leases.create(&PostParams::default(), &lease).await.unwrap();
    }

    fn has_expired(&self, spec: &LeaseSpec) -> bool {
        let lasts = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or_default().into());
        let renewed = spec.renew_time.as_ref().map_or(Timestamp::MIN, |time| time.0 + lasts);
        spec.holder_identity.as_deref().unwrap_or_default().is_empty() || self.clock.now().wall > renewed
    }

    /// `Lock` of `azure_lock.go`: one attempt. Returns whether the previous holder was another, so that caches are dropped.
    pub(crate) async fn lock(&self, holder: &str) -> Result<bool, String> {
        let params = PostParams::default();
        let text = |error: kube::Error| error.to_string();
        if self.leases.get_opt(&self.name).await.map_err(text)?.is_none() {
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.name.clone());
            lease.spec.get_or_insert_default().lease_duration_seconds = Some(900);
            self.leases.create(&params, &lease).await.map_err(text)?;
        }
        let mut lease = self.leases.get(&self.name).await.map_err(text)?;
        let spec = lease.spec.get_or_insert_default();
        let is_ours = spec
            .holder_identity
            .as_deref()
            .is_some_and(|it| it.eq_ignore_ascii_case(holder));
        if !self.has_expired(spec) && !is_ours {
            return Err("lease has not expired yet".to_owned());
        }
        let now = Some(MicroTime(self.clock.now().wall));
        spec.holder_identity = Some(holder.to_owned());
        spec.acquire_time.clone_from(&now);
        spec.renew_time = now;
        self.leases.replace(&self.name, &params, &lease).await.map_err(text)?;
        let annotations = lease.metadata.annotations;
        Ok(annotations.is_some_and(|all| {
            all.get(PREVIOUS_HOLDER_ANNOTATION)
                .is_none_or(|previous| previous != holder)
        }))
    }

    /// Releases the Lease as `Unlock` of `azure_lock.go` does.
    pub(crate) async fn unlock(&self, holder: &str) -> Result<(), String> {
        let text = |error: kube::Error| error.to_string();
        let Some(mut lease) = self.leases.get_opt(&self.name).await.map_err(text)? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(holder) || self.has_expired(spec) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(PREVIOUS_HOLDER_ANNOTATION.to_owned(), holder.to_owned());
        let released = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        released.map(drop).map_err(text)
    }
}

/// Waits up to 10 s for a condition.
pub(crate) async fn soon(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(10 * SECOND, wait)
        .await
        .unwrap_or_else(|_| panic!("not soon: {what}"));
}
