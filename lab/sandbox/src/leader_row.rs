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
/// Time for the first election. Candidates that find no Lease take it at once.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two reads until then.
const ELECTION_POLL_INTERVAL: Duration = Duration::from_millis(200);
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

/// The node on which the first leader runs; `None` without one in time.
pub(super) async fn node(client: &Client) -> Option<String> {
    let elected = async {
        loop {
            let now = Timestamp::now();
            let holder = read(client)
                .await
                .and_then(|lease| LeaderRow::from_status(LeaderStatus::from_lease(&lease, now), now).leader);
            // An identity is the node's name and a suffix.
            if let Some((node, _)) = holder.as_deref().and_then(|holder| holder.rsplit_once('_')) {
                return node.to_owned();
            }
            sleep(ELECTION_POLL_INTERVAL).await;
        }
    };
    timeout(ELECTION_TIMEOUT, elected).await.ok()
}

/// The Lease, if there is one and the API server answers.
async fn read(client: &Client) -> Option<Lease> {
    let LeaseName { namespace, name } = LeaseName::default();
    let leases = Api::<Lease>::namespaced(client.clone(), &namespace);
    timeout(REQUEST_TIMEOUT, leases.get_opt(&name)).await.ok()?.ok()?
}

/// Polls the Lease until the receiver is dropped; sends each change.
pub(super) async fn follow(client: Client, rows: mpsc::Sender<LeaderRow>) {
    let mut known: Option<LeaderRow> = None;
    loop {
        // Without an answer, the last known leader stays.
        if let Some(lease) = read(&client).await {
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
