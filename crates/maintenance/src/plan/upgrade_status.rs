//! The label that keeps a node under maintenance out of upgrades of AKS (`maintenance.pauseUpgrades`).
//!
//! It is set where a maintenance keeps autoscalers away, because an upgrade would take the node away just as they do, and removed at the
//! end. An annotation records it. A label that was there before, or that another writer has changed since, stays.

use headgate_core::node::{Node, UPGRADE_STATUS_LABEL};

/// The value with which a node is left out (Azure/AKS#5944).
pub(crate) const PAUSED: &str = "paused";

/// Whether the label is to be set (`true`) or removed (`false`).
pub fn change(node: &Node, is_enabled: bool) -> Option<bool> {
    let is_wanted = is_enabled && node.is_kept_from_scale_down;
    if is_wanted == node.is_upgrade_paused {
        return None;
    }
    let is_free = !node.labels.contains_key(UPGRADE_STATUS_LABEL);
    (!is_wanted || is_free).then_some(is_wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_there_as_long_as_a_maintenance_keeps_others_away() {
        for (is_enabled, is_kept, is_ours, label, expected) in [
            (true, true, false, None, Some(true)),
            (true, true, true, Some(PAUSED), None),
            // Another writer took it away: nobody fights.
            (true, true, true, None, None),
            (true, true, false, Some("Quarantined"), None),
            (true, true, false, Some(PAUSED), None),
            (true, false, true, Some(PAUSED), Some(false)),
            (true, false, false, Some("Quarantined"), None),
            (false, true, true, Some(PAUSED), Some(false)),
            (false, true, false, None, None),
            (true, false, false, None, None),
        ] {
            let node = Node {
                is_kept_from_scale_down: is_kept,
                is_upgrade_paused: is_ours,
                labels: label
                    .map(|value: &str| (UPGRADE_STATUS_LABEL.to_owned(), value.to_owned()))
                    .into_iter()
                    .collect(),
                ..Node::default()
            };
            assert_eq!(
                change(&node, is_enabled),
                expected,
                "{is_enabled} {is_kept} {is_ours} {label:?}"
            );
        }
    }
}
