//! When a `Down` is written without waiting for the shared Lease: shortly before the eviction of its node. Pure but for the clock.
//!
//! Off by default (`adminState.leaseBypass`). Only the `Down`s of nodes with an eviction notice are written so; everything else waits. The
//! risk is in docs/concepts/how-it-works.md.

use std::time::Duration;

use headgate_core::clock::{Clock, Moment};
use headgate_kubernetes::leader::LockGuard;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::ClusterNode;
use super::edit::PoolEdit;

/// After the time of a notice: Azure may be late, and a notice that is older says nothing any more.
const END: SignedDuration = SignedDuration::from_mins(1);
/// For the writes of one bypass. Then a new one decides.
pub(super) const BYPASS_TTL: Duration = Duration::from_secs(30);

/// How long before an eviction the Lease is not waited for.
#[derive(Clone, Debug)]
pub(crate) struct LeaseBypass {
    /// `adminState.leaseBypass`; zero is never.
    pub(crate) before_eviction: Duration,
    /// Wall and monotonic time. The notice has a wall-clock time.
    pub(crate) clock: Clock,
}

impl LeaseBypass {
    /// No write passes by the Lease.
    #[must_use]
    pub(crate) fn never(clock: Clock) -> Self {
        Self {
            before_eviction: Duration::ZERO,
            clock,
        }
    }

    /// The edits that the guard permits: all of them under the Lease, and without it those that are urgent now.
    pub(super) fn permitted(&self, edits: Vec<PoolEdit>, guard: &LockGuard) -> Vec<PoolEdit> {
        if guard.is_bypass() { self.urgent(edits) } else { edits }
    }

    fn urgent(&self, edits: Vec<PoolEdit>) -> Vec<PoolEdit> {
        let now = self.clock.now().wall;
        let is_near = |node: &ClusterNode| self.window(node).is_some_and(|(from, to)| from <= now && now < to);
        edits
            .into_iter()
            .filter_map(|edit| edit.urgent_downs(is_near))
            .collect()
    }

    /// When the first of these edits is not to wait for the Lease any longer.
    pub(super) fn due_at(&self, edits: &[PoolEdit]) -> Option<Instant> {
        let now = self.clock.now();
        let changes = edits.iter().filter_map(|edit| edit.urgent_downs(|_| true));
        let changes = changes.flat_map(|edit| edit.admin_states);
        let windows = changes.filter_map(|change| self.window(&change.node));
        windows
            .filter(|(_, to)| now.wall < *to)
            .map(|(from, _)| on_own_clock(from, now))
            .min()
    }

    /// From when to when `Down`s of the Node are written without the Lease.
    fn window(&self, node: &ClusterNode) -> Option<(Timestamp, Timestamp)> {
        let eviction_at = node.eviction_at().filter(|_| !self.before_eviction.is_zero())?;
        let from = eviction_at.checked_sub(self.before_eviction).ok()?;
        Some((from, eviction_at.checked_add(END).ok()?))
    }
}

fn on_own_clock(at: Timestamp, now: Moment) -> Instant {
    now.mono + Duration::try_from(at.duration_since(now.wall)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headgate_azure::{AdminState, LoadBalancerId};
    use headgate_core::node::RecordedNotice;

    use super::super::edit::AdminStateChange;
    use super::super::pool_entry::EntryKey;
    use super::*;

    const ID: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/lb";
    const NOW: i64 = 1_000_000;

    /// An edit with these changes: the seconds from now to the eviction of the node, and the admin state.
    fn edit(changes: &[(Option<i64>, AdminState)]) -> PoolEdit {
        let change = |(number, (after, to)): (usize, &(Option<i64>, AdminState))| AdminStateChange {
            index: number,
            key: EntryKey::from_text(&format!("10.0.0.{number}")),
            node: Arc::new(ClusterNode {
                name: format!("n{number}"),
                uid: format!("u{number}"),
                notice: Some(RecordedNotice {
                    is_tainted: true,
                    not_before: after.map(|after| Timestamp::from_second(NOW + after).unwrap()),
                    ..RecordedNotice::default()
                }),
                ready: true,
                ends: true,
                ..ClusterNode::default()
            }),
            to: *to,
        };
        PoolEdit {
            pool: LoadBalancerId::parse(ID).unwrap().pool("p").unwrap(),
            admin_states: changes.iter().enumerate().map(change).collect(),
            members: None,
        }
    }

    #[test]
    fn only_downs_close_to_the_eviction_are_urgent() {
        use AdminState::{Down, None as Eligible};
        let clock = Clock::anchored(Timestamp::from_second(NOW).unwrap());
        let bypass = |seconds| LeaseBypass {
            before_eviction: Duration::from_secs(seconds),
            clock: clock.clone(),
        };
        for (before, after, to, is_urgent, due) in [
            (10, Some(10), Down, true, Some(0)),
            (10, Some(0), Down, true, Some(0)),
            (10, Some(-59), Down, true, Some(0)),
            (10, Some(-60), Down, false, None),
            (10, Some(25), Down, false, Some(15)),
            (10, Some(5), Eligible, false, None),
            (10, None, Down, false, None),
            (0, Some(5), Down, false, None),
        ] {
            let edits = vec![edit(&[(None, Down), (after, to)])];
            let now = Instant::now();
            let due_at = bypass(before)
                .due_at(&edits)
                .map(|at| at.saturating_duration_since(now).as_secs_f64());
            let is_due = match (due_at, due) {
                (Some(found), Some(expected)) => (found - f64::from(expected)).abs() < 2.0,
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_due, "{before} {after:?} {to:?}: {due_at:?}");
            let urgent = bypass(before).urgent(edits);
            let changes: usize = urgent.iter().map(|edit| edit.admin_states.len()).sum();
            assert_eq!(changes, usize::from(is_urgent), "{before} {after:?} {to:?}");
        }
    }
}
