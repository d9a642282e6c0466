//! The state of the cluster as the leader has it, for `/statusz` and for `headgate status`, which reads it at [`PATH`].
//!
//! A report is made when someone asks, outside of the runtime that leads, one at a time, and answers all requests of [`MAX_AGE`].

use std::sync::Arc;
use std::time::Duration;

use headgate_controller::admin_state::WorkView;
use headgate_controller::local_service::QueuedUpdate;
use headgate_kubernetes::leader::LeaderMetrics;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::Process;
use super::cluster_page::Trends;
use crate::status::{LeaderInputs, StatusReport};
use crate::why::maintenance_rows;

/// The path of the report as JSON: the nodes with something to report, and with the query [`ALL_NODES`] all.
pub(crate) const PATH: &str = "/statusz/cluster";
pub(crate) const ALL_NODES: &str = "nodes=all";
/// How long a report is given to others, too.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A report, and what the page shows beside it.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) report: Arc<StatusReport>,
    pub(super) trends: Arc<Trends>,
    made_at: Instant,
}

/// What the report is made from. Clones share it.
#[derive(Clone)]
pub(super) struct ClusterView {
    pub(super) process: Process,
    pub(super) work: watch::Receiver<Option<WorkView>>,
    /// The queue of updates of Local Services' pools; empty unless this instance leads.
    pub(super) queue: watch::Receiver<Vec<QueuedUpdate>>,
    pub(super) leader: LeaderMetrics,
    pub(super) last: Arc<Mutex<Option<Shown>>>,
}

impl ClusterView {
    /// The present report; `None` in a process that does not lead, or leads without load balancers.
    pub(super) async fn shown(&self) -> Option<Shown> {
        let mut last = self.last.lock().await;
        let view = self.work.borrow().clone()?;
        if let Some(shown) = last.as_ref().filter(|shown| shown.made_at.elapsed() < MAX_AGE) {
            return Some(shown.clone());
        }
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
        let mut trends = last
            .as_ref()
            .map(|last| Trends::clone(&last.trends))
            .unwrap_or_default();
        trends.observe(&report);
        let shown = Shown {
            report,
            trends: Arc::new(trends),
            made_at: Instant::now(),
        };
        *last = Some(shown.clone());
        Some(shown)
    }
}
