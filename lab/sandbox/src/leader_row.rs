//! The leader among the agents, read from its Lease.

use std::time::Duration;

use headgate_kubernetes::leader::{LeaderStatus, LeaseName};
use jiff::{Timestamp, Unit};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Time between two reads of the Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The leader, as an output line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LeaderRow {
    /// The begin of the leader's term or, without a leader, when this was noticed.
    #[serde(rename = "time")]
    pub(super) since: Timestamp,
    /// The holder of the Lease; `None` if it is not held.
    pub(super) leader: Option<String>,
    /// The number of the term.
    pub(super) term: i32,
}

impl LeaderRow {
    fn from_status(leader: LeaderStatus, now: Timestamp) -> Self {
        let holder = leader.holder.filter(|_| leader.alive);
        let since = leader.since.filter(|_| holder.is_some()).unwrap_or(now);
        Self {
            since: since.round(Unit::Millisecond).unwrap_or(since),
            leader: holder,
            term: leader.term,
        }
    }

    /// Whether leader and term are the same.
    fn is_same_term(&self, other: &Self) -> bool {
        (&self.leader, self.term) == (&other.leader, other.term)
    }
}

/// Polls the Lease until the receiver is dropped; sends each change.
pub(super) async fn follow(client: Client, rows: mpsc::Sender<LeaderRow>) {
    let LeaseName { namespace, name } = LeaseName::default();
    let leases = Api::<Lease>::namespaced(client, &namespace);
    let mut known: Option<LeaderRow> = None;
    loop {
        // Without an answer, the last known leader stays.
        if let Ok(Ok(Some(lease))) = timeout(REQUEST_TIMEOUT, leases.get_opt(&name)).await {
            let now = Timestamp::now();
            let row = LeaderRow::from_status(LeaderStatus::from_lease(&lease, now), now);
            if known.as_ref().is_none_or(|known| !known.is_same_term(&row)) {
                known = Some(row.clone());
                if rows.send(row).await.is_err() {
                    return;
                }
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}
