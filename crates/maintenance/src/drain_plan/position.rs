//! Where an entry stands: the order in which entries of all plans are executed (NM-02).

use crate::api::PodType;

/// Where an entry stands: by type, then by priority, entries with a selector before the one without.
///
/// Two entries with different selectors may stand at the same position. They are executed at the same time where two
/// maintenances of a node have them.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Position {
    pod_type: PodType,
    priority: i32,
    without_selector: bool,
}

impl Position {
    pub(super) fn new(pod_type: PodType, priority: i32, has_selector: bool) -> Self {
        Self {
            pod_type,
            priority,
            without_selector: !has_selector,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_then_priorities_then_selectors() {
        let order = [
            Position::new(PodType::Default, i32::MIN, false),
            Position::new(PodType::Default, 5, true),
            Position::new(PodType::Default, 5, false),
            Position::new(PodType::Default, 6, true),
            Position::new(PodType::DaemonSet, -1, true),
            Position::new(PodType::Static, i32::MIN, false),
        ];
        assert!(order.is_sorted());
    }
}
