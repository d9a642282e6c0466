//! The report: the present knowledge about the own Node, and how observations change it. Pure.
//!
//! Invariant: only a newer observation of the Node replaces it and its signals. An absent Node and an unreachable
//! API server leave them as they are.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::hold::ObservedHold;
use super::matcher::SignalRules;
use super::reader::Node;
use super::signal::Signal;
use super::signal_periods::SignalPeriods;
use crate::clock::Moment;
use crate::telemetry::words;

words! {
    /// Where the Node and the signals of a report are known from.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Source {
        /// From the API server, since this process started.
        Watch = "watch",
        /// From the remembered state that an earlier process stored.
        Remembered = "remembered",
        /// Nothing is known yet; the node counts as eligible.
        None = "none",
    }
}

words! {
    /// Whether the API server has the Node object.
    pub enum NodeObjectState {
        /// This process has not completed a list yet.
        Unknown = "unknown",
        /// The Node exists, as the last observation shows.
        Present = "present",
        /// This process has never observed the Node, and it does not exist.
        Missing = "missing",
        /// This process has observed the Node, and it no longer exists. The last report stays in use.
        Deleted = "deleted",
    }
}

/// The present knowledge about the own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Where `node` and `periods` are known from.
    pub source: Source,
    /// Whether the API server has the Node object.
    pub object_state: NodeObjectState,
    /// The Node at the last observation; `None` if there was none.
    pub node: Option<Node>,
    /// The signals of the Node object.
    pub periods: SignalPeriods,
    /// The leader's hold on the Node.
    pub hold: Option<ObservedHold>,
    /// When the API server was lost; `None` while it answers.
    pub unreachable_since: Option<Instant>,
}

/// What is kept of a report across a restart of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RememberedNode {
    /// The Node at the last observation. The settings of the reading process decide what of it is a signal.
    pub node: Node,
    /// The start of each signal, by its name.
    pub since: BTreeMap<String, Timestamp>,
    /// When this was kept. What the API server has since is not known.
    pub written_at: Timestamp,
}

impl NodeReport {
    /// What to keep of it; `None` before the first observation of the Node.
    pub fn remembered(&self, now: Moment) -> Option<RememberedNode> {
        let since = |(signal, since): (&Signal, &Timestamp)| (signal.to_string(), *since);
        Some(RememberedNode {
            node: self.node.clone()?,
            since: self.signals().iter().map(since).collect(),
            written_at: now.wall,
        })
    }

    /// The report at the start of the process. `rules` decide what is a signal in the remembered Node.
    pub fn initial(remembered: Option<RememberedNode>, rules: &SignalRules, now: Moment) -> Self {
        let mut report = Self {
            source: Source::None,
            object_state: NodeObjectState::Unknown,
            node: None,
            periods: SignalPeriods::default(),
            hold: None,
            unreachable_since: None,
        };
        let Some(RememberedNode {
            node,
            since,
            written_at,
        }) = remembered
        else {
            return report;
        };
        let node = node.with_derived_facts().with_signals(rules);
        let known_since = |signal: &Signal| since.get(signal.name()).copied();
        let began_at = |signal: &Signal| cordoned_since(&node, signal);
        report
            .periods
            .observe(&node.uid, &node.signals, known_since, began_at, 0, now);
        // The API server may have been lost ever since, so that nobody could renew a hold that counted then.
        let written = Moment {
            wall: written_at,
            ..now
        };
        Self {
            source: Source::Remembered,
            hold: ObservedHold::next(None, &node, written),
            node: Some(node),
            ..report
        }
    }

    /// The report after an observation of the Node. A signal that the same Node had before keeps its start, and this process's first
    /// observation takes that of a cordon from the Node, which an earlier process may have seen. A remembered hold goes on only if the API
    /// server was lost meanwhile: otherwise its leader could have renewed it.
    #[must_use]
    pub fn with_node(&self, node: Node, now: Moment) -> Self {
        let mut periods = self.periods.clone();
        let is_first = self.source != Source::Watch;
        let began_at = |signal: &Signal| cordoned_since(&node, signal).filter(|_| is_first);
        periods.observe(&node.uid, &node.signals, |_| None, began_at, 0, now);
        let goes_on = |hold: &&ObservedHold| !is_first || self.unreachable_since.is_some() || hold.was_paused();
        Self {
            source: Source::Watch,
            object_state: NodeObjectState::Present,
            hold: ObservedHold::next(self.hold.as_ref().filter(goes_on), &node, now),
            node: Some(node),
            periods,
            unreachable_since: self.unreachable_since,
        }
    }

