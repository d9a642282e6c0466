//! What the edits of a batch were planned from: the last read, and what is known of interfaces.

use headgate_azure::PoolId;

use super::super::interface_cache::InterfaceCache;
use super::super::view::{LoadBalancerView, PoolView};
use super::State;

/// What the edits of a batch were planned from.
#[derive(Clone, Copy)]
pub(super) struct PlannedFrom<'a> {
    view: Option<&'a LoadBalancerView>,
    pub(super) interfaces: &'a InterfaceCache,
}

impl<'a> PlannedFrom<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        Self {
            view: state.observation.as_ref().map(|observation| &*observation.view),
            interfaces: &state.interfaces,
        }
    }

    /// Whether ARM works on the load balancer.
    pub(super) fn is_busy(self) -> bool {
        self.view.is_some_and(|view| view.is_busy)
    }

    /// A pool as it was read.
    pub(super) fn pool(self, id: &PoolId) -> Option<&'a PoolView> {
        let pool = self.view?.pools.iter().find(|pool| pool.id == *id)?;
        Some(pool.as_ref())
    }
}
