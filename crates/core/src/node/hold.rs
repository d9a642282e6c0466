//! The hold: the leader keeps a node in service although it has signals, because too few others are left, or for a while. Pure.
//!
//! The leader records a hold in an annotation of the Node and renews it. The agent then answers 200 while the hold covers
//! all its signals. Invariants: a hold is for one Node, by its UID. It never covers a signal that announces the end of the machine
//! ([`Signal::announces_end`]), unless that is revocable ([`Signal::is_revocable`]). It ends [`HOLD_TTL`] after the last renewal that this
//! process observed, by the monotonic clock; time without the API server does not count, because the leader cannot renew the hold then.
//!
//! A condition is covered that announces no end, although it is not revocable: the leader lets such a Node wait for `adminState.maxNewDown`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::names::{DRAINING_TAINT, HOLD_ANNOTATION};
use super::reader::{MAX_ANNOTATION_BYTES, Node};
use super::signal::Signal;
use crate::clock::{Moment, Observed, age_by_wall_clock};

/// From the last observed renewal to the end of a hold.
pub const HOLD_TTL: Duration = Duration::from_mins(5);
/// A hold that was last renewed longer ago when it is first observed is the leftover of a leader that is gone: it counts
/// only after a renewal. Generous, because the wall clocks of two machines are compared.
const MAX_AGE_AT_FIRST_OBSERVATION: Duration = Duration::from_hours(1);

/// What the leader records on a Node that it keeps in service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHold {
    /// The UID of the Node. A Node that was created again under the same name is not held.
    pub node_uid: String,
    /// The pools in which the Node's entry is held back, as `LOAD_BALANCER/POOL`.
    pub pools: BTreeSet<String>,
    /// Whether a rule of these pools probes headgate, so that the answer of `/healthz` decides.
    pub probes_headgate: bool,
    /// The signals that the hold covers.
    pub signals: BTreeSet<String>,
    /// Those of them that must last before they count for admin states, and have not yet. The agent may count them already.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pending: BTreeSet<String>,
    /// Why the node stays in service, in a phrase for operators.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When the leader last wrote the hold, by its wall clock.
    pub renewed_at: Timestamp,
}

impl NodeHold {
    /// The hold in a Node's annotations; `None` if there is none, it is not readable, or it is another Node's.
    pub fn from_annotations(annotations: &BTreeMap<String, String>, node_uid: &str) -> Option<Self> {
        let hold: Self = serde_json::from_str(annotations.get(HOLD_ANNOTATION)?).ok()?;
        (hold.node_uid == node_uid && !node_uid.is_empty()).then_some(hold)
    }

    /// The value of the annotation.
    ///
    /// # Errors
    /// Never in practice: every field can be encoded.
    pub fn to_annotation(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The hold in a form that agents read, who ignore an annotation of more than 4,096 bytes: without its reason, then without the last
    /// of its pools, in the order of their names, if all of it exceeds that. `None` if the hold exceeds it with a single pool: it must name all
    /// signals.
    pub fn bounded(self) -> Option<Self> {
        let pools = self.pools.len();
        let without_reason = Self {
            reason: String::new(),
            ..self.clone()
        };
        let whole = self.with_fitting_pools().filter(|hold| hold.pools.len() == pools);
        whole.or_else(|| without_reason.with_fitting_pools())
    }

    fn with_fitting_pools(mut self) -> Option<Self> {
        let pools = std::mem::take(&mut self.pools);
        let is_without_pools = pools.is_empty();
        let longest = Self {
            renewed_at: Timestamp::MAX,
            ..self.clone()
        };
        let mut size = longest.to_annotation().ok()?.len();
        for pool in pools {
            // With the comma.
            size += serde_json::to_string(&pool).ok()?.len() + 1;
            if size > MAX_ANNOTATION_BYTES {
                break;
            }
            self.pools.insert(pool);
        }
        let is_bounded = !self.pools.is_empty() || is_without_pools && size <= MAX_ANNOTATION_BYTES;
        is_bounded.then_some(self)
    }

    /// Whether both are the same apart from the time of the last renewal.
    pub fn is_same(&self, other: &Self) -> bool {
        let renewed_at = self.renewed_at;
        *self
            == Self {
                renewed_at,
                ..other.clone()
            }
    }

    fn covers(&self, signal: &str) -> bool {
        let covers = |parsed: Signal| {
            // The leader sees a notice by its taint only.
            let is_notice = matches!(parsed, Signal::Azure(_));
            let shown = if is_notice { DRAINING_TAINT } else { signal };
            (parsed.is_revocable() || !parsed.announces_end()) && self.signals.contains(shown)
        };
        signal.parse().is_ok_and(covers)
    }
}

/// A hold as this process observes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedHold {
    /// What the Node has.
    pub hold: NodeHold,
    /// The last renewal; the time for which the API server was unreachable since does not count.
    renewal: Observed<Timestamp>,
    was_paused: bool,
}

