//! The Lease around writes to ARM, in the hands of another process: it locks as cloud-controller-manager's `azure_lock.go` does.

use std::time::Duration;

use headgate_core::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};

const NAMESPACE: &str = "kube-system";
const PREVIOUS_HOLDER_ANNOTATION: &str = "aks-managed-resource-locker-previous-holder";
/// The name of the shared Lease in a cluster.
pub const SHARED_LEASE: &str = "aks-managed-resource-locker";
/// The name under which cloud-controller-manager holds it.
pub const CCM: &str = "cloud-controller-manager";

/// Another process, and an operator.
#[derive(Clone, Debug)]
pub struct OtherProcess {
    leases: Api<Lease>,
    name: String,
    clock: Clock,
}

impl OtherProcess {
    /// One that locks the Lease of this name in `kube-system`.
    pub fn new(client: Client, name: &str, clock: Clock) -> Self {
        Self {
            leases: Api::namespaced(client, NAMESPACE),
            name: name.to_owned(),
            clock,
        }
    }

    /// The Lease, if it exists.
    pub async fn lease(&self) -> Option<Lease> {
        self.leases.get_opt(&self.name).await.unwrap()
    }

    /// The holder; empty if the Lease is released.
    pub async fn holder(&self) -> String {
        let spec = self.lease().await.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    /// The previous holder in the annotation.
    pub async fn previous_holder(&self) -> Option<String> {
        self.lease()
            .await?
            .metadata
            .annotations?
            .remove(PREVIOUS_HOLDER_ANNOTATION)
    }

    /// Deletes the Lease.
    pub async fn delete(&self) {
        self.leases.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    /// Creates the Lease with a holder since so long ago; an empty holder means released.
    pub async fn create(&self, holder: &str, ago: Duration) {
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
    ///
    /// # Errors
    /// If the Lease has another holder or a request fails.
    pub async fn lock(&self, holder: &str) -> Result<bool, String> {
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
    ///
    /// # Errors
    /// If a request fails.
    pub async fn unlock(&self, holder: &str) -> kube::Result<()> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
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
        released.map(drop)
    }
}
