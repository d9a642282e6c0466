//! The updater of Local Services' pools, in the term of the admin-state controller, whose Nodes, lists and pool writers it
//! shares.
//!
//! Invariant: it lives as long as the work with one cluster target. What is pending at the end is found again from what the
//! next term observes.

use std::sync::Arc;

use headgate_kubernetes::WatchReporter;
use headgate_kubernetes::leader::{ArmLock, Term};
use tokio::sync::watch;

use super::cluster_target::ClusterTarget;
use super::plan::Policy;
use super::settings::AdminStateMode;
use super::target_states::{TargetState, TargetStates};
use super::work::{TaskName, Tasks, WorkContext};
use crate::local_pools::{
    Freshness, MemberSource, Reporter, ServiceFeed, SharedUpdater, Ticks, Updater, UpdaterSettings, apply_nodes,
    watch_services,
};
use crate::pool::Listing;
use crate::service_index::ServiceIndex;
use headgate_core::settings::IntOrPercent;

/// What the updater needs of the work of the term.
pub(super) struct LocalPoolsContext<'a> {
    pub(super) term: &'a Term,
    pub(super) context: &'a WorkContext,
    pub(super) target: &'a ClusterTarget,
    pub(super) policy: Policy,
    pub(super) targets: watch::Receiver<Option<Arc<TargetStates>>>,
    pub(super) listings: watch::Receiver<Arc<Listing>>,
    pub(super) lock: ArmLock,
}

/// A running updater, as the controller needs it.
pub(super) struct LocalPools {
    pub(super) settings: UpdaterSettings,
    pub(super) source: MemberSource,
    pub(super) updater: SharedUpdater,
}

/// Starts the watch of EndpointSlices, for the updater and for the guard of rules, and the updater if it is active.
pub(super) fn start(
    tasks: &mut Tasks,
    context: LocalPoolsContext<'_>,
    index: watch::Sender<Arc<ServiceIndex>>,
) -> Option<LocalPools> {
    let work = context.context;
    let reporter = Reporter::new(
        work.events.clone(),
        work.local_pools_metrics.clone(),
        work.clock.clone(),
    );
    let is_enforcing = context.policy.mode == AdminStateMode::Enforce;
    let settings = is_enforcing.then(|| UpdaterSettings::new(work.local_pools_mode, &context.target.local_pools));
    let settings = settings.flatten();
    let updater = settings.map(|settings| SharedUpdater::new(Updater::new(settings)));
    // The guard counts the Nodes that serve a rule; markers and maintenances ask whether any Service wants a load balancer.
    let is_guarded = work.guard.minimum_in_service != IntOrPercent::Int(0);
    let is_needed = is_guarded || work.marker.is_some() || work.traffic.is_some();
    if updater.is_none() && (!is_needed || context.policy.mode == AdminStateMode::Disabled) {
        return None;
    }
    let services = work.services.read();
    let errors = work.local_pools_metrics.watch_errors();
    let slices =
        WatchReporter::new("endpointslices", errors, work.clock.clone()).with_events(Some(work.events.clone()));
    let freshness = Freshness::new(&services, &slices, work.stale_nodes_timeout);
    let feed = ServiceFeed {
        updater: updater.clone(),
        index,
    };
    let watch = watch_services(work.client.clone(), feed, services, slices, freshness.clone());
    tasks.spawn(TaskName::LocalServices, watch);
    let (Some(settings), Some(updater)) = (settings, updater) else {
        return None;
    };
    tracing::info!(interval = ?settings.interval, "started to update pools of Local Services");
    let due = watch::Sender::new(());
    let source = MemberSource {
        updater: updater.clone(),
        due: due.subscribe(),
        reporter: reporter.clone(),
        operations: context.target.arm.metrics().clone(),
        virtual_network: context.target.local_pools.virtual_network.clone(),
    };
    let (targets, clock) = (context.targets, work.clock.clone());
    let ticks = Ticks {
        updater: updater.clone(),
        interval: settings.interval,
        lock: context.lock,
        term: context.term.clone(),
        listings: context.listings,
        apply_nodes: move |updater: &mut Updater| {
            let targets = targets.borrow().clone().unwrap_or_default();
            if targets.stale_since().is_some() {
                return false;
            }
            let now = clock.now().mono;
            apply_nodes(updater, &targets.nodes, |node| {
                targets.target_state(node, now) == TargetState::Down
            });
            true
        },
        freshness,
        due,
        reporter,
    };
    tasks.spawn(TaskName::LocalPools, ticks.run());
    Some(LocalPools {
        settings,
        source,
        updater,
    })
}
