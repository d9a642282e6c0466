//! The marker on a Node, as the writer of Nodes gets it: [`MarkerState::intent`]. A change of the status is written at once, everything
//! else with the next confirmation.
//!
//! [`expire_marker`] is the agent's part beside a leader: a condition that no leader has confirmed for three minutes becomes `Unknown`,
//! because the leader may be dead and the pools may have changed; after longer where the condition itself says that its leader confirms
//! it less often. Time counts on the agent's own clock from the observation of the last
//! confirmation; only the first observation of a process takes the age from the wall clock, so that restarts do not prolong it. A
//! condition that was confirmed meanwhile stays.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::changed;
use headgate_core::clock::{Clock, Moment, Observed, age_by_wall_clock};
use headgate_core::node::{
    ConditionObject, MARKER_CONDITION, MARKER_NO_SIGNAL, MARKER_TTL, MAX_MARKER_MESSAGE_BYTES, MarkerCondition,
    MarkerFact, MarkerStatus, NodeReport,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::FieldIntents;
use super::intent::{Edited, NodeIntent, Shown};
use super::schedule::MAX_CONFIRMATIONS_PER_SECOND;

/// While a node is out. Three confirmations before the agent makes the condition `Unknown`.
const CONFIRM_INTERVAL: Duration = Duration::from_mins(1);
const _: () = assert!(CONFIRM_INTERVAL.as_secs() * 3 <= MARKER_TTL.as_secs());
/// The same for an agent and its own Node.
const OWN_CONFIRM_INTERVAL: Duration = Duration::from_secs(250);
/// While a node with a signal is not out: each confirmation says what is missing now.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// What the condition of a Node should say, and what the Node shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerState {
    /// The UID of the Node.
    pub uid: String,
    /// What the condition should say.
    pub wanted: MarkerCondition,
    /// What the Node shows.
    pub shown: Option<MarkerFact>,
}

impl MarkerState {
    /// A condition that differs from what the Node shows, or not.
    pub fn new(uid: String, wanted: MarkerCondition, shown: Option<MarkerFact>) -> Self {
        Self { uid, wanted, shown }
    }

    /// The condition of a node whose signal has ended. It is written once, and not confirmed.
    pub fn without_signal(uid: String, shown: Option<MarkerFact>) -> Self {
        let wanted = MarkerCondition {
            status: MarkerStatus::False,
            reason: MARKER_NO_SIGNAL,
            message: "The node has no signal.".to_owned(),
        };
        Self::new(uid, wanted, shown)
    }

    /// Whether the condition is confirmed: its signal goes on.
    pub fn is_confirmed(&self) -> bool {
        self.wanted.reason != MARKER_NO_SIGNAL
    }

    /// What the writer of Nodes makes of it, which confirms the conditions of `confirmed` Nodes. Another reason or message waits for the
    /// next confirmation, unless the signal has ended.
    pub fn intent(&self, confirmed: usize) -> NodeIntent {
        let mut wanted = self.wanted.clone();
        let has_ended = !self.is_confirmed();
        let seconds_of_all = confirmed.div_ceil(MAX_CONFIRMATIONS_PER_SECOND);
        let all = Duration::from_secs(u64::try_from(seconds_of_all).unwrap_or(u64::MAX));
        if !has_ended && all > MARKER_TTL / 2 {
            wanted = wanted.confirmed_again_within(all);
        }
        let is_shown = self
            .shown
            .as_ref()
            .is_some_and(|shown| shown.status == wanted.status && (!has_ended || shown.is_without_signal()));
        let interval = match wanted.status {
            MarkerStatus::True => CONFIRM_INTERVAL,
            MarkerStatus::False | MarkerStatus::Unknown => PROGRESS_INTERVAL,
        };
        NodeIntent {
            uid: Some(self.uid.clone()),
            key: if has_ended {
                MARKER_NO_SIGNAL
            } else {
                wanted.status.as_str()
            }
            .to_owned(),
            shown: if is_shown { Shown::Yes } else { Shown::No },
            renew_interval: (!has_ended).then_some(interval),
            edit: Arc::new(move |node: &mut Node, now| {
                set(MARKER_CONDITION, &wanted, node, now);
                Edited::Done
            }),
        }
    }
}

