//! Deviations: each one turns an assumption about Azure false, for `headgate verify` and for tests. They are about single reads and
//! writes of load balancers and pools; lists stay as they are, but for [`Deviation::LoadBalancersHideAdminStates`].

use std::collections::BTreeSet;

use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ErrorResponse;
use super::etag::{self, Etag};
use super::faults::action::{Effect, OperationEnd};
use super::guids::guid_for_name;
use super::id::same_name;
use super::load_balancer::{KIND, POOLS};
use super::pool::ADDRESSES;
use super::resource::{self, ProvisioningState, Resource};

/// One way in which Azure may differ from what the emulator assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Deviation {
    /// A write of a pool is accepted whatever its `If-Match` says.
    IfMatchIgnored,
    /// Pools are `Succeeded` while an operation changes their load balancer.
    PoolsStaySucceeded,
    /// A load balancer is `Succeeded` while an operation changes it.
    LoadBalancersStaySucceeded,
    /// The etag of a pool changes only with the pool.
    PoolsHaveOwnEtags,
    /// A write of a pool during an operation of its load balancer gets 409 `AnotherOperationInProgress`.
    SecondWriteRefused,
    /// What a write changed in its pool's entries is lost when a write of another pool supersedes it.
    SupersededChangesLost,
    /// A load balancer shows the entries of its pools without their admin states; a pool that is read alone has them.
    LoadBalancersHideAdminStates,
}

/// The deviations that are on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deviations(BTreeSet<Deviation>);

impl FromIterator<Deviation> for Deviations {
    fn from_iter<I: IntoIterator<Item = Deviation>>(deviations: I) -> Self {
        Self(deviations.into_iter().collect())
    }
}

impl Deviations {
    /// The deviations with this one.
    pub fn only(deviation: Deviation) -> Self {
        Self(BTreeSet::from([deviation]))
    }

    fn has(&self, deviation: Deviation) -> bool {
        self.0.contains(&deviation)
    }

    /// The etag of a child, which is that of its resource but for [`Deviation::PoolsHaveOwnEtags`].
    pub(super) fn etag(&self, resource: &Resource, kind: &str, child: Option<&Value>) -> Etag {
        let own = child.filter(|_| kind == POOLS && self.has(Deviation::PoolsHaveOwnEtags));
        own.map_or(resource.etag, |pool| Etag(guid_for_name(&pool.to_string())))
    }

    /// Checks the preconditions of a write of a child, and whether it may start now.
    ///
    /// # Errors
    /// 412 or 409.
    pub(super) fn check_write(
        &self,
        resource: &Resource,
        (kind, name): (&str, &str),
        headers: &HeaderMap,
        is_operation_in_progress: bool,
    ) -> Result<(), ErrorResponse> {
        if kind == POOLS && is_operation_in_progress && self.has(Deviation::SecondWriteRefused) {
            let message = "Another operation on this or dependent resource is in progress.";
            return Err(
                ErrorResponse::new(StatusCode::CONFLICT, "AnotherOperationInProgress", message).without_details(),
            );
        }
        if kind == POOLS && self.has(Deviation::IfMatchIgnored) {
            return Ok(());
        }
        let current = self.etag(resource, kind, resource::child(&resource.document, kind, name));
        etag::check(headers, Some(current), &resource.child_id(kind, name))
    }

    /// How the operation of a write of a pool ends, where no fault says so.
    pub(super) fn operation_end(&self) -> Option<(OperationEnd, Effect)> {
        let is_lost = self.has(Deviation::SupersededChangesLost);
        is_lost.then_some((OperationEnd::Succeeded, Effect::LostWhenSuperseded))
    }

    /// Changes the etags that a load balancer, or a child of this kind, shows.
    pub(super) fn show_etags(&self, resource: &Resource, child: Option<&str>, shown: &mut Value) {
        if !self.has(Deviation::PoolsHaveOwnEtags) || !same_name(&resource.id.kind(), KIND) {
            return;
        }
        match child {
            None => pools_mut(shown).for_each(|pool| self.show_etag(resource, pool)),
            Some(POOLS) => self.show_etag(resource, shown),
            Some(_) => {}
        }
    }

    /// Changes the states that a GET of a load balancer, or of a child of this kind, shows; what answers a PUT has the true one.
    pub(super) fn show_states(&self, resource: &Resource, child: Option<&str>, shown: &mut Value) {
        if !same_name(&resource.id.kind(), KIND) {
            return;
        }
        if child.is_none() {
            self.hide_admin_states(resource, shown);
            if self.has(Deviation::LoadBalancersStaySucceeded) {
                show_succeeded(shown);
            }
        }
        if self.has(Deviation::PoolsStaySucceeded) {
            match child {
                None => pools_mut(shown).for_each(show_succeeded),
                Some(POOLS) => show_succeeded(shown),
                Some(_) => {}
            }
        }
    }

    /// Removes the admin states that a load balancer, as a GET or a list shows it, does not have.
    pub(super) fn hide_admin_states(&self, resource: &Resource, shown: &mut Value) {
        if !self.has(Deviation::LoadBalancersHideAdminStates) || !same_name(&resource.id.kind(), KIND) {
            return;
        }
        for pool in pools_mut(shown) {
            let entries = pool.pointer_mut(&format!("/properties/{ADDRESSES}"));
            let entries = entries.and_then(Value::as_array_mut).into_iter().flatten();
            for properties in entries.filter_map(|entry| entry.get_mut("properties")?.as_object_mut()) {
                properties.remove("adminState");
            }
        }
    }

    fn show_etag(&self, resource: &Resource, shown: &mut Value) {
        let stored = resource::name_of(shown).and_then(|name| resource::child(&resource.document, POOLS, name));
        shown["etag"] = self.etag(resource, POOLS, stored).to_string().into();
    }
}

fn show_succeeded(shown: &mut Value) {
    shown["properties"]["provisioningState"] = ProvisioningState::Succeeded.as_str().into();
}

/// The pools in a load balancer as a GET shows it.
fn pools_mut(shown: &mut Value) -> impl Iterator<Item = &mut Value> {
    let pools = shown.pointer_mut(&format!("/properties/{POOLS}"));
    pools.and_then(Value::as_array_mut).into_iter().flatten()
}