impl ObservedHold {
    /// The hold after an observation of the Node.
    pub(super) fn next(previous: Option<&Self>, node: &Node, now: Moment) -> Option<Self> {
        let hold = node.hold.clone()?;
        let mut renewal = previous.map(|previous| previous.renewal.clone()).unwrap_or_default();
        let age = |renewed_at: &Timestamp| {
            let is_leftover = age_by_wall_clock(*renewed_at, now) > MAX_AGE_AT_FIRST_OBSERVATION;
            if is_leftover { Duration::MAX } else { Duration::ZERO }
        };
        renewal.observe(Some(hold.renewed_at), age, now);
        Some(Self {
            hold,
            renewal,
            was_paused: previous.is_some_and(Self::was_paused),
        })
    }

    /// Whether the API server was lost for a while since the first observation.
    pub(super) fn was_paused(&self) -> bool {
        self.was_paused
    }

    /// Makes the time from `since` to `now` not count, because the leader could not renew the hold.
    pub(super) fn pause(&mut self, since: Instant, now: Instant) {
        self.renewal.pause(since, now);
        self.was_paused = true;
    }

    /// Whether the leader keeps a node with these signals in some pool, which may have only rules that probe single Services.
    /// `unreachable_since` is when the API server was lost.
    pub(super) fn is_current<'a>(
        &self,
        mut signals: impl Iterator<Item = &'a str>,
        unreachable_since: Option<Instant>,
        now: Instant,
    ) -> bool {
        let counted_until = unreachable_since.map_or(now, |since| since.min(now));
        let is_current = self.renewal.age(counted_until).is_some_and(|age| age < HOLD_TTL);
        is_current && signals.all(|signal| self.hold.covers(signal))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::reader::NodeReader;
    use super::super::report::NodeReport;
    use super::*;
    use crate::clock::Clock;
    use crate::node::matcher::{SignalMatcher, SignalRules};
    use crate::node::names::{OUT_OF_SERVICE_TAINT, SHUTDOWN_TAINT};

    const DRAIN: &str = "headgate.dev/maintenance";
    const MINUTE: Duration = Duration::from_mins(1);

    fn hold(renewed_at: Timestamp, signals: &[&str]) -> NodeHold {
        NodeHold {
            node_uid: "u".into(),
            pools: ["lb/p".to_owned()].into(),
            probes_headgate: true,
            signals: signals.iter().map(ToString::to_string).collect(),
            renewed_at,
            ..NodeHold::default()
        }
    }

    fn node(taints: &[&str], hold: Option<&NodeHold>) -> Node {
        let annotations = hold.map(|hold| json!({HOLD_ANNOTATION: hold.to_annotation().unwrap()}));
        let taints: Vec<_> = taints.iter().map(|key| json!({"key": key})).collect();
        let node = json!({"metadata": {"uid": "u", "annotations": annotations}, "spec": {"taints": taints}});
        NodeReader::own(keys()).read(serde_json::from_value(node).unwrap())
    }

    fn keys() -> SignalRules {
        crate::node::SignalSettings::default().health()
    }

    fn unprobed(hold: NodeHold) -> NodeHold {
        NodeHold {
            probes_headgate: false,
            ..hold
        }
    }

    /// After the first observation of a Node with these taints.
    fn observed(taints: &[&str], hold: Option<&NodeHold>, now: Moment) -> NodeReport {
        NodeReport::initial(None, &keys(), now).with_node(node(taints, hold), now)
    }

    fn is_held(taints: &[&str], hold: &NodeHold) -> bool {
        let now = Clock::System.now();
        observed(taints, Some(hold), now).is_held(&[], now.mono)
    }

    #[test]
    fn hold_covers_its_signals_of_its_node_only() {
        let now = Clock::System.now().wall;
        assert!(is_held(&[DRAIN], &hold(now, &[DRAIN])));
        assert!(is_held(&[DRAIN], &hold(now, &[DRAIN, "other"])));
        assert!(!is_held(&[DRAIN, "karpenter.sh/disrupted"], &hold(now, &[DRAIN])));
        let foreign = NodeHold {
            node_uid: "v".into(),
            ..hold(now, &[DRAIN])
        };
        assert!(!is_held(&[DRAIN], &foreign), "the Node was created again");
        assert!(!is_held(&[DRAIN], &unprobed(hold(now, &[DRAIN]))));
        for key in [OUT_OF_SERVICE_TAINT, SHUTDOWN_TAINT] {
            assert!(!is_held(&[key], &hold(now, &[key])), "{key} is terminal");
        }
    }

    #[test]
    fn hold_covers_a_condition_unless_it_announces_the_end_of_the_machine() {
        let now = Clock::System.now();
        for (kind, is_covered) in [("Bad", true), ("GracefulNodeShutdownInProgress", false)] {
            let matcher = json!({"condition": {"type": kind, "status": "True"}});
            let matchers = vec![SignalMatcher::parse(&matcher).unwrap()];
            let rules = SignalRules { matchers };
            let hold = hold(now.wall, &[&format!("condition:{kind}=True")]);
            let node = json!({"metadata": {"uid": "u", "annotations": {HOLD_ANNOTATION: hold.to_annotation().unwrap()}},
                "status": {"conditions": [{"type": kind, "status": "True"}]}});
            let node = NodeReader::own(rules.clone()).read(serde_json::from_value(node).unwrap());
            let report = NodeReport::initial(None, &rules, now).with_node(node, now);
            let found = (report.is_eligible(), report.is_held(&[], now.mono));
            assert_eq!(found, (false, is_covered), "{kind}");
        }
    }

    #[test]
    fn hold_for_rules_of_single_services_turns_no_answer() {
        let now = Clock::System.now();
        let unprobed = unprobed(hold(now.wall, &[DRAIN]));
        for (hold, is_kept) in [(Some(&unprobed), true), (None, false)] {
            let report = observed(&[DRAIN], hold, now);
            let found = (report.is_held(&[], now.mono), report.is_held_in_a_pool(&[], now.mono));
            assert_eq!(found, (false, is_kept));
        }
    }

    #[test]
    fn a_renewed_hold_is_the_same() {
        let one = hold(Timestamp::UNIX_EPOCH, &[DRAIN]);
        assert!(one.is_same(&hold(Timestamp::MAX, &[DRAIN])));
        assert!(!one.is_same(&hold(Timestamp::UNIX_EPOCH, &["other"])));
    }

    #[test]
    fn hold_covers_no_signal_that_is_not_a_taint() {
        let now = Clock::System.now();
        let names = ["deletionTimestamp", "kubelet-shutdown", "preempt"];
        let hold = hold(now.wall, &names);
        let mut deleting = node(&[], Some(&hold));
        deleting.is_deleting = true;
        let deleting = deleting.with_signals(&keys());
        let report = NodeReport::initial(None, &keys(), now);
        assert!(!report.with_node(deleting, now).is_held(&[], now.mono));
        let healthy = report.with_node(node(&[], Some(&hold)), now);
        for name in names {
            assert!(!healthy.is_held(&[name], now.mono), "{name}");
        }
    }

    #[test]
    fn hold_for_the_taint_of_a_notice_covers_a_notice_that_is_not_final() {
        let now = Clock::System.now();
        for (taint, notice, is_covered) in [
            (DRAINING_TAINT, "reboot", true),
            (DRAINING_TAINT, "redeploy", true),
            (DRAINING_TAINT, "preempt", false),
            (DRAINING_TAINT, "terminate", false),
            (DRAIN, "reboot", false),
        ] {
            let hold = hold(now.wall, &[taint]);
            let report = observed(&[taint], Some(&hold), now);
            assert_eq!(report.is_held(&[notice], now.mono), is_covered, "{taint} {notice}");
        }
    }

    #[test]
    fn leftover_is_ignored_until_it_is_renewed() {
        let now = Clock::System.now();
        let old = now.wall - jiff::SignedDuration::from_hours(2);
        assert!(!is_held(&[DRAIN], &hold(old, &[DRAIN])));
        let fresh = now.wall - jiff::SignedDuration::from_mins(40);
        assert!(is_held(&[DRAIN], &hold(fresh, &[DRAIN])));
        let limit = hold(now.wall - jiff::SignedDuration::from_hours(1), &[DRAIN]);
        let limit = observed(&[DRAIN], Some(&limit), now);
        assert!(limit.is_held(&[], now.mono), "not longer ago than an hour");
        let ahead = now.wall + jiff::SignedDuration::from_hours(9);
        assert!(is_held(&[DRAIN], &hold(ahead, &[DRAIN])), "the leader's clock is ahead");
        // The leader's clock is two hours behind: its next renewal counts.
        let leftover = observed(&[DRAIN], Some(&hold(old, &[DRAIN])), now);
        let renewed = hold(old + jiff::SignedDuration::from_mins(1), &[DRAIN]);
        let renewed = leftover.with_node(node(&[DRAIN], Some(&renewed)), now);
        assert!(!leftover.is_held(&[], now.mono) && renewed.is_held(&[], now.mono));
        // It is a leftover as well if it is observed while the API server counts as lost.
        let later = Moment {
            mono: now.mono + MINUTE,
            ..now
        };
        let lost = NodeReport::initial(None, &keys(), now).with_api_server(false, now);
        let lost = lost.with_node(node(&[DRAIN], Some(&hold(old, &[DRAIN]))), later);
        assert!(!lost.is_held(&[], later.mono));
    }

    #[test]
    fn time_without_the_api_server_does_not_count() {
        let now = Clock::System.now();
        let after = |minutes: u32| Moment {
            mono: now.mono + minutes * MINUTE,
            ..now
        };
        let held = |report: &NodeReport, minutes| report.is_held(&[], after(minutes).mono);
        let report = observed(&[DRAIN], Some(&hold(now.wall, &[DRAIN])), now);
        assert!(held(&report, 4) && !held(&report, 5));
        let lost = report.with_api_server(false, after(3));
        assert!(held(&lost, 90));
        assert_eq!(lost.with_api_server(false, after(50)), lost);
        let back = lost.with_api_server(true, after(60));
        assert!(held(&back, 61) && !held(&back, 62));
        let renewed = hold(now.wall + jiff::SignedDuration::from_mins(61), &[DRAIN]);
        let back = back.with_node(node(&[DRAIN], Some(&renewed)), after(61));
        assert!(held(&back, 65) && !held(&back, 66));
        let not_renewed = back.with_node(node(&["other", DRAIN], Some(&renewed)), after(64));
        assert!(!held(&not_renewed, 66));
    }

    #[test]
    fn a_restart_without_the_api_server_keeps_a_hold_however_long_that_lasts() {
        let now = Clock::System.now();
        let later = |hours: i64, minutes: u32| Moment {
            wall: now.wall + jiff::SignedDuration::from_hours(hours),
            mono: now.mono + minutes * MINUTE,
        };
        let after = |hours| later(hours, 0);
        let held_by = |renewed_at| node(&[DRAIN], Some(&hold(renewed_at, &[DRAIN])));
        let live = observed(&[DRAIN], Some(&hold(now.wall, &[DRAIN])), now);
        // When the state was written, and whether it still holds after a restart at 9 h.
        for (written, is_held) in [(0, true), (1, true), (2, false)] {
            let restarted = NodeReport::initial(live.remembered(after(written)), &keys(), after(9));
            assert_eq!(restarted.is_held(&[], now.mono), is_held, "{written}");
        }
        let restarted = NodeReport::initial(live.remembered(now), &keys(), after(9));
        let lost = restarted.with_api_server(false, after(9));
        assert!(lost.is_held(&[], later(9, 90).mono));
        // The leader has the rest of the time to renew it, in whichever order the Node and the return are observed.
        let (at, held) = (later(9, 60), held_by(now.wall));
        let back = lost.with_api_server(true, at).with_node(held.clone(), at);
        let shown = lost.with_node(held, at).with_api_server(true, at);
        for report in [back, shown] {
            let held = [64, 65].map(|minutes| report.is_held(&[], later(9, minutes).mono));
            assert_eq!(held, [true, false]);
        }
        // With the API server it is the leftover of a leader that is gone.
        assert!(!restarted.with_node(held_by(now.wall), after(9)).is_held(&[], now.mono));
        let renewed = restarted.with_node(held_by(after(9).wall), after(9));
        assert!(renewed.is_held(&[], now.mono));
    }

    #[test]
    fn removed_hold_ends_at_once() {
        let now = Clock::System.now();
        let held = observed(&[DRAIN], Some(&hold(now.wall, &[DRAIN])), now);
        let released = held.with_node(node(&[DRAIN], None), now);
        assert!(held.is_held(&[], now.mono) && !released.is_held(&[], now.mono));
        let restarted = NodeReport::initial(held.remembered(now), &keys(), now);
        assert!(restarted.is_held(&[], now.mono), "not with the process");
    }

    #[test]
    fn pools_that_exceed_the_annotation_are_left_out_from_the_end() {
        let now = Clock::System.now();
        let names = |count: usize| (0..count).map(|number| format!("kubernetes/pool-{number:03}"));
        let many = NodeHold {
            pools: names(500).collect(),
            ..hold(now.wall, &[DRAIN])
        };
        let bounded = many.clone().bounded().unwrap();
        let kept = bounded.pools.len();
        assert!((100..500).contains(&kept), "{kept}");
        assert_eq!(bounded.pools, names(kept).collect());
        assert!((MAX_ANNOTATION_BYTES - 40..=MAX_ANNOTATION_BYTES).contains(&bounded.to_annotation().unwrap().len()));
        assert!(!is_held(&[DRAIN], &many), "an agent ignores what is too large");
        assert!(is_held(&[DRAIN], &bounded));
        let mut few = hold(now.wall, &[DRAIN]);
        few.reason = "too few others can serve".to_owned();
        assert_eq!(few.clone().bounded(), Some(few));
        let mut explained = hold(now.wall, &[DRAIN]);
        explained.reason = "x".repeat(5000);
        let fitting = explained.bounded().unwrap();
        assert!(fitting.reason.is_empty() && fitting.pools.len() == 1, "{fitting:?}");
        let signals: Vec<String> = (0..100).map(|number| format!("example.com/{number:040}")).collect();
        let signals: Vec<&str> = signals.iter().map(String::as_str).collect();
        // A hold that does not name all signals holds nothing.
        for (pools, signals, is_bounded) in [
            (vec![], &[DRAIN][..], true),
            (vec![], &signals, false),
            (vec!["p".repeat(4000)], &[DRAIN], false),
        ] {
            let hold = NodeHold {
                pools: pools.into_iter().collect(),
                ..hold(now.wall, signals)
            };
            assert_eq!(hold.bounded().is_some(), is_bounded);
        }
    }

    #[test]
    fn a_bounded_hold_is_as_long_as_it_may_be_whenever_it_is_renewed() {
        for length in 1..40 {
            let pool = |number| format!("{number:03}{}", "p".repeat(length));
            let hold = NodeHold {
                pools: (0..1000).map(pool).collect(),
                ..hold(Timestamp::UNIX_EPOCH, &[DRAIN])
            };
            let renewed = NodeHold {
                renewed_at: Timestamp::MAX,
                ..hold.bounded().unwrap()
            };
            // With a comma after the last one, too.
            let bytes = renewed.to_annotation().unwrap().len() + 1;
            let bytes_of_another = pool(0).len() + "'',".len();
            assert!(bytes <= MAX_ANNOTATION_BYTES, "{length}: {bytes}");
            assert!(bytes + bytes_of_another > MAX_ANNOTATION_BYTES, "{length}: {bytes}");
        }
    }

    proptest! {
        /// Whatever the leader writes, the agent reads.
        #[test]
        fn bounded_holds_are_read_as_they_were_written(
            pools in proptest::collection::btree_set(".{0,200}", 0..60),
            signals in proptest::collection::btree_set(".{0,300}", 0..20),
            seconds in 0_i64..250_000_000_000,
            nanoseconds in 0_i32..1_000_000_000,
        ) {
            let renewed_at = Timestamp::new(seconds, nanoseconds).unwrap();
            let desired = NodeHold { pools, signals, ..hold(renewed_at, &[]) };
            if let Some(written) = desired.clone().bounded() {
                let node = json!({"metadata": {"name": "n", "uid": "u", "annotations": {HOLD_ANNOTATION: written.to_annotation().unwrap()}}});
                let node = NodeReader::own(keys()).read(serde_json::from_value(node).unwrap());
                prop_assert_eq!(node.hold, Some(written.clone()));
                prop_assert_eq!(&written.signals, &desired.signals);
                prop_assert!(written.pools.iter().eq(desired.pools.iter().take(written.pools.len())));
                prop_assert_eq!(written.pools.is_empty(), desired.pools.is_empty());
            } else {
                // One pool and the signals alone exceed the limit.
                let least = NodeHold { pools: desired.pools.iter().take(1).cloned().collect(), ..desired };
                prop_assert!(least.to_annotation().unwrap().len() + 40 > MAX_ANNOTATION_BYTES);
            }
        }

        /// No value of the annotation panics or holds a node with a signal that it does not name.
        #[test]
        fn odd_annotations_hold_nothing(value in ".{0,200}") {
            let now = Clock::System.now();
            let mut odd = node(&[DRAIN], None);
            odd.annotations.insert(HOLD_ANNOTATION.to_owned(), value);
            odd.hold = NodeHold::from_annotations(&odd.annotations, &odd.uid);
            let report = NodeReport::initial(None, &keys(), now).with_node(odd, now);
            prop_assert!(!report.is_held(&[], now.mono));
        }
    }
}
