//! The watches of Services and EndpointSlices, which feed the index; its table is published.
//!
//! Both run for ever with kube's backoff and jitter. While the API server cannot be reached or refuses,
//! the last table stays; the trouble is logged when it starts, changes and ends, and counted each time.
//! The API server is asked for Services of type LoadBalancer only; of EndpointSlices it has to send all.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use super::index::{Index, Table};
use super::metrics::{Metrics, Resource};
use super::object::{LABEL_SELECTOR, SlimService, SlimSlice};
use crate::clock::Clock;
use crate::node::{Trouble, watch_error_reason};
use crate::telemetry;

/// Objects in one answer to a list: what is held in memory beside what is kept.
const PAGE: u32 = 100;

/// Where the watches publish what they learn.
#[derive(Debug)]
pub struct Outlet {
    /// The Services with their counts; `None` until both kinds were listed.
    pub tables: watch::Sender<Option<Arc<Table>>>,
    /// The state of the watches themselves: of Services, of EndpointSlices.
    pub troubles: watch::Sender<[Option<Trouble>; 2]>,
}

type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<K>>>;

/// Watches for endpoints on `node` and publishes the counts; never returns of itself.
pub async fn run(client: Client, node: String, outlet: Outlet, metrics: Metrics, clock: Clock) {
    let config = || watcher::Config::default().labels(LABEL_SELECTOR).page_size(PAGE);
    let of_type = config().fields("spec.type=LoadBalancer");
    let mut services: Events<SlimService> = watcher(Api::all(client.clone()), of_type).default_backoff().boxed();
    let mut slices: Events<SlimSlice> = watcher(Api::all(client), config()).default_backoff().boxed();
    let mut index = Index::new(node);
    let troubles = Troubles {
        sender: outlet.troubles,
        metrics,
        clock,
    };
    loop {
        let changed = tokio::select! {
            Some(event) = services.next() => troubles.heed(Resource::Services, event).is_some_and(|event| index.service(event)),
            Some(event) = slices.next() => troubles.heed(Resource::Slices, event).is_some_and(|event| index.slice(event)),
            else => return,
        };
        if changed && let Some(table) = index.table() {
            if outlet.tables.borrow().is_none() {
                tracing::info!(services = table.len(), "the Services are known");
            }
            outlet.tables.send_replace(Some(Arc::new(table)));
        }
    }
}

struct Troubles {
    sender: watch::Sender<[Option<Trouble>; 2]>,
    metrics: Metrics,
    clock: Clock,
}

impl Troubles {
    /// Says in the log when a watch gets into trouble and out of it; hands events on.
    fn heed<K>(&self, resource: Resource, event: watcher::Result<watcher::Event<K>>) -> Option<watcher::Event<K>> {
        let (name, index) = (resource.as_str(), resource as usize);
        match event {
            Ok(event) => {
                // An answer to a list or watch; `Init` only says that one is about to be asked for.
                if !matches!(event, watcher::Event::Init)
                    && self
                        .sender
                        .send_if_modified(|troubles| troubles[index].take().is_some())
                {
                    tracing::info!(resource = name, "watched again");
                }
                Some(event)
            }
            Err(error) => {
                let reason = watch_error_reason(&error);
                self.metrics.error(resource, reason);
                let known = self.sender.borrow()[index].as_ref().map(|trouble| trouble.reason);
                if known != Some(reason) {
                    let error = telemetry::chain(&error);
                    tracing::warn!(
                        resource = name,
                        reason,
                        error,
                        "cannot be watched; the last known state of Services goes on"
                    );
                    let since = self.clock.now().wall;
                    self.sender
                        .send_modify(|troubles| troubles[index] = Some(Trouble { reason, error, since }));
                }
                None
            }
        }
    }
}
