//! Kills the leader again and again, each time after another number of changes, so at another await.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::cluster::{Cluster, LEASE};
use crate::observer::Observer;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Between the start of a term and the kill, even where nothing changes.
const LONGEST_TERM: Duration = Duration::from_secs(20);

pub(crate) struct Killer {
    task: JoinHandle<usize>,
    is_over: Rc<Cell<bool>>,
}

impl Killer {
    /// Kills the leader `rounds` times, or until it is stopped.
    pub(crate) fn start(cluster: &Rc<Cluster>, observer: &Rc<Observer>, rounds: usize) -> Self {
        let is_over = Rc::new(Cell::new(false));
        let (cluster, observer, over) = (cluster.clone(), observer.clone(), is_over.clone());
        let task = tokio::task::spawn_local(async move {
            let mut killed = 0;
            for round in 0..rounds {
                killed += usize::from(kill_leader(&cluster, &observer, round, &over).await);
            }
            killed
        });
        Self { task, is_over }
    }

    /// Stops it; how often it killed.
    pub(crate) async fn stop(self) -> usize {
        self.is_over.set(true);
        self.task.await.unwrap()
    }
}

/// Kills the leader once, and starts the process again. Gives whether it did before the end.
async fn kill_leader(cluster: &Cluster, observer: &Observer, round: usize, is_over: &Cell<bool>) -> bool {
    let leader = loop {
        if is_over.get() {
            return false;
        }
        match cluster.leader().await {
            Some(leader) => break leader,
            None => sleep(POLL_INTERVAL).await,
        }
    };
    // 1, 4, 9, 16 and so on changes after the term was seen; one turn of the controllers makes many.
    let wanted = observer.changes() + u64::try_from((round + 1) * (round + 1)).unwrap();
    let deadline = Instant::now() + LONGEST_TERM;
    while observer.changes() < wanted && Instant::now() < deadline {
        if is_over.get() {
            return false;
        }
        sleep(POLL_INTERVAL / 10).await;
    }
    cluster.kill_controller(leader).await;
    // The first successor waits until the Lease has expired. For the others it is released, which saves time.
    if round > 0 {
        let release = json!({"spec": {"holderIdentity": ""}});
        let (code, answer) = cluster.request("PATCH", LEASE, Some(&release)).await;
        assert_eq!(code, 200, "{answer}");
    }
    cluster.start_controller(leader).await;
    true
}