impl MarkerState {
    /// What the writer of Nodes makes of it in an agent, which confirms the condition of its own Node. While the node is out it does so less
    /// often: no agent knows how many others do, and 5,000 of them are to cost 20 writes a second.
    pub fn own_intent(&self) -> NodeIntent {
        if self.wanted.status != MarkerStatus::True {
            return self.intent(1);
        }
        let wanted = self.wanted.clone().confirmed_again_within(OWN_CONFIRM_INTERVAL);
        let state = Self { wanted, ..self.clone() };
        NodeIntent {
            renew_interval: Some(OWN_CONFIRM_INTERVAL),
            ..state.intent(1)
        }
    }
}

/// What the writer of Nodes makes of another condition of the same form, which is written on each change and not confirmed.
pub fn condition_intent(
    type_: &'static str,
    uid: String,
    wanted: MarkerCondition,
    shown: Option<&MarkerFact>,
) -> NodeIntent {
    let is_shown = shown.is_some_and(|shown| {
        (shown.status, &*shown.reason, &*shown.message) == (wanted.status, wanted.reason, &*wanted.message)
    });
    NodeIntent {
        uid: Some(uid),
        key: format!("{} {} {}", wanted.status.as_str(), wanted.reason, wanted.message),
        shown: if is_shown { Shown::Yes } else { Shown::No },
        renew_interval: None,
        edit: Arc::new(move |node: &mut Node, now| {
            set(type_, &wanted, node, now);
            Edited::Done
        }),
    }
}

