//! Reads what `status` shows: Nodes, ledger and Lease from the API server, load balancers from ARM, concurrently.
//!
//! Without the Nodes there is nothing to show. If another part cannot be read, the report has its error in place of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_clock::{Clock, Moment};
use headgate_controller::admin_state::AdminStateMode;
use headgate_controller::admin_state::{Book, Desired, Policy, Reached, read_ledger};
use headgate_controller::pool::{Interfaces, Listing, Wanted, follow_listing};
use headgate_leader::LeaderStatus;
use headgate_leader::LeaseName;
use headgate_node::{Signal, detect_signals};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::nodes;
use crate::config::Settings;

/// How long the API server may take for one small object.
const ONE_OBJECT: Duration = Duration::from_secs(10);
/// How long all of ARM may take, throttling included.
const ALL_OF_ARM: Duration = Duration::from_mins(2);

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Nodes cannot be listed.
    #[error("the Nodes cannot be listed: {0}")]
    Nodes(String),
    /// There is no such Node.
    #[error("there is no Node {0:?}; `kubectl get nodes` lists them")]
    NoSuchNode(String),
}

/// How to look.
pub struct SnapshotRequest<'a> {
    /// The API server.
    pub client: &'a Client,
    /// ARM, or why it is not asked.
    pub azure: Result<Reached, String>,
    /// The agents' settings.
    pub settings: &'a Settings,
    /// Its time.
    pub clock: Clock,
}

/// The load balancers.
#[derive(Clone, Debug, Default)]
pub struct AzureSnapshot {
    /// The cluster's, as they were read.
    pub listing: Listing,
    /// Whose the interfaces in their pools are.
    pub interfaces: Interfaces,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct ClusterSnapshot {
    /// When.
    pub now: Moment,
    /// What Nodes wish.
    pub desired: Desired,
    /// The signals that `/healthz` heeds, by the Node's name, where there are any.
    pub health: BTreeMap<String, BTreeSet<Signal>>,
    /// Who leads; nothing where nobody ever did.
    pub leader: Result<Option<LeaderStatus>, String>,
    /// What is ours.
    pub ledger: Result<Book, String>,
    /// What Azure has.
    pub azure: Result<AzureSnapshot, String>,
    /// How far the leader goes, by the settings that were given.
    pub policy: Policy,
    /// Where agents serve `/healthz`, by the same.
    pub health_port: u16,
}

/// Looks.
///
/// # Errors
/// When the Nodes cannot be had.
pub async fn take_snapshot(looking: SnapshotRequest<'_>) -> Result<ClusterSnapshot, StatusError> {
    let SnapshotRequest {
        client,
        azure,
        settings,
        clock,
    } = looking;
    let exclude_control_plane = azure.as_ref().is_ok_and(|reached| reached.exclude_control_plane);
    let mut policy = Policy {
        mode: settings.admin_state.mode,
        foreign_down: settings.admin_state.foreign_down,
    };
    if azure.as_ref().is_ok_and(|reached| !reached.enabled) {
        policy.mode = AdminStateMode::Off;
    }
    let (listed, ledger, lease, azure) = futures::join!(
        nodes::list(client),
        read_ledger(client.clone()),
        lease(client),
        load_balancers(azure)
    );
    let now = clock.now();
    let (mut desired, mut health) = (Desired::default(), BTreeMap::new());
    for node in listed.map_err(StatusError::Nodes)? {
        let found = detect_signals(&node.slim.facts(), &settings.signals.health);
        if let Some(node) = node.in_pools.node(exclude_control_plane) {
            if !found.is_empty() {
                health.insert(node.name.clone(), found);
            }
            desired.apply(node, &settings.signals.admin_state, now);
        }
    }
    Ok(ClusterSnapshot {
        now,
        desired,
        health,
        leader: lease.map(|lease| lease.map(|lease| LeaderStatus::from_lease(&lease, now.wall))),
        ledger: ledger.map_err(|error| error.to_string()),
        azure,
        policy,
        health_port: settings.healthz_bind_address.port(),
    })
}

async fn lease(client: &Client) -> Result<Option<Lease>, String> {
    let LeaseName { namespace, name } = LeaseName::default();
    let api = Api::<Lease>::namespaced(client.clone(), &namespace);
    let answer = timeout(ONE_OBJECT, api.get_opt(&name)).await;
    answer
        .map_err(|_| format!("no answer within {} s", ONE_OBJECT.as_secs()))?
        .map_err(|error| {
            format!(
                "the Lease {namespace}/{name} cannot be read: {}",
                headgate_telemetry::error_chain(&error)
            )
        })
}

/// Lists them once; what cannot be listed at the first go is an answer.
async fn load_balancers(azure: Result<Reached, String>) -> Result<AzureSnapshot, String> {
    let Reached { arm, scope, .. } = azure?;
    let deadline = Instant::now() + ALL_OF_ARM;
    let (_wanted, wishes) = watch::channel(Wanted { count: 1, every: None });
    let (listings, mut listed) = watch::channel(Arc::new(Listing::default()));
    let answered = async {
        let answer = listed.wait_for(|listing| listing.asked_at.is_some() || listing.trouble.is_some());
        answer.await.map(|listing| Arc::clone(&listing))
    };
    let listing = tokio::select! {
        answer = timeout(ALL_OF_ARM, answered) => answer,
        () = follow_listing(arm.clone(), scope, wishes, listings) => return Err("listing has ended".to_owned()),
    };
    let Ok(Ok(listing)) = listing else {
        return Err(format!("ARM did not answer within {} s", ALL_OF_ARM.as_secs()));
    };
    match &listing.trouble {
        Some(trouble) => Err(trouble.text.clone()),
        None => Ok(AzureSnapshot {
            interfaces: listing.interfaces(&arm, deadline).await,
            listing: Listing::clone(&listing),
        }),
    }
}
