//! A Lease, lockers of it, and somebody who locks as cloud-controller-manager's `azure_lock.go` does.

use std::ops::Deref;
use std::time::Duration;

use headgate_clock::Clock;
use headgate_leader::{ArmLock, LeaseName, LockError, LockGuard, LockMetrics};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const PREVIOUS: &str = "aks-managed-resource-locker-previous-holder";
pub(crate) const CCM: &str = "cloud-controller-manager";

/// A locker of this process: the lock, and the task that keeps it.
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
        let (lock, keep) = ArmLock::with_lease(client, name, holder, clock, metrics);
        let task = tokio::spawn(keep);
        Self { lock, task, registry }
    }

    /// Enters within so long.
    pub(crate) async fn enters(&self, within: Duration) -> Result<LockGuard, LockError> {
        self.lock.acquire("test", Instant::now() + within).await
    }

    /// A handle for other tasks.
    pub(crate) fn handle(&self) -> ArmLock {
        self.lock.clone()
    }

    /// The process dies, and its task with it; what it holds stays.
    pub(crate) async fn crash(self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// All handles are dropped; the task must end by itself.
    pub(crate) async fn ends(mut self) -> Duration {
        let began = Instant::now();
        let task = std::mem::replace(&mut self.task, tokio::spawn(async {}));
        drop(self);
        timeout(10 * SECOND, task).await.expect("the task ends").unwrap();
        began.elapsed()
    }
}

/// What others do with the Lease.
#[derive(Clone)]
pub(crate) struct Others {
    leases: Api<Lease>,
    name: String,
    clock: Clock,
}

impl Others {
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

    /// Who holds it; empty if nobody.
    pub(crate) async fn holder(&self) -> String {
        let spec = self.lease().await.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    /// Who held it before, as the annotation says.
    pub(crate) async fn previous(&self) -> Option<String> {
        self.lease().await?.metadata.annotations?.remove(PREVIOUS)
    }

    pub(crate) async fn delete(&self) {
        self.leases.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    /// Changes it as people do with kubectl.
    pub(crate) async fn merge(&self, patch: serde_json::Value) {
        let params = PatchParams::default();
        self.leases
            .patch(&self.name, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Makes it as it is held by `holder` since so long, or by nobody.
    pub(crate) async fn make(&self, holder: &str, ago: Duration) {
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

    /// `Lock` of `azure_lock.go`: one attempt; whether the holder before was another, so that caches are dropped.
    pub(crate) async fn lock(&self, holder: &str) -> Result<bool, String> {
        let params = PostParams::default();
        let told = |error: kube::Error| error.to_string();
        if self.leases.get_opt(&self.name).await.map_err(told)?.is_none() {
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.name.clone());
            lease.spec.get_or_insert_default().lease_duration_seconds = Some(900);
            self.leases.create(&params, &lease).await.map_err(told)?;
        }
        let mut lease = self.leases.get(&self.name).await.map_err(told)?;
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
        self.leases.replace(&self.name, &params, &lease).await.map_err(told)?;
        let annotations = lease.metadata.annotations;
        Ok(annotations.is_some_and(|all| all.get(PREVIOUS).is_none_or(|previous| previous != holder)))
    }

    /// `Unlock` of `azure_lock.go`.
    pub(crate) async fn unlock(&self, holder: &str) -> Result<(), String> {
        let told = |error: kube::Error| error.to_string();
        let Some(mut lease) = self.leases.get_opt(&self.name).await.map_err(told)? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(holder) || self.has_expired(spec) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(PREVIOUS.to_owned(), holder.to_owned());
        let released = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        released.map(drop).map_err(told)
    }
}

/// Waits until somebody has let go, or something else is as it should be.
pub(crate) async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(10 * SECOND, wait)
        .await
        .unwrap_or_else(|_| panic!("not soon: {what}"));
}