    /// The report once time has passed: signals that have lasted long enough count.
    #[must_use]
    pub fn at(&self, now: Moment) -> Self {
        let mut next = self.clone();
        next.periods.advance(0, now);
        next
    }

    /// The signals that count, each with its start.
    pub fn signals(&self) -> &BTreeMap<Signal, Timestamp> {
        self.periods.present()
    }

    /// When the next signal counts without another observation.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.periods.next_pending()
    }

    /// The report after the API server was lost, or answers again. A hold lasts longer by the time in between.
    #[must_use]
    pub fn with_api_server(&self, is_reachable: bool, now: Moment) -> Self {
        let mut next = self.clone();
        if !is_reachable {
            next.unreachable_since.get_or_insert(now.mono);
        } else if let Some(since) = next.unreachable_since.take()
            && let Some(hold) = &mut next.hold
        {
            hold.pause(since, now.mono);
        }
        next
    }

    /// Whether the leader's hold keeps the node in service although it has signals: those of the report, and `others`.
    pub fn is_held(&self, others: &[&str], now: Instant) -> bool {
        let is_probed = self.hold.as_ref().is_some_and(|observed| observed.hold.probes_headgate);
        is_probed && self.is_held_in_a_pool(others, now)
    }

    /// Whether the leader keeps the node in some pool although it has signals: those of the report, and `others`. The pool's rules may
    /// probe single Services only, so this says nothing about `/healthz`.
    pub fn is_held_in_a_pool(&self, others: &[&str], now: Instant) -> bool {
        let signals = self.signals().keys().map(Signal::name).chain(others.iter().copied());
        let hold = self.hold.as_ref();
        hold.is_some_and(|hold| hold.is_current(signals, self.unreachable_since, now))
    }

    /// The report after a list or an event that shows that the Node does not exist. Node and signals stay.
    #[must_use]
    pub fn without_node(&self) -> Self {
        let object_state = match self.object_state {
            NodeObjectState::Present | NodeObjectState::Deleted => NodeObjectState::Deleted,
            NodeObjectState::Unknown | NodeObjectState::Missing => NodeObjectState::Missing,
        };
        Self {
            object_state,
            ..self.clone()
        }
    }

    /// Whether this process has completed a list of the Node.
    pub fn is_synced(&self) -> bool {
        self.object_state != NodeObjectState::Unknown
    }

    /// Whether this process or an earlier one has observed the Node, or this one that it does not exist.
    pub fn is_known(&self) -> bool {
        self.is_synced() || self.source == Source::Remembered
    }

    /// Whether new connections may be sent to the node: it has no signal. A node about which nothing is known is
    /// eligible.
    pub fn is_eligible(&self) -> bool {
        self.signals().is_empty()
    }
}

