//! Reads what `status` shows: Nodes, ledger and Lease from the API server, load balancers from ARM, concurrently.
//!
//! Without the Nodes there is nothing to show. If another part cannot be read, the report has its error in place of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_controller::admin_state::AdminStateMode;
use headgate_controller::admin_state::{
    ClusterTarget, GuardSettings, Ledger, Policy, TargetStates, read_ledger, read_recorded_once,
};
use headgate_controller::local_pools::UpdaterSettings;
use headgate_controller::pool::{
    ClusterNode, InterfaceCache, ListRequest, Listing, RecordedPools, list_on_request, read_node,
};
use headgate_controller::service_index::ServiceIndex;
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{Effect, KnownSignal, MAINTENANCE_TAINT, NodeReader, Signal, SignalSettings};
use headgate_kubernetes::Decoded;
use headgate_kubernetes::leader::LeaderStatus;
use headgate_kubernetes::leader::LeaseName;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::local_pools::{LocalPoolsSnapshot, list_services, take_local_pools};
use super::nodes;
use crate::api_error::within;
use crate::config::Settings;
use crate::failure::Failure;
use crate::why::{MaintenanceRow, maintenance_rows};

/// Time for reading one small object from the API server.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for all requests to ARM together, throttling included.
const ARM_TIMEOUT: Duration = Duration::from_mins(2);
/// Why Services are not listed where load balancers are not queried.
const NOT_NEEDED: &str = "load balancers are not queried";

/// The load balancers of a snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct AzureSnapshot {
    /// The cluster's load balancers as they were read.
    pub listing: Listing,
    /// Other load balancers that the ledger names.
    pub recorded: Listing,
    /// The machines of the network interfaces in the pools.
    pub interfaces: InterfaceCache,
}

/// The state of the cluster at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSnapshot {
    /// The time of the snapshot.
    pub now: Moment,
    /// The Nodes, and the target state that follows from their signals.
    pub desired: TargetStates,
    /// The leader by its Lease; `None` if there is no Lease.
    pub leader: Result<Option<LeaderStatus>, String>,
    /// The ledger, or why it cannot be read.
    pub ledger: Result<Ledger, String>,
    /// The load balancers, or why they cannot be read.
    pub azure: Result<AzureSnapshot, String>,
    /// What the leader may change, by the given settings.
    pub policy: Policy,
    /// What stays in service, by the given settings.
    pub guard: GuardSettings,
    /// Which Nodes serve the rules of Local Services, or why that is unknown.
    pub services: Result<ServiceIndex, String>,
    /// The pools of Local Services.
    pub local_pools: LocalPoolsSnapshot,
    /// The `NodeMaintenance`s, or why they cannot be listed.
    pub maintenances: Result<Vec<MaintenanceRow>, String>,
}

impl ClusterSnapshot {
    /// Gives these Nodes the signal of a maintenance, as far as it counts by these settings.
    pub(crate) fn begin_maintenance(&mut self, nodes: &BTreeSet<String>, settings: &SignalSettings) {
        let signal = Signal::Taint(MAINTENANCE_TAINT.to_owned());
        for name in nodes {
            let Some(node) = self.desired.nodes.by_name(name) else {
                continue;
            };
            let mut node = ClusterNode::clone(node);
            if settings.counts(KnownSignal::Maintenance, Effect::AdminState) {
                node.signals.insert(signal.clone(), Duration::ZERO);
            }
            if settings.counts(KnownSignal::Maintenance, Effect::Health) {
                node.health_signals.insert(signal.clone());
            }
            self.desired.apply(node, self.now);
        }
    }
}

