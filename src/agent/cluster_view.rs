//! The state of the cluster as the leader has it, for `/statusz` and for `headgate status`, which reads it at [`PATH`]: `null` from a leader
//! without load balancers.
//!
//! A report is made when someone asks, outside of the runtime that leads, one at a time and at most once in [`MAX_AGE`]. It answers all
//! who asked before it was begun, and the page as long as it is not older.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_controller::admin_state::WorkView;
use headgate_controller::local_pools::QueuedUpdate;
use headgate_kubernetes::leader::LeaderMetrics;
use kube::Client;
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::Process;
use super::cluster_page::Trends;
use crate::api_error::RequestError;
use crate::status::{LeaderInputs, StatusReport};
use crate::why::{MaintenanceRow, maintenance_rows};

/// The path of the report as JSON: the nodes with something to report, and with the query [`ALL_NODES`] all.
pub(crate) const PATH: &str = "/statusz/cluster";
pub(crate) const ALL_NODES: &str = "nodes=all";
/// The most reports in memory as JSON, for those who read them slowly: one of a large cluster has megabytes.
pub(super) const MAX_TEXTS: usize = 8;
/// How long a report is shown on the page, and none is made after it: one costs a list at the API server.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Time to list the maintenances. Who asks may wait for two reports and [`MAX_AGE`], and the operations port closes after 10 s.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// A report, and what the page shows beside it.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) report: Arc<StatusReport>,
    pub(super) trends: Arc<Trends>,
    texts: Arc<Texts>,
}

/// A report as JSON, with all nodes and with the notable ones, if someone has asked for it: one text for all who read it.
struct Texts {
    room: Arc<Semaphore>,
    all: OnceCell<Bytes>,
    notable: OnceCell<Bytes>,
}

