//! Who of the agents leads, as the Lease says.

use std::time::Duration;

use headgate_leader::LeaderStatus;
use headgate_leader::LeaseName;
use jiff::{Timestamp, Unit};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who leads, for whoever reads lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Lead {
    /// Since when.
    #[serde(rename = "time")]
    pub(super) since: Timestamp,
    /// None: nobody.
    pub(super) leader: Option<String>,
    /// The number of the term.
    pub(super) term: i32,
}

impl Lead {
    fn of(leader: LeaderStatus, now: Timestamp) -> Self {
        let holder = leader.holder.filter(|_| leader.alive);
        let since = leader.since.filter(|_| holder.is_some()).unwrap_or(now);
        Self {
            since: since.round(Unit::Millisecond).unwrap_or(since),
            leader: holder,
            term: leader.term,
        }
    }

    /// Whether the two say the same but for the time.
    fn is_like(&self, other: &Self) -> bool {
        (&self.leader, self.term) == (&other.leader, other.term)
    }
}

/// Looks again and again, until nobody wants to see any more; tells what is new.
pub(super) async fn follow(client: Client, seen: mpsc::Sender<Lead>) {
    let LeaseName { namespace, name } = LeaseName::default();
    let leases = Api::<Lease>::namespaced(client, &namespace);
    let mut known: Option<Lead> = None;
    loop {
        // What was seen stays where there is no answer.
        if let Ok(Ok(Some(lease))) = timeout(PATIENCE, leases.get_opt(&name)).await {
            let now = Timestamp::now();
            let lead = Lead::of(LeaderStatus::from_lease(&lease, now), now);
            if known.as_ref().is_none_or(|known| !known.is_like(&lead)) {
                known = Some(lead.clone());
                if seen.send(lead).await.is_err() {
                    return;
                }
            }
        }
        sleep(INTERVAL).await;
    }
}
