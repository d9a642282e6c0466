//! The watches of Services and EndpointSlices, which feed the index; each new table is published.
//!
//! Both watches run until the task is aborted. While one fails, the last table stays. `headgate-kubernetes` retries,
//! counts and logs the failures. The API server sends only Services of type LoadBalancer, where it can
//! select them (that of Kubernetes 1.30 cannot); it cannot select EndpointSlices by their Service's type, so it sends all.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use headgate_kubernetes::{LOAD_BALANCER_SERVICES, WatchFailure, WatchReporter, watch_events, with_selection_fallback};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use tokio::sync::watch;

use super::index::{ServiceIndex, ServiceTable};
use super::kept_objects::LABEL_SELECTOR;
use super::metrics::WatchedResource;

/// Objects in one page of a list, which are in memory in addition to what is kept.
const LIST_PAGE_SIZE: u32 = 100;

/// The reporters of the two watches.
#[derive(Debug)]
pub struct WatchReporters {
    pub(super) services: WatchReporter,
    pub(super) endpoint_slices: WatchReporter,
}

impl WatchReporters {
    /// The current failure of each watch.
    pub fn failures(&self) -> BTreeMap<WatchedResource, watch::Receiver<Option<WatchFailure>>> {
        BTreeMap::from([
            (WatchedResource::Services, self.services.failure()),
            (WatchedResource::EndpointSlices, self.endpoint_slices.failure()),
        ])
    }
}

/// Watches Services and EndpointSlices and publishes the table of endpoints on the node `node_name` until the task is
/// aborted.
pub async fn watch_services(
    client: Client,
    node_name: String,
    tables: watch::Sender<Option<Arc<ServiceTable>>>,
    reporters: WatchReporters,
) {
    let config = || Config::default().labels(LABEL_SELECTOR).page_size(LIST_PAGE_SIZE);
    let load_balancers = config().fields(LOAD_BALANCER_SERVICES);
    let selecting = with_selection_fallback(&client);
    let mut services = watch_events(&selecting, Api::all, load_balancers, reporters.services);
    let mut slices = watch_events(&client, Api::all, config(), reporters.endpoint_slices);
    let mut index = ServiceIndex::new(node_name);
    loop {
        // The streams have reported their errors.
        let is_changed = tokio::select! {
            Some(event) = services.next() => event.is_ok_and(|event| index.apply_service(event)),
            Some(event) = slices.next() => event.is_ok_and(|event| index.apply_slice(event)),
            else => return,
        };
        if is_changed && let Some(table) = index.table() {
            if tables.borrow().is_none() {
                tracing::info!(services = table.iter().count(), "Services and EndpointSlices listed");
            }
            tables.send_replace(Some(Arc::new(table)));
        }
    }
}