/// A text that takes room until its last reader has it.
struct Text {
    json: Box<[u8]>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl Shown {
    fn new(report: StatusReport, mut trends: Trends, room: Arc<Semaphore>) -> Self {
        trends.observe(&report);
        Self {
            report: Arc::new(report),
            trends: Arc::new(trends),
            texts: Arc::new(Texts {
                room,
                all: OnceCell::new(),
                notable: OnceCell::new(),
            }),
        }
    }

    /// The report as JSON, with all nodes or the notable ones.
    ///
    /// # Errors
    /// While [`MAX_TEXTS`] others are being read.
    pub(super) async fn json(&self, all: bool) -> Result<Bytes, String> {
        let Texts {
            room,
            all: text,
            notable,
        } = &*self.texts;
        if all {
            return text.get_or_try_init(async || encode(&self.report, room)).await.cloned();
        }
        let of_notable = async || {
            let mut report = StatusReport::clone(&self.report);
            report.retain_notable();
            encode(&report, room)
        };
        notable.get_or_try_init(of_notable).await.cloned()
    }
}

fn encode(report: &StatusReport, room: &Arc<Semaphore>) -> Result<Bytes, String> {
    let room = Arc::clone(room).try_acquire_owned();
    let room = room.map_err(|_| "too many earlier reports are still being read".to_owned())?;
    let json = serde_json::to_vec(report).map_err(|error| error.to_string())?;
    Ok(Bytes::from_owner(Text {
        json: json.into_boxed_slice(),
        _room: room,
    }))
}

/// The last report. Clones share it.
#[derive(Clone)]
pub(super) struct Latest<T>(Arc<Mutex<Option<Made<T>>>>);

struct Made<T> {
    value: T,
    begun_at: Instant,
    done_at: Instant,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Latest<T> {
    /// The last one if it was begun after this call, or is recent and needs not be `new`; otherwise what `make` makes of it, also where
    /// this call is given up meanwhile.
    async fn get<F>(&self, new: bool, make: impl FnOnce(Option<T>) -> F + Send + 'static) -> Option<T>
    where
        F: Future<Output = Option<T>> + Send,
    {
        let asked_at = Instant::now();
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some(known) = last.as_ref() {
            let is_recent = known.done_at.elapsed() < MAX_AGE;
            if known.begun_at > asked_at || is_recent && !new {
                return Some(known.value.clone());
            }
        }
        let report = tokio::spawn(async move {
            if let Some(known) = last.as_ref() {
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
        });
        report.await.ok()?
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
    pub(super) last: Latest<Shown>,
    /// For [`MAX_TEXTS`].
    pub(super) room: Arc<Semaphore>,
}

impl ClusterView {
    /// The present report, made after this call if it is to be `new`; `None` in a process that does not lead, or leads without load
    /// balancers.
    pub(super) async fn shown(&self, new: bool) -> Option<Shown> {
        self.work.borrow().as_ref()?;
        let view = self.clone();
        self.last.get(new, async move |last| view.make(last).await).await
    }

    /// Whether this process leads, and only for maintenances.
    pub(super) fn leads_without_load_balancers(&self) -> bool {
        self.process.settings.leads_maintenances_alone() && self.leader.current_term().is_some()
    }

    async fn make(&self, last: Option<Shown>) -> Option<Shown> {
        let view = self.work.borrow().clone()?;
        let maintenances = if self.process.settings.maintenance.enabled {
            maintenances(&self.process.client).await
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
        let report = tokio::task::spawn_blocking(make).await.ok()??;
        let trends = last.map(|last| Trends::clone(&last.trends)).unwrap_or_default();
        Some(Shown::new(report, trends, Arc::clone(&self.room)))
    }
}

async fn maintenances(client: &Client) -> Result<Vec<MaintenanceRow>, String> {
    let listed = timeout(LIST_TIMEOUT, maintenance_rows(client)).await;
    listed.unwrap_or_else(|_| Err(RequestError::NoAnswer(LIST_TIMEOUT).to_string()))
}

#[cfg(test)]
mod tests {
    use headgate_test_kubernetes::{FakeApi, Fault};
    use tokio::time::sleep;

    use super::*;
    use crate::status::example_report;
    use crate::status::report::Selection;

    #[tokio::test]
    async fn all_who_read_a_report_share_its_text_and_there_are_few() {
        let room = Arc::new(Semaphore::new(2));
        let shown = || Shown::new(example_report(), Trends::default(), Arc::clone(&room));
        let first = shown();
        let (all, notable) = (first.json(true).await.unwrap(), first.json(false).await.unwrap());
        for (text, is_all) in [(&all, true), (&notable, false)] {
            assert_eq!(first.clone().json(is_all).await.unwrap().as_ptr(), text.as_ptr());
            let report: StatusReport = serde_json::from_slice(text).unwrap();
            assert_eq!(report.selection, Selection::Notable, "that of the example");
        }
        drop((first, notable));
        let second = shown();
        second.json(false).await.unwrap();
        assert!(second.json(true).await.is_err(), "another is still read");
        drop(all);
        second.json(true).await.unwrap();
    }

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

        let slow = async |last: Option<u32>| {
            sleep(MAX_AGE * 4).await;
            Some(last.unwrap_or_default() + 1)
        };
        timeout(MAX_AGE * 2, latest.get(true, slow)).await.unwrap_err();
        assert_eq!(
            get(true).await,
            6,
            "one at a time, also where the first reader has gone"
        );
        assert_eq!(start.elapsed(), MAX_AGE * 9);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_costs_the_report_its_maintenances_only() {
        let (client, faults) = FakeApi::default().client();
        assert_eq!(maintenances(&client).await.unwrap().len(), 0);
        faults.set(Fault::Slow(MAX_AGE * 60));
        let start = Instant::now();
        assert_eq!(maintenances(&client).await.unwrap_err(), "no answer within 3 s");
        assert_eq!(start.elapsed(), LIST_TIMEOUT);
    }
}
