//! Publishes current state, of which only the latest matters.

use tokio::sync::watch;

/// Waits for the next value; for ever once the sender is gone. What publishes ends with the process or the term, and so does then who waits.
pub async fn changed<T>(values: &mut watch::Receiver<T>) {
    if values.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Replaces the value, and tells its readers, if the new one differs. Returns whether it does.
pub fn publish_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|current| {
        let is_changed = *current != value;
        if is_changed {
            *current = value;
        }
        is_changed
    })
}
