//! The state of the cluster as the leader has it, for `/statusz` and for `headgate status`, which reads it at [`PATH`].
//!
//! A report is made when someone asks, outside of the runtime that leads, one at a time and at most once in [`MAX_AGE`]. It answers all
//! who asked before it was begun, and the page as long as it is not older.

use std::sync::Arc;
use std::time::Duration;

use headgate_controller::admin_state::WorkView;
use headgate_controller::local_service::QueuedUpdate;
use headgate_kubernetes::leader::LeaderMetrics;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

use super::Process;
use super::cluster_page::Trends;
use crate::status::{LeaderInputs, StatusReport};
use crate::why::maintenance_rows;

/// The path of the report as JSON: the nodes with something to report, and with the query [`ALL_NODES`] all.
pub(crate) const PATH: &str = "/statusz/cluster";
pub(crate) const ALL_NODES: &str = "nodes=all";
/// How long a report is shown on the page, and none is made after it: one costs a list at the API server.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A report, and what the page shows beside it.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) report: Arc<StatusReport>,
    pub(super) trends: Arc<Trends>,
}

/// The last report.
pub(super) struct Latest<T>(Mutex<Option<Made<T>>>);

struct Made<T> {
    value: T,
    begun_at: Instant,
    done_at: Instant,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Latest<T> {
    /// The last one if it was begun after this call, or is recent and needs not be `new`; otherwise what `make` makes of it.
    async fn get<F: Future<Output = Option<T>>>(&self, new: bool, make: impl FnOnce(Option<T>) -> F) -> Option<T> {
        let asked_at = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(known) = last.as_ref() {
            let is_recent = known.done_at.elapsed() < MAX_AGE;
            if known.begun_at > asked_at || is_recent && !new {
                return Some(known.value.clone());
            }
            sleep_until(known.done_at + MAX_AGE).await;
        }
        let begun_at = Instant::now();
        let value = make(last.as_ref().map(|known| known.value.clone())).await?;
        let known = Made {
            value: value.clone(),
            begun_at,
            done_at: Instant::now(),
        };
        *last = Some(known);
        Some(value)
    }
}

/// What the report is made from. Clones share it.
#[derive(Clone)]
pub(super) struct ClusterView {
    pub(super) process: Process,
    pub(super) work: watch::Receiver<Option<WorkView>>,
    /// The queue of updates of Local Services' pools; empty unless this instance leads.
    pub(super) queue: watch::Receiver<Vec<QueuedUpdate>>,
    pub(super) leader: LeaderMetrics,
    pub(super) last: Arc<Latest<Shown>>,
}

impl ClusterView {
    /// The present report, made after this call if it is to be `new`; `None` in a process that does not lead, or leads without load
    /// balancers.
    pub(super) async fn shown(&self, new: bool) -> Option<Shown> {
        self.work.borrow().as_ref()?;
        self.last.get(new, |last| self.make(last)).await
    }

    async fn make(&self, last: Option<Shown>) -> Option<Shown> {
        let view = self.work.borrow().clone()?;
        let maintenances = if self.process.settings.maintenance.enabled {
            maintenance_rows(&self.process.client).await
        } else {
            Ok(Vec::new())
        };
        let term = self.leader.current_term();
        let (queue, node_name) = (self.queue.borrow().clone(), self.process.node_name.clone());
        let (settings, now) = (Arc::clone(&self.process.settings), self.process.clock.now());
        let make = move || {
            let inputs = LeaderInputs {
                work: view.take(now)?,
                settings: &settings,
                node_name,
                term,
                maintenances,
                queue,
                now,
            };
            Some(StatusReport::of_leader(inputs))
        };
        let report = Arc::new(tokio::task::spawn_blocking(make).await.ok()??);
        let mut trends = last.map(|last| Trends::clone(&last.trends)).unwrap_or_default();
        trends.observe(&report);
        Some(Shown {
            report,
            trends: Arc::new(trends),
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_must_be_new_was_begun_after_it_was_asked_for() {
        let latest = Latest::default();
        let get = async |new| {
            let make = async |last: Option<u32>| Some(last.unwrap_or_default() + 1);
            latest.get(new, make).await.unwrap()
        };
        let start = Instant::now();
        assert_eq!(get(true).await, 1);
        sleep(MAX_AGE / 2).await;
        assert_eq!(get(false).await, 1, "the page");
        assert_eq!(get(true).await, 2);
        assert_eq!(start.elapsed(), MAX_AGE, "one in this time");
        assert_eq!(
            tokio::join!(get(true), get(true), get(false)),
            (3, 3, 3),
            "all had asked before it was begun"
        );
        assert_eq!(get(false).await, 3);
        sleep(MAX_AGE).await;
        assert_eq!(get(false).await, 4);
        assert_eq!(start.elapsed(), MAX_AGE * 3);
    }
}