/// Sets the condition of a Node, as confirmed now.
fn set(type_: &str, condition: &MarkerCondition, node: &mut Node, now: Timestamp) {
    let MarkerCondition {
        status,
        reason,
        message,
    } = condition;
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    let present = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = present.as_ref().filter(|present| present.status == status.as_str());
    let since = since.and_then(|present| present.last_transition_time.clone());
    let condition = NodeCondition {
        type_: type_.to_owned(),
        status: status.as_str().to_owned(),
        reason: Some((*reason).to_owned()),
        message: Some(message[..message.floor_char_boundary(MAX_MARKER_MESSAGE_BYTES)].to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    };
    match present {
        Some(present) => *present = condition,
        None => conditions.push(condition),
    }
}

/// The condition in a Node that was read as a whole.
fn read(condition: &NodeCondition) -> Option<MarkerFact> {
    let text = |time: &Option<Time>| time.as_ref().map(|time| time.0.to_string());
    let condition = ConditionObject {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: text(&condition.last_transition_time),
        last_heartbeat_time: text(&condition.last_heartbeat_time),
    };
    MarkerFact::find(&[condition], MARKER_CONDITION)
}

/// Whether both are of the same confirmation, as far as its time is readable.
fn is_same(shown: &MarkerFact, other: &MarkerFact) -> bool {
    let text = |fact: &MarkerFact| (fact.status, fact.reason.clone(), fact.message.clone());
    text(shown) == text(other) && other.confirmed_at.is_none_or(|at| shown.confirmed_at == Some(at))
}

/// Adopts what the Node shows; returns when it expires.
fn observe(
    observed: &mut Observed<MarkerFact>,
    shown: Option<MarkerFact>,
    ttl: Duration,
    now: Moment,
) -> Option<Instant> {
    // Without a readable time, it counts as confirmed now.
    let age = |shown: &MarkerFact| {
        shown
            .confirmed_at
            .map_or(Duration::ZERO, |at| age_by_wall_clock(at, now))
    };
    let shown = shown.filter(MarkerFact::needs_confirmation);
    match (shown, observed.value()) {
        // Another text without a time of its own confirms nothing.
        (Some(shown), Some(known)) if shown.confirmed_at.is_none_or(|at| known.confirmed_at == Some(at)) => {
            observed.replace(shown);
        }
        (shown, _) => observed.observe(shown, age, now),
    }
    observed.expires_at(observed.value().map_or(ttl, |shown| shown.ttl(ttl)))
}

/// Makes the condition of the Node `name` `Unknown` when nothing has confirmed it for `ttl`. Never ends by itself.
pub async fn expire_marker(
    name: String,
    ttl: Duration,
    mut reports: watch::Receiver<NodeReport>,
    intents: FieldIntents,
    clock: Clock,
) {
    let mut observed = Observed::default();
    loop {
        let (own, uid) = match reports.borrow_and_update().node.as_ref() {
            Some(node) => (node.marker.clone(), Some(node.uid.clone())),
            None => (None, None),
        };
        let expires_at = observe(&mut observed, own, ttl, clock.now());
        let is_over = expires_at.is_some_and(|at| at <= Instant::now());
        let shown = observed.value().filter(|_| is_over).cloned();
        let expired = shown
            .zip(uid)
            .map(|(shown, uid)| (name.clone(), expired(uid, shown, ttl)));
        intents.publish(expired.into_iter().collect());
        tokio::select! {
            () = changed(&mut reports) => {}
            () = sleep_until(expires_at.unwrap_or_else(Instant::now)), if expires_at.is_some() && !is_over => {}
        }
    }
}

/// The end of a condition that the Node shows.
fn expired(uid: String, shown: MarkerFact, ttl: Duration) -> NodeIntent {
    let ttl = shown.ttl(ttl);
    let unknown = MarkerCondition {
        status: MarkerStatus::Unknown,
        reason: "NotConfirmed",
        message: format!("No leader has confirmed this condition for {} s.", ttl.as_secs()),
    };
    NodeIntent {
        uid: Some(uid),
        key: shown.confirmed_at.map(|at| at.to_string()).unwrap_or_default(),
        shown: Shown::No,
        renew_interval: None,
        edit: Arc::new(move |node: &mut Node, now| {
            let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let present = conditions.find_map(read);
            // One that was confirmed meanwhile stays; the watch will show it.
            if present.is_some_and(|present| is_same(&present, &shown)) {
                set(MARKER_CONDITION, &unknown, node, now);
            }
            Edited::Done
        }),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fact(status: &str, reason: &str, confirmed_at: &str) -> MarkerFact {
        let condition = json!({"type": MARKER_CONDITION, "status": status, "reason": reason, "message": "m",
            "lastHeartbeatTime": confirmed_at});
        MarkerFact::find(&[serde_json::from_value(condition).unwrap()], MARKER_CONDITION).unwrap()
    }

    fn condition(status: MarkerStatus, reason: &'static str, message: &str) -> MarkerCondition {
        MarkerCondition {
            status,
            reason,
            message: message.to_owned(),
        }
    }

    /// Many seconds after `start`.
    fn after(start: Moment, seconds: u32) -> Moment {
        Moment {
            wall: start.wall + seconds * SECOND,
            mono: start.mono + seconds * SECOND,
        }
    }

    /// When a condition expires that a Node shows for the first time.
    fn expiry(shown: Option<MarkerFact>, now: Moment) -> Instant {
        observe(&mut Observed::default(), shown, MARKER_TTL, now).unwrap()
    }

    /// The Node after an edit of an empty one.
    fn edited(intent: &NodeIntent) -> Node {
        let mut node = Node::default();
        intent.edit.edit(&mut node, Timestamp::now());
        node
    }

    fn first_condition(node: &Node) -> NodeCondition {
        node.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].clone()
    }

    #[test]
    fn condition_expires_by_the_own_clock_and_only_while_it_needs_a_confirmation() {
        let start = Clock::System.now();
        let after = |seconds| after(start, seconds);
        let out = |time: &str| Some(fact("True", "AdminStateDown", time));
        let first = || out(&start.wall.to_string());
        let mut observed = Observed::default();
        for (what, second, shown, expected) in [
            ("nothing is shown", 0, None, None),
            ("it counts from the confirmation", 1, first(), Some(180)),
            ("another report prolongs nothing", 100, first(), Some(180)),
            ("a clock is wrong by years", 110, out("2020-01-01T00:00:00Z"), Some(290)),
            ("settled", 120, Some(fact("False", MARKER_NO_SIGNAL, "x")), None),
            ("not confirmed", 120, Some(fact("Unknown", "NotConfirmed", "x")), None),
            ("unproved", 130, Some(fact("False", "NotDown", "x")), Some(310)),
        ] {
            let expires_at = observe(&mut observed, shown, MARKER_TTL, after(second));
            assert_eq!(expires_at, expected.map(|second| after(second).mono), "{what}");
        }
    }

    #[test]
    fn another_text_without_a_new_time_confirms_nothing() {
        let start = Clock::System.now();
        let time = |seconds| after(start, seconds).wall.to_string();
        let mut observed = Observed::default();
        for (second, shown, expected) in [
            (0, fact("True", "AdminStateDown", &time(0)), 180),
            (60, fact("True", "Other", &time(0)), 180),
            (120, fact("True", "Other", "x"), 180),
            (130, fact("False", "NotDown", "x"), 180),
            (140, fact("True", "AdminStateDown", &time(140)), 320),
        ] {
            let expires_at = observe(&mut observed, Some(shown), MARKER_TTL, after(start, second));
            assert_eq!(expires_at, Some(after(start, expected).mono), "{second}");
        }
    }

    #[test]
    fn conditions_of_many_nodes_say_when_they_are_confirmed_again() {
        let wanted = condition(MarkerStatus::True, "AdminStateDown", "m");
        let state = MarkerState::new("u".to_owned(), wanted, None);
        for (confirmed, ttl) in [(1, 180), (900, 180), (1000, 200), (5000, 1000)] {
            let shown = read(&first_condition(&edited(&state.intent(confirmed))));
            let says_so = shown.as_ref().is_some_and(|shown| shown.message != "m");
            assert_eq!(says_so, ttl > 180, "{confirmed}");
            let now = Clock::System.now();
            let left = (expiry(shown, now) - now.mono).as_secs_f64();
            assert!((left - f64::from(ttl)).abs() < 1.0, "{confirmed}: {left}");
        }
        let own = state.own_intent();
        assert_eq!(own.renew_interval, Some(Duration::from_secs(250)));
        let shown = read(&first_condition(&edited(&own))).unwrap();
        assert_eq!(shown.ttl(MARKER_TTL), Duration::from_secs(500));
        let ended = MarkerState::without_signal("u".to_owned(), None).intent(5000);
        let message = first_condition(&edited(&ended)).message.unwrap();
        assert_eq!(message, "The node has no signal.");
    }

    #[test]
    fn restart_does_not_prolong_an_old_condition() {
        let now = Clock::System.now();
        for (age, left) in [(0, 180), (100, 80), (180, 0), (9999, 0), (-50, 180)] {
            let at = now.wall.checked_sub(SignedDuration::from_secs(age)).unwrap();
            let shown = fact("True", "AdminStateDown", &at.to_string());
            assert_eq!(expiry(Some(shown), now) - now.mono, left * SECOND, "{age}");
        }
        let unreadable = fact("True", "AdminStateDown", "yesterday");
        assert_eq!(expiry(Some(unreadable), now) - now.mono, MARKER_TTL);
    }

    #[test]
    fn another_condition_is_written_on_each_change() {
        let shown = fact("True", "R", "x");
        for (status, reason, message, expected) in [
            (MarkerStatus::True, "R", "m", Shown::Yes),
            (MarkerStatus::False, "R", "m", Shown::No),
            (MarkerStatus::True, "S", "m", Shown::No),
            (MarkerStatus::True, "R", "n", Shown::No),
        ] {
            let wanted = condition(status, reason, message);
            let intent = condition_intent("T", "u".to_owned(), wanted, Some(&shown));
            assert_eq!(intent.shown, expected, "{}", intent.key);
        }
    }

    #[test]
    fn condition_that_was_confirmed_meanwhile_does_not_expire() {
        let (first, second) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + SECOND);
        for (confirmed, message, expected) in [(first, "m", "Unknown"), (second, "m", "True"), (first, "n", "True")] {
            let shown = fact("True", "AdminStateDown", &first.to_string());
            let mut node = Node::default();
            let out = condition(MarkerStatus::True, "AdminStateDown", message);
            set(MARKER_CONDITION, &out, &mut node, confirmed);
            expired("u".to_owned(), shown, MARKER_TTL).edit.edit(&mut node, second);
            assert_eq!(first_condition(&node).status, expected, "{confirmed} {message}");
        }
    }

    #[test]
    fn what_is_written_about_a_node() {
        use MarkerStatus::{False, True};
        let shown = |status, reason| Some(fact(status, reason, "x"));
        let (out, not_down) = (shown("True", "AdminStateDown"), shown("False", "NotDown"));
        let (ended, unknown) = (shown("False", MARKER_NO_SIGNAL), shown("Unknown", "NotConfirmed"));
        let first = condition(False, "NotDown", "m");
        let down = condition(True, "AdminStateDown", "m");
        let not_read = condition(False, "NotRead", "m");
        let no_signal = condition(False, MARKER_NO_SIGNAL, "m");
        let written = |seconds| (Shown::No, seconds);
        let renewed = |seconds| (Shown::Yes, seconds);
        for (what, wanted, shown, key, expected) in [
            ("first signal", &first, &None, "False", written(Some(30))),
            ("out", &down, &not_down, "True", written(Some(60))),
            ("confirmed", &down, &out, "True", renewed(Some(60))),
            ("another text", &not_read, &not_down, "False", renewed(Some(30))),
            ("made unknown", &down, &unknown, "True", written(Some(60))),
            ("it ends", &no_signal, &out, MARKER_NO_SIGNAL, written(None)),
            ("it ends early", &no_signal, &not_down, MARKER_NO_SIGNAL, written(None)),
            ("ended", &no_signal, &ended, MARKER_NO_SIGNAL, renewed(None)),
        ] {
            let intent = MarkerState::new("u".to_owned(), wanted.clone(), shown.clone()).intent(1);
            let interval = intent.renew_interval.map(|interval| interval.as_secs());
            assert_eq!(intent.key, key, "{what}");
            assert_eq!((intent.shown, interval), expected, "{what}");
        }
    }

    #[test]
    fn condition_is_set_beside_others_and_keeps_the_time_of_its_status() {
        let [first, second, third] = [0, 1, 2].map(|second| Timestamp::UNIX_EPOCH + second * SECOND);
        let mut node = Node::default();
        let ready = NodeCondition {
            type_: "Ready".to_owned(),
            ..NodeCondition::default()
        };
        node.status.get_or_insert_default().conditions = Some(vec![ready.clone()]);
        let long = "é".repeat(MAX_MARKER_MESSAGE_BYTES);
        for (condition, now, since) in [
            (condition(MarkerStatus::False, "R", "a"), first, first),
            (condition(MarkerStatus::False, "R", "b"), second, first),
            (condition(MarkerStatus::True, "R", &long), third, third),
        ] {
            set(MARKER_CONDITION, &condition, &mut node, now);
            let conditions = node.status.clone().unwrap().conditions.unwrap();
            assert_eq!((conditions.len(), &conditions[0]), (2, &ready));
            let set = &conditions[1];
            assert_eq!(set.type_, MARKER_CONDITION);
            assert_eq!(set.status, condition.status.as_str());
            assert_eq!(set.last_heartbeat_time, Some(Time(now)));
            assert_eq!(set.last_transition_time, Some(Time(since)));
            assert!(set.message.as_ref().unwrap().len() <= MAX_MARKER_MESSAGE_BYTES);
        }
    }
}