fn cordoned_since(node: &Node, signal: &Signal) -> Option<Timestamp> {
    node.cordoned_since().filter(|_| *signal == Signal::Unschedulable)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::node::matcher::SignalMatcher;
    use crate::node::object::Taint;
    use crate::node::reader::NodeReader;

    fn keys() -> SignalRules {
        SignalRules::new(["drain"], &SignalMatcher::BUILT_IN)
    }

    fn node(uid: &str, taints: &[&str]) -> Node {
        let node = Node {
            uid: uid.into(),
            taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
            ..Node::default()
        };
        node.with_signals(&keys())
    }

    fn cordon_of_ten_seconds() -> SignalRules {
        let matchers = vec![SignalMatcher::Unschedulable(Duration::from_secs(10))];
        SignalRules { matchers }
    }

    fn at(second: i64) -> Moment {
        Moment {
            wall: Timestamp::from_second(second).unwrap(),
            ..Clock::System.now()
        }
    }

    #[test]
    fn unknown_node_is_eligible() {
        let report = NodeReport::initial(None, &keys(), at(1));
        assert!(report.is_eligible() && !report.is_synced() && !report.is_known());
        assert_eq!(report.source, Source::None);
        let report = report.without_node();
        assert!(report.is_eligible() && report.is_synced() && report.is_known());
        assert_eq!(report.source, Source::None);
        assert_eq!(report.object_state, NodeObjectState::Missing);
    }

    #[test]
    fn signal_keeps_its_start_until_the_taint_is_removed() {
        let report = NodeReport::initial(None, &keys(), at(1)).with_node(node("u", &["drain"]), at(2));
        let report = report.with_node(node("u", &["other", "drain"]), at(3));
        assert_eq!(report.signals().values().next(), Some(&at(2).wall));
        let report = report.with_node(node("u", &["other"]), at(4));
        assert!(report.is_eligible());
        let report = report.with_node(node("u", &["drain"]), at(5));
        assert_eq!(report.signals().values().next(), Some(&at(5).wall));
    }

    #[test]
    fn deleted_node_keeps_its_last_signals() {
        for taints in [&[][..], &["drain"][..]] {
            let seen = NodeReport::initial(None, &keys(), at(1)).with_node(node("u", taints), at(2));
            let gone = seen.without_node();
            assert_eq!(gone.is_eligible(), seen.is_eligible());
            assert_eq!(gone.source, Source::Watch);
            assert_eq!(gone.object_state, NodeObjectState::Deleted);
            assert_eq!(gone.without_node(), gone);
        }
    }

    #[test]
    fn node_with_another_uid_starts_anew() {
        let seen = NodeReport::initial(None, &keys(), at(1)).with_node(node("u", &["drain"]), at(2));
        let old = seen.without_node();
        let new = old.with_node(node("v", &["drain"]), at(9));
        assert_eq!(new.signals().values().next(), Some(&at(9).wall));
        assert!(old.with_node(node("v", &[]), at(9)).is_eligible());
    }

    #[test]
    fn remembered_state_stays_in_use_until_the_node_is_observed() {
        let seen = NodeReport::initial(None, &keys(), at(1)).with_node(node("u", &["drain"]), at(2));
        let remembered = seen.remembered(at(2)).unwrap();
        let report = NodeReport::initial(Some(remembered.clone()), &keys(), at(8));
        assert_eq!(report.source, Source::Remembered);
        assert_eq!((report.signals(), &report.node), (seen.signals(), &seen.node));
        assert_eq!(report.without_node().signals(), seen.signals());
        let report = report.with_node(node("u", &["drain"]), at(9));
        assert_eq!(report.signals().values().next(), Some(&at(2).wall));
        let by_other_settings = NodeReport::initial(Some(remembered), &SignalRules::default(), at(8));
        assert!(by_other_settings.is_eligible());
    }

    #[test]
    fn a_remembered_node_still_ends_or_is_excluded() {
        let spot = json!({"key": "cloudprovider.azure.microsoft.com/draining", "value": "spot-eviction", "effect": "NoSchedule"});
        let excluded = json!({"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "karpenter"}});
        let unmanaged = json!({"labels": {"kubernetes.azure.com/managed": "False", "other": ""}});
        // The last is whether a condition announces an eviction, which the agent adds to what is read here.
        for (metadata, taints, is_preempted) in [
            (json!({}), json!([spot]), false),
            (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!([]), false),
            (excluded, json!([]), false),
            (unmanaged, json!([]), false),
            (json!({}), json!([]), false),
            (json!({}), json!([]), true),
        ] {
            let object = json!({"metadata": metadata, "spec": {"taints": taints}});
            let mut node = NodeReader::own(keys()).read(serde_json::from_value(object).unwrap());
            node.ends |= is_preempted;
            let seen = NodeReport::initial(None, &keys(), at(1)).with_node(node.clone(), at(2));
            let stored = serde_json::to_string(&seen.remembered(at(2))).unwrap();
            let report = NodeReport::initial(serde_json::from_str(&stored).unwrap(), &keys(), at(8));
            let remembered = report.node.unwrap();
            let kept = (remembered.ends, remembered.excluded);
            assert_eq!(kept, (node.ends, node.excluded), "{stored}");
        }
    }

    #[test]
    fn a_new_process_takes_the_age_of_a_cordon_from_its_taint() {
        let rules = cordon_of_ten_seconds();
        let cordoned = |time_added: &str| {
            let taint =
                json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": time_added});
            let object = json!({"metadata": {"name": "n", "uid": "u"},
                "spec": {"unschedulable": true, "taints": [{"key": "other", "timeAdded": at(0).wall}, taint]}});
            NodeReader::own(rules.clone()).read(serde_json::from_value(object).unwrap())
        };
        let added_at = |second| cordoned(&at(second).wall.to_string());
        let start = at(2_000);
        let begun = |node: &Node| NodeReport::initial(None, &rules, start).with_node(node.clone(), start);
        // When the taint was added, and the seconds until the cordon counts.
        for (node, counts_after, since) in [
            (added_at(800), 0, 800),
            (added_at(1_990), 0, 1_990),
            (added_at(1_996), 6, 1_996),
            (added_at(2_000), 10, 2_000),
            (added_at(2_300), 10, 2_000),
            (cordoned("a while ago"), 10, 2_000),
        ] {
            let mut report = begun(&node);
            if counts_after > 0 {
                let counts_at = start.mono + Duration::from_secs(counts_after);
                assert_eq!((report.is_eligible(), report.next_deadline()), (true, Some(counts_at)));
                let (wall, mono) = (start.wall, counts_at);
                report = report.at(Moment { wall, mono });
            }
            let found = report.signals().values().next();
            assert_eq!(found, Some(&at(since).wall), "{:?}", node.taints);
        }
        // This process has seen the node in service: the taint may be left from an earlier cordon.
        let in_service = Node {
            uid: "u".to_owned(),
            ..Node::default()
        };
        assert!(begun(&in_service).with_node(added_at(800), start).is_eligible());
        // An earlier process remembered that it was.
        let remembered = begun(&in_service).remembered(start);
        let report = NodeReport::initial(remembered, &rules, start);
        assert!(!report.with_node(added_at(800), start).is_eligible());
        let pending = begun(&added_at(1_996)).remembered(start);
        assert!(NodeReport::initial(pending.clone(), &rules, start).is_eligible());
        let lasted = NodeReport::initial(pending, &rules, at(2_006));
        assert!(!lasted.is_eligible());
    }

    #[test]
    fn cordon_counts_once_it_has_lasted_and_ends_at_once() {
        let rules = cordon_of_ten_seconds();
        let start = Clock::System.now();
        let after = |seconds: u64| Moment {
            wall: start.wall + Duration::from_secs(seconds),
            mono: start.mono + Duration::from_secs(seconds),
        };
        let cordoned = |uid: &str, unschedulable: bool| {
            let node = Node {
                unschedulable,
                ..node(uid, &[])
            };
            node.with_signals(&rules)
        };
        let report = NodeReport::initial(None, &rules, start).with_node(cordoned("u", true), after(1));
        assert!(report.is_eligible() && report.next_deadline() == Some(after(11).mono));
        assert!(report.at(after(10)).is_eligible());
        // Another observation does not start the time again, and another Node does.
        let report = report.with_node(cordoned("u", true), after(9));
        assert_eq!(report.next_deadline(), Some(after(11).mono));
        let other = report.with_node(cordoned("v", true), after(9));
        assert_eq!(other.next_deadline(), Some(after(19).mono));
        let due = report.at(after(11));
        assert!(!due.is_eligible() && due.next_deadline().is_none());
        assert_eq!(due.signals()[&Signal::Unschedulable], after(1).wall);
        assert_eq!(due.with_node(cordoned("u", true), after(60)).signals(), due.signals());
        assert!(due.with_node(cordoned("u", false), after(60)).is_eligible());
        let ended = report.with_node(cordoned("u", false), after(10));
        assert!(ended.at(after(60)).is_eligible());
        // A restart continues a signal that counted, and starts the time of one that did not again.
        let restart = |report: &NodeReport| {
            let remembered = report.remembered(after(12));
            NodeReport::initial(remembered, &rules, after(13))
        };
        assert!(!restart(&due).is_eligible());
        assert_eq!(restart(&report).next_deadline(), Some(after(23).mono));
    }

    /// One observation: the Node with this UID and these taints, or its absence.
    fn observation() -> impl Strategy<Value = Option<(String, Vec<String>)>> {
        proptest::option::weighted(0.7, ("[uv]", proptest::collection::vec("drain|other", 0..3)))
    }

    proptest! {
        /// After any observations, the signals are those of the last observed Node.
        #[test]
        fn signals_are_those_of_the_last_observation(observations in proptest::collection::vec(observation(), 0..20)) {
            let mut report = NodeReport::initial(None, &keys(), at(0));
            let mut last: Option<Vec<String>> = None;
            for (second, observation) in (1..).zip(observations) {
                report = match observation {
                    None => report.without_node(),
                    Some((uid, taints)) => {
                        last = Some(taints.clone());
                        let taints: Vec<_> = taints.iter().map(String::as_str).collect();
                        report.with_node(node(&uid, &taints), at(second))
                    }
                };
                let drained = last.as_ref().is_some_and(|taints| taints.contains(&"drain".to_owned()));
                prop_assert_eq!(report.is_eligible(), !drained);
                prop_assert_eq!(report.source == Source::None, last.is_none());
                prop_assert!(report.is_synced());
                prop_assert!(report.signals().values().all(|since| *since <= at(second).wall));
                // A restart loses none of them.
                let remembered = report.remembered(at(second));
                let restarted = NodeReport::initial(remembered, &keys(), at(second));
                prop_assert_eq!(restarted.signals(), report.signals());
            }
        }
    }
}
