//! Publishes current state, of which only the latest matters.

use tokio::sync::watch;

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
