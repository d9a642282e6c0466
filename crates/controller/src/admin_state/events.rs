//! Records events on Nodes, from a bounded queue.

use futures::{StreamExt as _, stream};
use headgate_kubernetes::{ClusterEventRecorder, NodeReference};
use tokio::sync::mpsc;

use super::transitions::NodeEvent;

/// Two for each of 5,000 Nodes. Events beyond this are logged and dropped.
pub(super) const MAX_EVENTS_QUEUED: usize = 10_000;
const MAX_CONCURRENT_EVENT_WRITES: usize = 8;

/// Records the events of the queue until all its senders are dropped.
pub(super) async fn record_events(recorder: ClusterEventRecorder, mut queue: mpsc::Receiver<NodeEvent>) {
    let events = stream::poll_fn(|context| queue.poll_recv(context));
    let record = |event: NodeEvent| {
        let recorder = recorder.clone();
        async move {
            let reference = NodeReference {
                name: &event.node.name,
                uid: &event.node.uid,
            };
            let (reason, note) = (event.kind.reason(), event.note);
            if event.kind.is_warning() {
                recorder.record_warning(reference, reason, note).await;
            } else {
                recorder.record_normal(reference, reason, note).await;
            }
        }
    };
    events.for_each_concurrent(MAX_CONCURRENT_EVENT_WRITES, record).await;
}