/// Takes a snapshot. `azure` is the cluster in ARM, or why ARM is not queried; `settings` are the agents', as the command line gives them.
///
/// # Errors
/// When the Nodes cannot be listed.
pub(crate) async fn take_snapshot(
    client: &Client,
    azure: Result<ClusterTarget, String>,
    settings: &Settings,
) -> Result<ClusterSnapshot, Failure> {
    let target = azure.as_ref().ok().cloned();
    let exclude_control_plane = azure.as_ref().is_ok_and(|reached| reached.exclude_control_plane);
    let mut policy = settings.admin_state;
    if azure.as_ref().is_ok_and(|reached| !reached.is_admin_state_enabled) {
        policy.mode = AdminStateMode::Disabled;
    }
    let ledger_and_azure = async {
        let ledger = read_ledger(client.clone()).await;
        let azure = load_balancers(azure, ledger.as_ref().unwrap_or(&Ledger::default())).await;
        (ledger, azure)
    };
    let listed_services = async {
        match &target {
            Some(_) => list_services(client).await,
            None => Err(NOT_NEEDED.to_owned()),
        }
    };
    let (listed, (ledger, azure), lease, maintenances, listed_services) = futures::join!(
        nodes::list(client),
        ledger_and_azure,
        lease(client),
        maintenance_rows(client),
        listed_services
    );
    let now = Clock::System.now();
    let reader = NodeReader {
        rules: settings.signals.admin_state(),
        health_rules: settings.signals.health(),
        ..NodeReader::default()
    };
    let mut desired = TargetStates::new(exclude_control_plane, false);
    for object in listed.map_err(|error| nodes::not_listed(&error))? {
        desired.apply(read_node(object, &reader), now);
    }
    let services = match &listed_services {
        Ok(listed) => Ok(listed.index(now.mono)),
        Err(error) => Err(error.clone()),
    };
    let is_enforcing = policy.mode == AdminStateMode::Enforce;
    let enforced = target.filter(|_| is_enforcing);
    let updater = enforced.and_then(|target| UpdaterSettings::new(settings.local_pools, &target.local_pools));
    let local_pools = match (updater, &azure) {
        (Some(updater), Ok(azure)) => take_local_pools(updater, &azure.listing, &desired, listed_services),
        _ => LocalPoolsSnapshot::default(),
    };
    Ok(ClusterSnapshot {
        services,
        local_pools,
        maintenances,
        now,
        desired,
        leader: lease.map(|lease| lease.map(|lease| LeaderStatus::from_lease(&lease, now.wall))),
        ledger: ledger.map_err(|error| error.to_string()),
        azure,
        policy,
        guard: settings.guard_settings(false),
    })
}

/// Who leads, by the Lease; `None` if there is no Lease.
///
/// # Errors
/// Why the Lease cannot be read.
pub(crate) async fn read_leader(client: &Client) -> Result<Option<LeaderStatus>, String> {
    let lease = lease(client).await?;
    Ok(lease.map(|lease| LeaderStatus::from_lease(&lease, Clock::System.now().wall)))
}

pub(super) async fn lease(client: &Client) -> Result<Option<Lease>, String> {
    let LeaseName { namespace, name } = LeaseName::default();
    let api = Api::<Decoded<Lease>>::namespaced(client.clone(), &namespace);
    let lease = async { api.get_opt(&name).await?.map(Decoded::into_object).transpose() };
    let lease = within(OBJECT_TIMEOUT, lease).await;
    lease.map_err(|error| format!("the Lease {namespace}/{name} cannot be read: {error}"))
}

/// Lists the load balancers once, and reads the others of the ledger; a failure of this list is the result.
pub(crate) async fn load_balancers(
    azure: Result<ClusterTarget, String>,
    ledger: &Ledger,
) -> Result<AzureSnapshot, String> {
    let ClusterTarget { arm, scope, .. } = azure?;
    let deadline = Instant::now() + ARM_TIMEOUT;
    let (_requests, requested) = watch::channel(ListRequest {
        number: 1,
        relaxed_number: 0,
        max_age: None,
    });
    let (listings, mut listed) = watch::channel(Arc::new(Listing::default()));
    let pools = ledger.pool_ids();
    let recorded_pools: RecordedPools = Arc::new(move || pools.clone());
    let answered = async {
        let answer = listed.wait_for(|listing| listing.requested_at.is_some() || listing.last_error.is_some());
        answer.await.map(|listing| Arc::clone(&listing))
    };
    let listing = tokio::select! {
        answer = timeout(ARM_TIMEOUT, answered) => answer,
        () = list_on_request(None, arm.clone(), scope.clone(), recorded_pools, requested, listings) => return Err("listing has ended".to_owned()),
    };
    let Ok(Ok(listing)) = listing else {
        return Err(format!("ARM did not answer within {} s", ARM_TIMEOUT.as_secs()));
    };
    if let Some(error) = &listing.last_error {
        return Err(error.message.clone());
    }
    let recorded = read_recorded_once(&arm, &scope, ledger, &listing).await;
    let interfaces = Listing::look_up_interfaces([&listing, &recorded], &arm, deadline).await;
    Ok(AzureSnapshot {
        listing: Listing::clone(&listing),
        recorded,
        interfaces,
    })
}
